"""Follows the chunked framing of one answer's body, so that whole chunks need not go through an HTTP parser.

Takes the bytes of each read; gives the payload of the chunks that are complete in it, and what a parser must see. What
the parser is not shown always begins and ends between two chunks, so it sees a valid body that is only shorter; all that
is unusual (a chunk in pieces, the last chunk, trailers, broken framing) stays its business.
"""

from __future__ import annotations

import re

_SIZE = re.compile(rb"[0-9a-fA-F]{1,8}")
_LONGEST_LINE = 10
_MOST_SIZES = 4096

# First lines of chunks met so far, since the chunks of a stream have a few hundred sizes. 0: not for us.
_sizes: dict[bytes, int] = {}


def _size(line: bytes) -> int:
    """Bytes of a chunk with this first line; 0 for the last chunk, and for a line that is not a bare size."""
    size = _sizes.get(line)
    if size is None:
        size = int(line, 16) if _SIZE.fullmatch(line) else 0
        if len(_sizes) < _MOST_SIZES:
            _sizes[line] = size
    return size


class ChunkedBody:
    """Where the framing of one body stands. Begins between the head of the answer and its first chunk."""

    __slots__ = ("_lost", "_missing")

    def __init__(self) -> None:
        self._missing = 0
        """Bytes to come of a chunk that the parser has been given the beginning of."""
        self._lost = False
        """Whether the framing is followed no further: the parser sees everything from here on."""

    def whole(self, data: bytes) -> bytes | None:
        """The payload of a read that is exactly one chunk, as nearly all reads of a token stream are; else None."""
        if self._missing or self._lost:
            return None
        line_end = data.find(b"\r\n", 0, _LONGEST_LINE)
        size = _sizes.get(data[:line_end])
        if size and line_end + size + 4 == len(data) and data.endswith(b"\r\n"):
            return data[line_end + 2 : -2]
        return None

    def take(self, data: bytes) -> tuple[bytes, list[bytes], bytes]:
        """(before, payloads, after): bytes for the parser, then payloads of whole chunks, then bytes for the parser."""
        if self._lost:
            return data, [], b""
        before = start = min(self._missing, len(data))
        self._missing -= before
        payloads: list[bytes] = []
        while start < len(data):
            line_end = data.find(b"\r\n", start, start + _LONGEST_LINE)
            size = _size(data[start:line_end]) if line_end > start else 0
            end = line_end + size + 4
            if size and end > len(data):
                self._missing = end - len(data)
                break
            if not size or not data.endswith(b"\r\n", start, end):
                self._lost = True
                break
            payloads.append(data[line_end + 2 : end - 2])
            start = end
        return data[:before], payloads, data[start:]
