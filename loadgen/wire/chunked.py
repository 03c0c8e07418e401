"""Follows the chunked framing of one answer's body, so that whole chunks need not go through an HTTP parser.

Takes the bytes of each read; gives the payload of the chunks that are complete in it, and what a parser must see. What
the parser is not shown always begins and ends between two chunks, so it sees a valid body that is only shorter; all that
is unusual (a chunk in pieces, the last chunk, trailers, broken framing) stays its business.
"""

from __future__ import annotations

import itertools
import re

_SIZE = re.compile(rb"[0-9a-fA-F]{1,8}")
_LONGEST_LINE = 10
_MOST_SIZES = 4096

# Of what has been met so far, since the chunks of a stream have a few hundred sizes: the size that a chunk's first line
# tells (0: not for us), and the first line of a chunk that fills a read of some length.
_sizes: dict[bytes, int] = {}
_first_lines: dict[int, bytes] = {}


def _size(line: bytes) -> int:
    """Bytes of a chunk with this first line; 0 for the last chunk, and for a line that is not a bare size."""
    size = _sizes.get(line)
    if size is None:
        size = int(line, 16) if _SIZE.fullmatch(line) else 0
        if len(_sizes) < _MOST_SIZES:
            _sizes[line] = size
    return size


def _first_line(length: int) -> bytes:
    """The first line, with its end, that makes a chunk of this many bytes in all, as servers write it; empty when none
    does: the last chunk has no byte."""
    digits = next(digits for digits in itertools.count(1) if length - digits - 4 < 16**digits)
    size = length - digits - 4
    line = b"%0*x\r\n" % (digits, size) if size > 0 else b""
    if len(_first_lines) < _MOST_SIZES:
        _first_lines[length] = line
    return line


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
        line = _first_lines.get(len(data)) or _first_line(len(data))
        if line and data.startswith(line) and data.endswith(b"\r\n"):
            return data[len(line) : -2]
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
