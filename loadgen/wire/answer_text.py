"""The text of an answer, for a conversation that carries it on: takes an exchange, gives what a chat client would keep.

Visible text of the first choice alone: a client does not send reasoning back. Called between two turns, off the hot path.
"""

from __future__ import annotations

from typing import Any

from loadgen.wire.exchange import Exchange
from loadgen.wire.payload import is_done, load
from loadgen.wire.sse import parse
from loadgen.wire.tokens import generated


def answer_text(exchange: Exchange) -> str:
    """What was said, streamed or whole; empty where there was no visible text. Never raises."""
    body = exchange.payload()
    if exchange.content_type.partition(";")[0].strip().lower() != "text/event-stream":
        return _plain(_whole(load(body)))
    events, unfinished = parse(body)
    said: list[str] = []
    for data, _, name in events + unfinished:
        if is_done(data):
            break
        if not name:
            said.append(_of_event(load(data)))
    return _plain("".join(said))


def _of_event(event: Any) -> str:
    return "".join(generated(choice)[0] for choice in _first_choices(event))


def _whole(answer: Any) -> str:
    said = []
    for choice in _first_choices(answer):
        message = choice.get("message")
        said.append(generated({"delta": message} if type(message) is dict else choice)[0])
    return "".join(said)


def _first_choices(event: Any) -> list[dict[str, Any]]:
    choices = event.get("choices") if type(event) is dict else None
    if type(choices) is not list:
        return []
    return [choice for choice in choices if type(choice) is dict and choice.get("index", 0) in (0, None)]


def _plain(text: str) -> str:
    """Without halves of surrogate pairs, which no JSON text can hold; two that belong together are a character again."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
