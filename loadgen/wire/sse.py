"""Server-sent events: takes the bytes of a body, gives each event's data and end; knows no socket and no clock.

Framing follows the WHATWG (HTML, section 9.2.6): lines end in LF, CRLF or CR; a blank line completes an event; comments
and unknown fields are skipped; several `data` lines are joined by LF; a byte-order mark at the start is dropped.
Two points are ours:

- An event ends with the *first byte* of its blank line's end: in CRLF with the CR, because no later byte can change it.
- An event without its blank line at the end of the body is handed out apart. The WHATWG discards it, but real servers
  forget the last blank line; whether it counts depends on how the body ended, which is not known here.
"""

from __future__ import annotations

import re

import orjson

from loadgen.wire.tokens import TokenWatch

Event = tuple[bytes, int, bytes]
"""(data, end, name): the joined `data` lines; bytes of the body up to and including the one that completes the event;
the value of the `event` field (empty when absent). A plain tuple, because there is one for every token."""

DONE = b"[DONE]"

_BOM = b"\xef\xbb\xbf"

# A line end followed at once by the first byte of another. After CRLF CRLF the match leaves one LF behind: it reads as
# a blank line in front of the next event, which means nothing.
_BLANK_LINE = re.compile(rb"\n[\r\n]|\r\r")


def parse(body: bytes) -> tuple[list[Event], Event | None]:
    """The complete events of a body, in order, and the unfinished one at its end if it has any data.

    Never raises. The cost is linear in the bytes; a line may have any length.
    """
    start = len(_BOM) if body.startswith(_BOM) else 0
    events: list[Event] = []

    if b"\r" in body:  # JSON escapes CR, so it is there only when the server ends lines with it
        for blank in _BLANK_LINE.finditer(body, start):
            fields = _fields(body[start : blank.end()])
            start = blank.end()
            if fields is not None:
                events.append((fields[0], start, fields[1]))
        rest = body[start:]
    else:
        blocks = (body[start:] if start else body).split(b"\n\n")
        rest = blocks.pop()
        for block in blocks:
            start += len(block) + 2
            if block[:6] == b"data: " and b"\n" not in block:  # nearly every event of nearly every server
                events.append((block[6:], start, b""))
            elif (fields := _fields(block)) is not None:
                events.append((fields[0], start, fields[1]))

    unfinished = _fields(rest)
    return events, None if unfinished is None else (unfinished[0], len(body), unfinished[1])


def _fields(block: bytes) -> tuple[bytes, bytes] | None:
    """(data, name) of the lines between two blank lines; None when no `data` field is among them."""
    data: list[bytes] = []
    name = b""
    for line in block.splitlines():  # of bytes: LF, CRLF and CR only
        field, _, value = line.partition(b":")  # a comment has an empty field name
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return (b"\n".join(data), name) if data else None


class FirstToken:
    """Watches a stream as it arrives and says when its first token-carrying event is complete.

    Agrees with `decode` for every split of the bytes, except for an event that lacks its blank line at the end of the
    body: that one is known only when the body has ended.
    """

    __slots__ = ("_at_start", "_last_byte", "_parts", "_tokens", "_watching", "seen")

    def __init__(self) -> None:
        self.seen = False
        """Whether a token has arrived."""
        self._watching = True
        self._tokens = TokenWatch()
        self._at_start = True
        self._parts: list[
            bytes
        ] = []  # of the event that is not complete yet; joined once, so long lines cost no copies
        self._last_byte = b""

    def feed(self, chunk: bytes) -> bool:
        """Take the next bytes of the body; True once, for those that complete the first token-carrying event."""
        if not self._watching:
            return False
        self._parts.append(chunk)
        if _BLANK_LINE.search(self._last_byte + chunk) is None:  # the two line ends may come in two reads
            self._last_byte = chunk[-1:] or self._last_byte
            return False

        text = b"".join(self._parts)
        if self._at_start:
            text = text.removeprefix(_BOM)
            self._at_start = False
        start = 0
        for blank in _BLANK_LINE.finditer(text):
            fields = _fields(text[start : blank.end()])
            start = blank.end()
            if fields is not None and self._ends_the_watch(*fields):
                self._watching = False
                self._parts.clear()
                return self.seen
        self._parts = [text[start:]]
        self._last_byte = text[-1:]
        return False

    def _ends_the_watch(self, data: bytes, name: bytes) -> bool:
        if name == b"error":
            return False
        try:
            self.seen = self._tokens.carries_token(orjson.loads(data))
        except orjson.JSONDecodeError:
            return data.strip() == DONE
        return self.seen
