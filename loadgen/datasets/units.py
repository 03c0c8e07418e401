"""Cuts a stream of bytes into the pieces that hold one row each, lines or elements of a JSON array; parses none of them.

A piece is in memory on its own, never the file. Blank lines and a byte order mark are passed over, and count as lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from loadgen.datasets.errors import Place

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LONGEST_UNIT = 64 << 20
"""Bytes. Whatever is longer is not one request but a file that is not what it is taken for."""
_CHUNK = 1 << 20

# A whole string, a bracket, or a quotation mark whose string goes on beyond what has been read. Possessive: a string of
# megabytes that does not end is given up at once.
_STRUCTURE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]|"', re.DOTALL)
_GAP = re.compile(rb"[ \t\r\n]*+")


@dataclass(frozen=True, slots=True)
class Unit:
    """The bytes of one row."""

    offset: int
    """Of the first byte, from the beginning of the file."""
    line: int
    """Where it begins, from 1."""
    data: bytes


def lines(source: BinaryIO, path: str) -> Iterator[Unit]:
    """The lines that are not blank, without their ends. Raises DatasetError when one is longer than `LONGEST_UNIT`."""
    offset, number = 0, 0
    while data := source.readline(LONGEST_UNIT + 1):
        number += 1
        if len(data) > LONGEST_UNIT:
            raise _too_long(Place(path, number))
        begins = offset
        offset += len(data)
        if number == 1 and data.startswith(BYTE_ORDER_MARK):
            data = data[len(BYTE_ORDER_MARK) :]
            begins += len(BYTE_ORDER_MARK)
        content = data.strip()
        if content:
            yield Unit(begins + len(data) - len(data.lstrip()), number, content)


def elements(source: BinaryIO, path: str) -> Iterator[Unit]:
    """The objects of the one JSON array that the file is. Raises DatasetError where it is not such an array."""
    array = _Array(source, path)
    array.skip_gap()
    if array.take() != b"[":
        raise array.place().refusal("The file is not a JSON array.", _ARRAY_HINT)
    array.skip_gap()
    if array.peek() == b"]":
        array.take()
    else:
        while True:
            yield array.element()
            array.skip_gap()
            between = array.take()
            if between == b"]":
                break
            if between != b",":
                raise array.place().refusal(
                    "The file ends within the array." if not between else "A comma or the end of the array is missing.",
                    "The file may have been cut short: get it again."
                    if not between
                    else "Mend the JSON in that line or above it.",
                )
            array.skip_gap()
    array.skip_gap()
    if array.peek():
        raise array.place().refusal("Something follows the end of the array.", "A file holds one array and no more.")


class _Array:
    """A window on the stream: what has been read and not been used yet."""

    def __init__(self, source: BinaryIO, path: str) -> None:
        self._source = source
        self._path = path
        self._buffer = source.read(_CHUNK)
        self._at = len(BYTE_ORDER_MARK) if self._buffer.startswith(BYTE_ORDER_MARK) else 0
        self._offset = 0
        """Of the buffer's first byte in the file."""
        self._line = 1

    def place(self) -> Place:
        return Place(self._path, self._line)

    def peek(self) -> bytes:
        """The next byte; empty at the end of the file."""
        if self._at == len(self._buffer):
            self._read_on()
        return self._buffer[self._at : self._at + 1]

    def take(self) -> bytes:
        byte = self.peek()
        self._at += len(byte)
        return byte

    def skip_gap(self) -> None:
        while self.peek():
            match = _GAP.match(self._buffer, self._at)
            assert match is not None  # it matches nothing at all, too
            self._line += match[0].count(b"\n")
            self._at = match.end()
            if self._at < len(self._buffer):
                return

    def element(self) -> Unit:
        if self.peek() != b"{":
            raise self.place().refusal(
                "The file ends within the array." if not self.peek() else "An element of the array is not an object.",
                _ARRAY_HINT,
            )
        depth, searched = 0, self._at
        while True:
            match = _STRUCTURE.search(self._buffer, searched)
            if match is None or match[0] == b'"':
                searched = len(self._buffer) if match is None else match.start()
                if len(self._buffer) - self._at > LONGEST_UNIT:
                    raise _too_long(self.place())
                searched -= self._at  # what lies before the element is dropped now
                if not self._read_on():
                    raise self.place().refusal(
                        "The element that begins here does not end.", "The file may have been cut short: get it again."
                    )
                continue
            searched = match.end()
            if match[0] in b"{[":
                depth += 1
            elif match[0] in b"}]":
                depth -= 1
                if depth == 0:
                    break
        unit = Unit(self._offset + self._at, self._line, self._buffer[self._at : searched])
        self._line += unit.data.count(b"\n")
        self._at = searched
        return unit

    def _read_on(self) -> bool:
        """Adds a piece to the buffer, dropping what was used; False at the end of the file."""
        more = self._source.read(_CHUNK)
        self._offset += self._at
        self._buffer = self._buffer[self._at :] + more
        self._at = 0
        return bool(more)


_ARRAY_HINT = "A ShareGPT file is an array of objects with `conversations`; other formats have one object a line."


def _too_long(place: Place) -> Exception:
    return place.refusal(
        f"What begins here is longer than {LONGEST_UNIT >> 20} MiB, which no request is.",
        "Check that the file has one request a line, or, for ShareGPT, one conversation an element.",
    )
