"""What an answer that is no stream says: takes the body of a whole answer, gives the same as of a stream; knows no time.

All of its tokens arrive together, with the body's last byte: there is one place where any could be credited.
"""

from __future__ import annotations

from typing import Any

from loadgen.wire.payload import load
from loadgen.wire.reasons import event_reason, plain
from loadgen.wire.stream import GIVEN_UP, NO_COUNT, Stream
from loadgen.wire.tokens import NOTHING, finish_reason, generated, is_error, token_count

_JSON = ("application/json", "text/json")


def read_whole(body: bytes, *, media_type: str, body_complete: bool, keep_text: bool) -> Stream:
    """What one whole answer says, as a stream of a single event. Never raises.

    `done` means that the answer is complete. `media_type` is the content type without its parameters; a JSON object is taken
    whatever it is called, as long as it is not called a stream.
    """
    stream = Stream()
    answer = load(body)
    if type(answer) is not dict:
        if body_complete:
            stream.broken = _what_came(body, media_type)
        return stream
    stream.done = True
    if is_error(answer):
        stream.error = event_reason(answer)
        return stream
    choices = answer.get("choices")
    if type(choices) is not list:
        stream.broken = f"the answer has no choices: {plain(body[:40].decode(errors='replace'))}"
        return stream
    text = visible = False
    for choice in choices:
        if type(choice) is dict:
            said = _read_choice(stream, choice, keep_text)
            text, visible = text or said != NOTHING, visible or bool(said[0])
    usage = answer.get("usage")
    if type(usage) is dict:
        stream.input_tokens = token_count(usage.get("prompt_tokens", usage.get("input_tokens")))
        # Of all choices together.
        stream.latest_count = stream.final_count = token_count(usage.get("completion_tokens"))
    if text or stream.latest_count:
        stream.first_visible = 0 if visible else None
        stream.ends.append(len(body))
        stream.counts.append(stream.latest_count or NO_COUNT)
    return stream


def _read_choice(stream: Stream, choice: dict[str, Any], keep_text: bool) -> tuple[str, str]:
    """Notes how a choice ended; gives its (visible, reasoning) text."""
    index = choice.get("index")
    index = index if type(index) is int else 0
    stream.choices.add(index)
    # A message has the keys of a delta.
    said = generated(choice if "message" not in choice else {"delta": choice["message"]})
    if keep_text:
        stream.texts.setdefault(index, []).append(said[1] + said[0])
    if choice.get("error"):
        stream.error = stream.error or event_reason(choice)
    reason = finish_reason(choice)
    if reason is not None:
        stream.finished.add(index)
        stream.finish_reason = plain(reason)
        if reason.lower() in GIVEN_UP:
            stream.error = stream.error or f"the server gave the request up: finish reason {stream.finish_reason}"
    return said


def _what_came(body: bytes, media_type: str) -> str:
    if media_type == "text/event-stream":
        return "a stream came although none was asked for"
    called = "" if media_type in _JSON else f" ({media_type or 'no content type'})"
    return f"the answer is not a JSON object{called}: {plain(body[:40].decode(errors='replace'))}".rstrip(": ")
