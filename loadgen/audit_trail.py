"""Files of an audited run: which TCP segments came from the target and when, and where in its stream each event ended.

`records/segments.audit` is written by the capturing process, `records/worker-<n>.audit` by each worker. Both are a magic
line and blocks of fixed rows, appended with one write each; a torn last block is left for the next read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEGMENT = np.dtype(
    [("stamp_ns", "<i8"), ("seq", "<u4"), ("length", "<u4"), ("port", "<u2"), ("peer", "u1"), ("syn", "u1")]
)
"""One segment that arrived: its instant on the monotonic clock, sequence number, payload bytes, the port of this host,
the place of the sender's address in the list of the target's addresses, and whether it opened the connection."""
Segments = NDArray[Any]
"""shape (segments,) of `SEGMENT`."""

UNKNOWN_PEER = 255
"""Peer of a connection to an address that is not in the list; no segment has it."""

_SEGMENTS_MAGIC = b"loadgen segments 1\n"
_ANSWERS_MAGIC = b"loadgen answers 1\n"
_SEGMENTS_HEAD = struct.Struct("<IqQQQ")
_ANSWERS_HEAD = struct.Struct("<II")
_ANSWER = np.dtype([("level", "<i4"), ("index", "<i8"), ("port", "<u2"), ("peer", "u1"), ("events", "<u4")])


@dataclass(frozen=True, slots=True)
class Capture:
    """How the capture stands; counts are since it began."""

    covered_ns: int
    """Everything that arrived before this instant of the monotonic clock is in the file, or in one of the counts."""
    ring_drops: int = 0
    """Packets for which the kernel found no room in the ring."""
    refused_stamps: int = 0
    """Segments left out because the wall clock was stepped around their stamp."""
    beyond_limit: int = 0
    """Segments left out because the file had reached its limit."""

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.ring_drops, self.refused_stamps, self.beyond_limit


@dataclass(frozen=True, slots=True, eq=False)
class HeardAnswer:
    """Where one request's answer lies in its TCP connection."""

    level: int
    index: int
    port: int
    """Of this host's end of the connection."""
    peer: int
    """Place of the other end's address in the list of the target's addresses, or `UNKNOWN_PEER`."""
    ends: NDArray[np.int64]
    """shape (events,): bytes that the connection had brought when each token-carrying event was complete."""


@dataclass(frozen=True, slots=True, eq=False)
class AuditTrail:
    """What an audited run knows of one level beside its records; counts are of the level's time."""

    segments: Segments
    """Of the level's time, and the openings of all connections."""
    answers: Mapping[tuple[int, int], HeardAnswer]
    """By (level, index) of the request."""
    ring_drops: int = 0
    refused_stamps: int = 0
    beyond_limit: int = 0


class SegmentsWriter:
    """Appends to the file of segments, which it makes, up to `most_bytes`."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        """Raises FileExistsError when the file is there already."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._most_bytes = most_bytes
        self._bytes = 0
        self._beyond_limit = 0
        self._write(_SEGMENTS_MAGIC)

    def append(self, segments: Segments, *, covered_ns: int, ring_drops: int, refused_stamps: int) -> None:
        """Writes the segments and how the capture stands. Raises OSError when the disk is full."""
        if self._bytes + segments.nbytes > self._most_bytes:
            self._beyond_limit += len(segments)
            segments = segments[:0]
        head = _SEGMENTS_HEAD.pack(len(segments), covered_ns, ring_drops, refused_stamps, self._beyond_limit)
        self._write(head + segments.tobytes())

    def _write(self, data: bytes) -> None:
        _write_all(self._fd, data)
        self._bytes += len(data)

    def close(self) -> None:
        os.close(self._fd)


class SegmentsReader:
    """Reads the file of segments as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.capture: Capture | None = None
        """As the latest block says; None before the first."""

    def blocks(self) -> Iterator[Segments]:
        """The segments of every complete block since the last call. Raises ValueError when it is another file."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            if not self._offset and not _is_begun(file.read(len(_SEGMENTS_MAGIC)), _SEGMENTS_MAGIC, self._path):
                return
            self._offset = self._offset or len(_SEGMENTS_MAGIC)
            file.seek(self._offset)
            while len(head := file.read(_SEGMENTS_HEAD.size)) == _SEGMENTS_HEAD.size:
                count, *stands = _SEGMENTS_HEAD.unpack(head)
                rows = file.read(count * SEGMENT.itemsize)
                if len(rows) < count * SEGMENT.itemsize:
                    return
                self._offset = file.tell()
                self.capture = Capture(*stands)
                yield np.frombuffer(rows, SEGMENT)


class AnswersWriter:
    """Appends to a worker's file of answers, which it makes."""

    def __init__(self, path: Path) -> None:
        """Raises FileExistsError when the file is there already."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        _write_all(self._fd, _ANSWERS_MAGIC)

    def append(self, answers: Sequence[HeardAnswer]) -> None:
        """Writes one block. Raises OSError when the disk is full."""
        rows = np.array([(a.level, a.index, a.port, a.peer, len(a.ends)) for a in answers], _ANSWER)
        ends = np.concatenate([*(a.ends for a in answers), np.empty(0, np.int64)]).astype("<i8")
        _write_all(self._fd, _ANSWERS_HEAD.pack(len(rows), len(ends)) + rows.tobytes() + ends.tobytes())

    def close(self) -> None:
        os.close(self._fd)


class AnswersReader:
    """Reads a worker's file of answers as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def answers(self) -> Iterator[HeardAnswer]:
        """Every answer of the complete blocks since the last call. Raises ValueError when it is another file."""
        with self._path.open("rb") as file:
            if not self._offset and not _is_begun(file.read(len(_ANSWERS_MAGIC)), _ANSWERS_MAGIC, self._path):
                return
            self._offset = self._offset or len(_ANSWERS_MAGIC)
            file.seek(self._offset)
            while len(head := file.read(_ANSWERS_HEAD.size)) == _ANSWERS_HEAD.size:
                count, total = _ANSWERS_HEAD.unpack(head)
                block = file.read(count * _ANSWER.itemsize + 8 * total)
                if len(block) < count * _ANSWER.itemsize + 8 * total:
                    return
                self._offset = file.tell()
                rows = np.frombuffer(block, _ANSWER, count)
                ends = np.frombuffer(block, "<i8", total, count * _ANSWER.itemsize).astype(np.int64)
                last = 0
                for level, index, port, peer, events in rows.tolist():
                    yield HeardAnswer(level, index, port, peer, ends[last : last + events])
                    last += events


def _is_begun(found: bytes, magic: bytes, path: Path) -> bool:
    """Whether the whole magic line is there already."""
    if not magic.startswith(found):
        raise ValueError(f"{path} is not a file of an audited run")
    return found == magic


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
