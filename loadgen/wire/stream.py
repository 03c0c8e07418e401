"""What the events of one answer say, all together: takes a body, gives counts, ends, texts and failures; knows no time.

Every event is parsed; nothing is guessed from its length or place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from loadgen.wire.reasons import event_reason, plain
from loadgen.wire.sse import DONE, Event, parse
from loadgen.wire.tokens import NOTHING, TokenWatch, generated, is_error, late_usage, token_count

GIVEN_UP = frozenset({"error", "abort"})
"""Finish reasons with which vLLM and SGLang say that they gave a request up: failures, not ends."""

NO_COUNT = -1


@dataclass(slots=True)
class Stream:
    """What one stream said. `ends` and `counts` have one entry for every token-carrying event, in order."""

    ends: list[int] = field(default_factory=list)
    """Bytes of the body up to the one that completes the event."""
    counts: list[int] = field(default_factory=list)
    """`completion_tokens` so far, as that event says; NO_COUNT when it says nothing."""
    first_visible: int | None = None
    """Index of the first event with visible output."""
    texts: dict[int, list[str]] = field(default_factory=dict)
    """Generated text by choice, all channels in order; filled only on request."""
    choices: set[int] = field(default_factory=set)
    """`index` of every choice seen."""
    finished: set[int] = field(default_factory=set)
    """`index` of every choice that had a finish reason."""
    finish_reason: str | None = None
    """The last one."""
    input_tokens: int | None = None
    latest_count: int | None = None
    """The last `completion_tokens` of any event."""
    final_count: int | None = None
    """The last `completion_tokens` of an event without choices: the sum over all choices."""
    done: bool = False
    error: str | None = None
    """What the first error event said."""
    broken: str | None = None
    """Which event was the first that could not be read."""
    cut: bool = False
    """Whether the body ended in the middle of an event."""
    tokens: TokenWatch = field(default_factory=TokenWatch)

    @property
    def output_tokens(self) -> int | None:
        """N as the server counted it, or None.

        With several choices only the event without choices has the sum: vLLM counts each choice on its own elsewhere.
        Zero beside text comes from servers that do not count.
        """
        total = self.final_count if len(self.choices) > 1 else self.latest_count
        return None if total == 0 and self.ends else total


def read_stream(body: bytes, *, body_complete: bool, keep_text: bool) -> Stream:
    """Read every event up to `[DONE]`; what a server sends after it is no part of the stream. Never raises.

    An event without its blank line counts when the body ended as HTTP says it should: real servers forget the last one.
    But if it cannot be read, the stream was cut off there, which is not the same as broken JSON.
    """
    stream = Stream()
    events, unfinished = parse(body)
    if unfinished is not None and body_complete:
        stream.cut = not _is_whole(unfinished)
        if not stream.cut:
            events.append(unfinished)

    for data, end, name in events:
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            event = None
        if name == b"error":
            stream.error = stream.error or event_reason(event or data.decode(errors="replace"))
        elif type(event) is dict:
            _read_event(stream, event, end, keep_text)
        elif data.strip() == DONE:
            stream.done = True
            break
        elif data.strip() and name in (b"", b"message"):  # a ping under a name of its own may hold anything
            stream.broken = (
                stream.broken or f"an event is not a JSON object: {plain(data[:40].decode(errors='replace'))}"
            )
    return stream


def _is_whole(event: Event) -> bool:
    data, _, name = event
    if name == b"error" or data.strip() in (b"", DONE):
        return True
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


def _read_event(stream: Stream, event: dict[str, Any], end: int, keep_text: bool) -> None:
    if is_error(event):
        stream.error = stream.error or event_reason(event)

    choices = event.get("choices")
    usage = event.get("usage")
    text = visible = finish = False
    found = 0
    for choice in choices if type(choices) is list else ():
        if type(choice) is not dict:
            continue
        found += 1
        index = choice.get("index")
        if type(index) is not int:
            index = 0
        stream.choices.add(index)

        texts = generated(choice)
        if texts != NOTHING:
            text = True
            if texts[0]:
                visible = True
            if keep_text:
                stream.texts.setdefault(index, []).append(texts[1] + texts[0])

        finish_reason = choice.get("finish_reason")
        if finish_reason and type(finish_reason) is str:
            finish = True
            stream.finish_reason = finish_reason
            stream.finished.add(index)
            usage = usage or late_usage(event, choice)
            if finish_reason in GIVEN_UP:
                stream.error = stream.error or f"the server gave the request up: finish reason {finish_reason}"

    count = _read_usage(stream, usage, summed=not choices) if type(usage) is dict else None

    # Only the event's own usage tells of tokens without text; a total put elsewhere comes after them.
    own = count if usage is event.get("usage") else None
    if stream.tokens.carries(text=text, finish=finish, choices=found, count=own):
        if visible and stream.first_visible is None:
            stream.first_visible = len(stream.ends)
        stream.ends.append(end)
        stream.counts.append(NO_COUNT if count is None else count)


def _read_usage(stream: Stream, usage: dict[str, Any], *, summed: bool) -> int | None:
    """Keep the figures of one usage object; gives its `completion_tokens`."""
    input_tokens = token_count(usage.get("prompt_tokens"))
    if input_tokens is not None:
        stream.input_tokens = input_tokens
    count = token_count(usage.get("completion_tokens"))
    if count is not None:
        stream.latest_count = count
        if summed:
            stream.final_count = count
    return count
