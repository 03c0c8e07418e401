"""Recognises events that differ from a known one in their text and their counts only: takes bytes, parses no JSON.

Nearly all events of a stream are alike, so parsing each of them is the dearest part of reading a stream. A `Shape` is a
regular expression made from one event that *was* parsed; whatever it matches would parse to the same object but for the
values in its holes. Where a hole is, is not guessed: the event is parsed again with another value there.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from loadgen.wire.payload import load_leniently
from loadgen.wire.sse import Event
from loadgen.wire.tokens import NOTHING, finish_reason, generated, is_error

_TEXT_CHANNELS = ("content", "reasoning", "reasoning_content")
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
# A JSON string of at least one character, whether its UTF-8 and its surrogates are whole or not: both readers of `payload`
# read the event alike. Not a text with more escapes than a token has: the engine keeps some 100 bytes for each of them.
_PLAIN = rb"""[^"\\\x00-\x1f]*+"""
_ESCAPED = rb"""\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})"""
_TEXT = rb"""(?!")%b(?:%b%b){0,4096}""" % (_PLAIN, _ESCAPED, _PLAIN)
_ID = _PLAIN
_COUNT = rb"(?:0|[1-9][0-9]{0,8})"
_INSTANT = rb"(?:0|[1-9][0-9]{0,17})"
# Longer events are few, or differ in more than their text; and looking for holes costs a parse for each place.
_LONGEST_BYTES = 8192
_MOST_PLACES = 64


class Run(NamedTuple):
    """Consecutive events of one shape."""

    ends: list[int]
    """Bytes of the body up to the end of each."""
    counts: list[int] | None
    """`completion_tokens` of each; None where this shape's events have none."""
    input_tokens: int | None
    """`prompt_tokens` of the last one."""


class _Hole(NamedTuple):
    start: int
    end: int
    pattern: bytes


class Shape:
    """One kind of event: a single choice with text in one channel, no finish reason, usage or none."""

    def __init__(self, head: bytes, rest: bytes, *, choice: int, visible: bool) -> None:
        """`head`: the expression of what hardly ever changes within a stream, up to its text or its first count."""
        pattern = re.compile(head + rest)
        self.matches = pattern.fullmatch
        """Whether the data of an event has this shape."""
        self._framed = re.compile(b"data: %b%b\n\n" % (head, rest))
        self._head = re.compile(b"data: " + head)
        self._rest = re.compile(rest + b"\n\n")
        self.choice = choice
        """Index of the choice."""
        self._count_group = pattern.groupindex.get("completion_tokens")
        self._input_group = pattern.groupindex.get("prompt_tokens")
        self.visible = visible
        """Whether the text is visible output, not reasoning."""

    def run(self, events: Sequence[Event], first: int) -> Run | None:
        """The events from `first` on, up to one of another shape; None when that is the first one."""
        matches, ends, found = self.matches, [], []
        for data, end, name in itertools.islice(events, first, None):
            match = matches(data)
            if match is None or name:
                break
            ends.append(end)
            found.append(match)
        return self._run(ends, found)

    def first_run(self, body: bytes) -> tuple[int, Run] | None:
        """(start, run) of the first events of this shape in a body, if any: the same without parsing the body first."""
        first = self._framed.search(body)
        if first is None:
            return None
        start = first.start()
        if start and not body.endswith(b"\n\n", 0, start):  # inside another event
            return None
        ends, found, end = [], [], start
        starts, match, head = body.startswith, self._rest.match, b"\n"
        while True:
            if not starts(head, end):
                begun = self._head.match(body, end)
                if begun is None:
                    break
                head = begun[0]  # the next event most likely begins so too, and comparing bytes is much cheaper
            ended = match(body, end + len(head))
            if ended is None:
                break
            end = ended.end()
            ends.append(end)
            found.append(ended)
        run = self._run(ends, found)
        return None if run is None else (start, run)

    def _run(self, ends: list[int], found: list[re.Match[bytes]]) -> Run | None:
        if not found:
            return None
        if self._count_group is None:
            return Run(ends, None, None)
        input_tokens = None if self._input_group is None else int(found[-1][self._input_group])
        return Run(ends, [int(match[self._count_group]) for match in found], input_tokens)


def shape_of(data: bytes, event: dict[str, Any]) -> Shape | None:
    """The shape of a parsed event, or None when events like it must be parsed one by one."""
    found = _text_of(event)
    if found is None or len(data) > _LONGEST_BYTES or b"\n" in data:  # it came in several lines
        return None
    if load_leniently(data) != event:  # of texts that only this reader takes, nothing else must be read differently
        return None
    holder, channel = found
    usage = event.get("usage")
    usage = {} if usage is None else usage
    if type(usage) is not dict or (usage and type(usage.get("completion_tokens")) is not int):
        return None
    holes: list[_Hole] = []
    wanted: list[tuple[dict[str, Any], str, bytes]] = [(holder, channel, _TEXT)]
    if type(event.get("id")) is str:
        wanted.append((event, "id", _ID))
    if type(event.get("created")) is int:
        wanted.append((event, "created", _INSTANT))
    for name in _COUNTS:
        if type(usage.get(name)) is int:
            wanted.append((usage, name, b"(?P<%s>%s)" % (name.encode(), _COUNT)))
    for owner, key, pattern in wanted:
        hole = _find(data, event, owner, key, pattern)
        if hole is None:
            return None
        holes.append(hole)
    holes.sort()
    first = next(k for k, hole in enumerate(holes) if hole.pattern not in (_ID, _INSTANT))
    index = event["choices"][0].get("index")
    return Shape(
        _expression(data[: holes[first].start], holes[:first]),
        _expression(data, holes[first:], holes[first].start),
        choice=index if type(index) is int else 0,
        visible=channel not in _TEXT_CHANNELS[1:],
    )


def _text_of(event: dict[str, Any]) -> tuple[dict[str, Any], str] | None:
    """(object, key) of the only generated text of an event that says nothing else about its stream."""
    choices = event.get("choices")
    if is_error(event) or type(choices) is not list or len(choices) != 1 or type(choices[0]) is not dict:
        return None
    choice = choices[0]
    if finish_reason(choice) is not None or generated(choice) == NOTHING:
        return None
    delta = choice.get("delta")
    if type(delta) is not dict:
        return choice, "text"
    channels = [name for name in _TEXT_CHANNELS if delta.get(name)]
    if len(channels) != 1:
        return None
    text = delta[channels[0]]
    # Nothing else may bring text: a call, a refusal, a list of parts.
    return (delta, channels[0]) if generated(choice) in ((text, ""), ("", text)) else None


def _find(data: bytes, event: dict[str, Any], owner: dict[str, Any], key: str, pattern: bytes) -> _Hole | None:
    """Where the value of `owner[key]` stands: the place at which another value changes just that when parsed."""
    value = owner[key]
    other: str | int
    if type(value) is str:
        raw = value.encode(errors="surrogatepass")
        if not raw or re.fullmatch(_PLAIN, raw) is None:
            return None
        places = re.finditer(rb'(?<=")' + re.escape(raw) + rb'(?=")', data)
        other = value + "?"
    else:
        places = re.finditer(rb"(?<![0-9.eE+-])%d(?![0-9.eE])" % value, data)
        other = value + 1
    try:
        owner[key] = other
        for place in itertools.islice(places, _MOST_PLACES):
            changed = data[: place.start()] + str(other).encode(errors="surrogatepass") + data[place.end() :]
            try:
                if orjson.loads(changed) == event:
                    return _Hole(place.start(), place.end(), pattern)
            except orjson.JSONDecodeError:
                continue
        return None
    finally:
        owner[key] = value


def _expression(data: bytes, holes: list[_Hole], start: int = 0) -> bytes:
    """What `data` from `start` on has in common with others of its shape."""
    pieces = []
    for hole in holes:
        pieces += [re.escape(data[start : hole.start]), hole.pattern]
        start = hole.end
    return b"".join(pieces) + re.escape(data[start:])


class ShapeMemory:
    """The shapes of the servers met so far; a stream's first plain event finds its own among them or adds it."""

    MOST = 8
    """Servers have one or two; a stream whose events are never alike must not cost a compilation each."""

    def __init__(self) -> None:
        self._shapes: list[Shape] = []
        self._latest: Shape | None = None

    def first_run(self, body: bytes) -> tuple[Shape, int, Run] | None:
        """(shape, start, run) of the first events of the shape that was met last, if the body has any."""
        if self._latest is None or b"\r" in body:
            return None
        found = self._latest.first_run(body)
        if found is None or b"[DONE]" in body[: found[0]]:  # what comes after it is no part of the stream
            return None
        return self._latest, *found

    def find(self, data: bytes, event: dict[str, Any]) -> Shape | None:
        """The shape of a parsed event, or None when it has none or too many are known."""
        found = next((shape for shape in self._shapes if shape.matches(data) is not None), None)
        if found is None and len(self._shapes) < self.MOST:
            found = shape_of(data, event)
            if found is not None:
                self._shapes.append(found)
        self._latest = found or self._latest
        return found
