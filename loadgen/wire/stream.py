"""What the events of one answer say, all together: takes a body, gives counts, ends, texts and failures; knows no time.

Every event is parsed; nothing is guessed from its length or place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from loadgen.wire.payload import is_done, load, load_leniently
from loadgen.wire.reasons import event_reason, plain, spoken_error
from loadgen.wire.shape import Run, Shape, ShapeMemory
from loadgen.wire.sse import STRAY, Event, names_error, parse
from loadgen.wire.tokens import (
    NOTHING,
    TokenWatch,
    finish_reason,
    generated,
    has_tokens_without_text,
    is_error,
    late_usage,
    token_count,
)

GIVEN_UP = frozenset(
    {
        "error",  # vLLM, OpenRouter
        "abort",  # vLLM, SGLang
        "cancelled",  # TensorRT-LLM, as the next
        "timeout",
        "insufficient_system_resource",  # DeepSeek
        "network_error",  # Zhipu
    }
)
"""Finish reasons with which servers say that they gave a request up: failures, not ends."""

NO_COUNT = -1

_SHAPES = ShapeMemory()


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
    only_stray: bool = False
    """Whether the body has lines, but none of them belongs to an event."""
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

    def whole_texts(self) -> list[str]:
        """The text of each choice. Halves of a surrogate pair that came in two events make one character again."""
        texts = ["".join(parts) for parts in self.texts.values()]
        return [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]


def read_stream(body: bytes, *, body_complete: bool, keep_text: bool) -> Stream:
    """Read every event up to `[DONE]`; of what a server sends after it only usage is looked at. Never raises.

    An event without its blank line counts when the body ended as HTTP says it should: real servers forget the last one.
    But if it cannot be read, the stream was cut off there, which is not the same as broken JSON.
    """
    stream = Stream()
    start = 0
    found = None if keep_text else _SHAPES.first_run(body)
    if found is not None:
        shape, run_start, run = found
        _read_events(stream, parse(body[:run_start])[0], keep_text)
        _read_run(stream, shape, run)
        start = run.ends[-1]

    events, unfinished = parse(body, start)
    if body_complete:
        whole = [event for event in unfinished if _is_whole(event)]
        stream.cut = len(whole) < len(unfinished)
        events += whole
    _read_events(stream, events, keep_text)
    stream.only_stray = found is None and bool(events) and all(name == STRAY for _, _, name in events)
    return stream


def _read_events(stream: Stream, events: list[Event], keep_text: bool) -> None:
    """The events in order, up to `[DONE]`."""
    shape: Shape | None = None
    k = 0
    while k < len(events):
        if shape is not None and (run := shape.run(events, k)) is not None:
            _read_run(stream, shape, run)
            k += len(run.ends)
            continue
        data, end, name = events[k]
        k += 1
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            event = load_leniently(data)
        if name and (name == STRAY or names_error(name)):
            _read_failure(stream, event, data, name)
        elif type(event) is dict:
            _read_event(stream, event, end, keep_text)
            if shape is None and not keep_text:
                shape = _SHAPES.find(data, event)
        elif is_done(data):
            stream.done = True
            _read_late_usage(stream, events[k:])
            break
        else:
            _read_text(stream, data, name)


def _read_failure(stream: Stream, event: object, data: bytes, name: bytes) -> None:
    """An event that is called an error, or lines that are no event."""
    if name == STRAY:
        stream.error = stream.error or spoken_error(data)
    elif stream.error is None:
        stream.error = event_reason(event or data.decode(errors="replace"))


def _read_text(stream: Stream, data: bytes, name: bytes) -> None:
    """The data of an event that is no JSON object."""
    spoken = spoken_error(data)
    if spoken is None and b"\n" in data:  # an error was written behind an event that had no blank line yet
        spoken = next(filter(None, map(spoken_error, data.splitlines()[1:])), None)
    if spoken is not None:
        stream.error = stream.error or spoken
    elif data.strip() and name in (b"", b"message"):  # a ping under a name of its own may hold anything
        stream.broken = stream.broken or f"an event is not a JSON object: {plain(data[:40].decode(errors='replace'))}"


def _read_late_usage(stream: Stream, events: list[Event]) -> None:
    """Usage that a server sends behind `[DONE]`; a second answer behind it is none of ours."""
    for data, _, _ in events:
        event = load(data) if stream.output_tokens is None and b'"usage"' in data else None
        if type(event) is dict and not event.get("choices") and type(event.get("usage")) is dict:
            _read_usage(stream, event["usage"], summed=True)


def _read_run(stream: Stream, shape: Shape, run: Run) -> None:
    """What `_read_event` does with each event, for many of one shape."""
    stream.choices.add(shape.choice)
    if run.counts is not None:
        stream.latest_count = run.counts[-1]
        if run.input_tokens is not None:
            stream.input_tokens = run.input_tokens
    stream.tokens.pass_texts(run.counts)
    if shape.visible and stream.first_visible is None:
        stream.first_visible = len(stream.ends)
    stream.ends += run.ends
    stream.counts += [NO_COUNT] * len(run.ends) if run.counts is None else run.counts


def _is_whole(event: Event) -> bool:
    data, _, name = event
    if name and (name == STRAY or names_error(name)):
        return True
    return not data.strip() or is_done(data) or load(data) is not None or data.strip() == b"null"


def _read_event(stream: Stream, event: dict[str, Any], end: int, keep_text: bool) -> None:
    if is_error(event):
        stream.error = stream.error or event_reason(event)

    choices = event.get("choices")
    usage = event.get("usage")
    text = visible = finish = silent = False
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
        else:
            silent = silent or has_tokens_without_text(choice)
            if choice.get("error"):  # OpenRouter
                stream.error = stream.error or event_reason(choice)

        reason = finish_reason(choice)
        if reason is not None:
            finish = True
            stream.finish_reason = plain(reason)
            stream.finished.add(index)
            usage = usage or late_usage(event, choice)
            if reason.lower() in GIVEN_UP:
                stream.error = stream.error or f"the server gave the request up: finish reason {stream.finish_reason}"
    if not found:
        usage = usage or late_usage(event, {})

    count = _read_usage(stream, usage, summed=not choices) if type(usage) is dict else None

    # Only the event's own usage tells of tokens without text; a total put elsewhere comes after them.
    own = count if usage is event.get("usage") else None
    if stream.tokens.carries(text=text or (silent and not finish), finish=finish, choices=found, count=own):
        if visible and stream.first_visible is None:
            stream.first_visible = len(stream.ends)
        stream.ends.append(end)
        stream.counts.append(NO_COUNT if count is None else count)


def _read_usage(stream: Stream, usage: dict[str, Any], *, summed: bool) -> int | None:
    """Keep the figures of one usage object; gives its `completion_tokens`."""
    input_tokens = token_count(usage.get("prompt_tokens", usage.get("input_tokens")))
    if input_tokens is not None:
        stream.input_tokens = input_tokens
    count = token_count(usage.get("completion_tokens"))
    if count is not None:
        stream.latest_count = count
        if summed:
            stream.final_count = count
    return count
