"""Server-sent events: takes the bytes of a body, gives each event's data and end; knows no socket and no clock.

Framing follows the WHATWG (HTML, section 9.2.6): lines end in LF, CRLF or CR; a blank line completes an event; comments
and unknown fields are skipped; several `data` lines are joined by LF; a byte-order mark at the start is dropped.
Four points are ours:

- An event ends with the *first byte* of its blank line's end: in CRLF with the CR, because no later byte can change it.
- An event without its blank line at the end of the body is handed out apart. The WHATWG discards it, but real servers
  forget the last blank line; whether it counts depends on how the body ended, which is not known here.
- Lines that are no field of an event stream at all (bare JSON, HTML, a sentence), and those of a field `error`, which
  llama.cpp had, are handed out under the name `STRAY`: servers write their last words so when they fail.
- An event whose name speaks of an error is handed out even without data; its comments are its data (NVIDIA Dynamo).
"""

from __future__ import annotations

import re

from loadgen.wire.payload import is_done, load
from loadgen.wire.tokens import TokenWatch

Event = tuple[bytes, int, bytes]
"""(data, end, name): the joined `data` lines; bytes of the body up to and including the one that completes the event;
the value of the `event` field (empty when absent). A plain tuple, because there is one for every token."""

STRAY = b"\n"
"""Name of an event made of lines that are no fields; no `event` field can have it."""

_BOM = b"\xef\xbb\xbf"

# A line end followed at once by the first byte of another. After CRLF CRLF the match leaves one LF behind: it reads as
# a blank line in front of the next event, which means nothing.
_BLANK_LINE = re.compile(rb"\n[\r\n]|\r\r")

_UNKNOWN_FIELD = re.compile(rb"(?!error:)[\w.-]+:", re.IGNORECASE)


def parse(body: bytes, start: int = 0) -> tuple[list[Event], list[Event]]:
    """The complete events of a body, in order, and what its unfinished end holds: none, one, or two with a stray one.

    From `start` on, which must lie between two events.

    Never raises. The cost is linear in the bytes; a line may have any length.
    """
    if start == 0 and body.startswith(_BOM):
        start = len(_BOM)
    events: list[Event] = []

    if b"\r" in body:  # JSON escapes CR, so it is there only when the server ends lines with it
        for blank in _BLANK_LINE.finditer(body, start):
            end = blank.end()
            events += [(data, end, name) for data, name in _fields(body[start:end])]
            start = end
        rest = body[start:]
    else:
        blocks = (body[start:] if start else body).split(b"\n\n")
        rest = blocks.pop()
        for block in blocks:
            start += len(block) + 2
            if block[:6] == b"data: " and b"\n" not in block:  # nearly every event of nearly every server
                events.append((block[6:], start, b""))
            else:
                events += [(data, start, name) for data, name in _fields(block)]

    return events, [(data, len(body), name) for data, name in _fields(rest)]


def names_error(name: bytes) -> bool:
    """Whether an event's name says that it reports an error: `error`, `Error`, `response.error`."""
    return b"error" in name.lower()


def _fields(block: bytes) -> list[tuple[bytes, bytes]]:
    """(data, name) of the lines between two blank lines: what is stray among them, then the event; often neither."""
    data: list[bytes] = []
    comments: list[bytes] = []
    stray: list[bytes] = []
    name = b""
    for line in block.splitlines():  # of bytes: LF, CRLF and CR only
        field, colon, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
        elif not field:
            if colon:
                comments.append(value.removeprefix(b" "))
        elif field not in (b"id", b"retry") and _UNKNOWN_FIELD.match(line) is None:
            stray.append(line)

    found = [(b"\n".join(stray), STRAY)] if stray else []
    if data:
        found.append((b"\n".join(data), name))
    elif name and names_error(name):
        found.append((b"\n".join(comments), name))
    return found


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
            if any(self._ends_the_watch(data, name) for data, name in fields):
                self._watching = False
                self._parts.clear()
                return self.seen
        self._parts = [text[start:]]
        self._last_byte = text[-1:]
        return False

    def _ends_the_watch(self, data: bytes, name: bytes) -> bool:
        if name and (name == STRAY or names_error(name)):
            return False
        event = load(data)
        self.seen = self._tokens.carries_token(event)
        return self.seen or (type(event) is not dict and is_done(data))
