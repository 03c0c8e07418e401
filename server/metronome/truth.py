"""The true instants: takes finished answers, appends binary records to a file; `load_truth` reads them as arrays.

File: magic, `HEADER`; then for every answer `RECORD`, the client's request id, and the instants. Little endian.
Instants are CLOCK_MONOTONIC nanoseconds of this machine. A torn end is ignored.
"""

from __future__ import annotations

import contextlib
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MAGIC = b"metronm1"
HEADER = struct.Struct("<qq")
"""TTFT and gap between tokens, in nanoseconds."""
RECORD = struct.Struct("<qqqqIHH")
"""Number, arrival of the request, its reading, tokens wanted; sends; bytes of the request id; flags."""

NEW_CONNECTION = 1
COMPLETE = 2
HELD_BACK = 4
STREAMED = 8
KERNEL_ARRIVAL = 16

_FLUSH_BYTES = 65_536
"""Small, so that one write costs less than a few sends."""


class TruthLog:
    """One file, begun anew."""

    def __init__(self, path: Path, *, ttft_ns: int, itl_ns: int) -> None:
        """OSError when the file cannot be written."""
        self._file = path.open("wb", buffering=0)
        self._kept = bytearray(MAGIC + HEADER.pack(ttft_ns, itl_ns))
        self.flush()

    def add(
        self,
        *,
        number: int,
        request_id: bytes,
        arrived_ns: int,
        read_ns: int,
        tokens: int,
        sends_ns: list[int],
        flags: int,
    ) -> None:
        """Keeps one answer that has ended, complete or not."""
        self._kept += RECORD.pack(number, arrived_ns, read_ns, tokens, len(sends_ns), len(request_id), flags)
        self._kept += request_id
        self._kept += array("q", sends_ns).tobytes()
        if len(self._kept) >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes what is kept."""
        if self._kept:
            self._file.write(self._kept)
            self._kept.clear()

    def close(self) -> None:
        """Writes what is kept and closes the file; a full disk is not worth an unclean end."""
        with contextlib.suppress(OSError):
            self.flush()
        self._file.close()


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """What a metronome did. Arrays of shape (answers,) unless said otherwise; in the order in which answers ended."""

    ttft_ns: int
    itl_ns: int
    numbers: NDArray[np.int64]
    """From 0, in the order in which requests were read."""
    request_ids: list[str]
    """X-Request-Id of the client; empty where it sent none."""
    arrived_ns: NDArray[np.int64]
    """Arrival of the request's last byte as the kernel stamped it; `read_ns` where it did not (see `flags`)."""
    read_ns: NDArray[np.int64]
    """When the server had read the whole request."""
    tokens: NDArray[np.int64]
    """Tokens that the answer was to have."""
    flags: NDArray[np.int64]
    starts: NDArray[np.int64]
    """shape (answers + 1,): the sends of answer i are `sends_ns[starts[i]:starts[i + 1]]`."""
    sends_ns: NDArray[np.int64]
    """shape (sends,): just before the `send` of each token-carrying event."""

    def sends_of(self, i: int) -> NDArray[np.int64]:
        """Instants of the token-carrying sends of answer i."""
        return self.sends_ns[self.starts[i] : self.starts[i + 1]]

    def has(self, flag: int) -> NDArray[np.bool_]:
        """Which answers have a flag: NEW_CONNECTION, COMPLETE, HELD_BACK (the client's window was full), …"""
        found: NDArray[np.bool_] = (self.flags & flag) != 0
        return found

    def lateness_ns(self) -> NDArray[np.int64]:
        """shape (sends,): how long after its due time each token of a stream was sent; 0 for answers in one piece."""
        late_ns = np.zeros(len(self.sends_ns), np.int64)
        remaining = np.where(self.has(STREAMED), np.diff(self.starts), 0)
        due_ns = self.arrived_ns + self.ttft_ns
        position = 0
        while (some := np.flatnonzero(remaining > position)).size:
            at = self.starts[some] + position
            sent_ns = self.sends_ns[at]
            late_ns[at] = sent_ns - due_ns[some]
            due_ns[some] = next_due_ns(due_ns[some], sent_ns, self.itl_ns)
            position += 1
        return late_ns


def next_due_ns(due_ns: NDArray[np.int64], sent_ns: NDArray[np.int64], itl_ns: int) -> NDArray[np.int64]:
    """The pace of a stream, as `Metronome` keeps it: a late token does not delay the next, unless that would follow it
    within half a gap. So there are no bursts: a server that computes tokens one by one makes none either."""
    return np.maximum(due_ns + itl_ns, sent_ns + itl_ns // 2)


def load_truth(path: Path) -> Truth:
    """Reads a log, of a metronome that has ended or still runs. Raises OSError, and ValueError when it is not one."""
    data = path.read_bytes()
    at = len(MAGIC) + HEADER.size
    if data[: len(MAGIC)] != MAGIC or len(data) < at:
        raise ValueError(f"{path} is not a metronome's truth log")
    ttft_ns, itl_ns = HEADER.unpack_from(data, len(MAGIC))
    fields: list[tuple[int, int, int, int, int]] = []
    request_ids: list[str] = []
    sends: list[NDArray[np.int64]] = []
    while at + RECORD.size <= len(data):
        number, arrived_ns, read_ns, tokens, count, id_bytes, flags = RECORD.unpack_from(data, at)
        id_at = at + RECORD.size
        sends_at = id_at + id_bytes
        at = sends_at + 8 * count
        if at > len(data):
            break
        fields.append((number, arrived_ns, read_ns, tokens, flags))
        request_ids.append(data[id_at:sends_at].decode("latin-1"))
        sends.append(np.frombuffer(data[sends_at:at], "<i8"))
    columns = np.array(fields, np.int64).reshape(-1, 5).T
    counts = np.fromiter(map(len, sends), np.int64, len(sends))
    return Truth(
        ttft_ns=ttft_ns,
        itl_ns=itl_ns,
        numbers=columns[0],
        request_ids=request_ids,
        arrived_ns=columns[1],
        read_ns=columns[2],
        tokens=columns[3],
        flags=columns[4],
        starts=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
        sends_ns=np.concatenate(sends) if sends else np.empty(0, np.int64),
    )
