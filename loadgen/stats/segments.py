"""Takes the TCP segments of a capture, gives when each byte of a connection had arrived in order; pure.

A byte is there when it and every byte before it have arrived: a segment out of order or sent again counts from the
instant at which the last hole before its end was filled. Sequence numbers wrap around at 2³²; they are unwrapped by the
distance to the segment before.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.audit_trail import Segments

Instants = NDArray[np.int64]
NOT_FOUND = -1
_WRAP = 1 << 32


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """How far a connection's stream was complete, and since when: a staircase."""

    start: int
    """Bytes of the stream before the first that was captured."""
    front: NDArray[np.int64]
    """shape (steps,), never decreasing: the stream was complete up to here …"""
    since_ns: Instants
    """… from this instant on."""
    holes: NDArray[np.int64]
    """shape (holes, 2): from … to of bytes that were not captured, ascending."""
    stamps_ns: Instants
    offsets: NDArray[np.int64]
    """Of the segments in order of arrival: where each one's instant and first byte lie."""

    def of(self, ends: NDArray[np.int64], about_ns: int) -> Instants:
        """shape as `ends` (bytes of the stream, ascending): when the stream was complete up to there; `NOT_FOUND` where
        the last byte was not captured. `about_ns`: when the first of them came, which tells how often the sequence
        number had wrapped around before what is known of the connection."""
        found = np.full(len(ends), NOT_FOUND, np.int64)
        if not len(self.front) or not len(ends):
            return found
        near = self.offsets[min(int(np.searchsorted(self.stamps_ns, about_ns)), len(self.offsets) - 1)]
        ends = ends - round((int(ends[0]) - int(near)) / _WRAP) * _WRAP
        step = np.searchsorted(self.front, ends, side="left")
        known = (ends > self.start) & (step < len(self.front))
        if len(self.holes):
            hole = np.searchsorted(self.holes[:, 0], ends - 1, side="right") - 1
            known &= (hole < 0) | (ends > self.holes[hole, 1])
        found[known] = self.since_ns[step[known]]
        return found


def arrivals(initial_seq: int, seq: NDArray[np.uint32], length: NDArray[np.uint32], stamp_ns: Instants) -> Arrivals:
    """The staircase of one connection. `initial_seq`: of its SYN; the others shape (segments,), payload only."""
    order = np.argsort(stamp_ns, kind="stable")
    stamp_ns = stamp_ns[order]
    numbers = np.concatenate([np.array([(initial_seq + 1) % _WRAP], np.uint32), seq[order]])
    offsets = np.cumsum(np.diff(numbers).view(np.int32).astype(np.int64))
    ends = offsets + length[order]
    if not len(offsets):
        nothing = np.empty(0, np.int64)
        return Arrivals(0, nothing, nothing, np.empty((0, 2), np.int64), nothing, nothing)
    front = np.maximum.accumulate(ends)
    in_order = bool((offsets[1:] <= front[:-1]).all()) and int(offsets[0]) == int(offsets.min())
    if in_order:
        return Arrivals(int(offsets[0]), front, stamp_ns, np.empty((0, 2), np.int64), stamp_ns, offsets)
    holes = _holes(offsets, ends)
    front, since_ns = _fill_in_order(offsets, ends, stamp_ns, holes)
    return Arrivals(int(offsets.min()), front, since_ns, holes, stamp_ns, offsets)


def _holes(offsets: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Spans between the first and the last byte that no segment covers. The program got them, so the capture has not."""
    order = np.argsort(offsets, kind="stable")
    reached = np.maximum.accumulate(ends[order])[:-1]
    following = offsets[order][1:]
    missing = following > reached
    return np.stack([reached[missing], following[missing]], axis=1)


def _fill_in_order(
    offsets: NDArray[np.int64], ends: NDArray[np.int64], stamp_ns: Instants, holes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Instants]:
    # A hole of the capture counts as filled just before the first segment from beyond it.
    pieces = [(int(s), 1, int(a), int(b)) for s, a, b in zip(stamp_ns, offsets, ends, strict=True)]
    pieces += [(int(stamp_ns[offsets >= b].min()), 0, int(a), int(b)) for a, b in holes]
    reached = int(offsets.min())
    waiting: list[tuple[int, int]] = []
    front, since = [], []
    for stamp, _, start, end in sorted(pieces):
        heapq.heappush(waiting, (start, end))
        while waiting and waiting[0][0] <= reached:
            reached = max(reached, heapq.heappop(waiting)[1])
        front.append(reached)
        since.append(stamp)
    return np.array(front, np.int64), np.array(since, np.int64)


class Connections:
    """Finds the staircase of any connection among the segments of a capture."""

    def __init__(self, segments: Segments) -> None:
        key = segments["port"].astype(np.int64) << 8 | segments["peer"]
        order = np.lexsort((segments["stamp_ns"], key))
        self._segments = segments[order]
        keys, first, count = np.unique(key[order], return_index=True, return_counts=True)
        self._rows = {k: slice(i, i + n) for k, i, n in zip(keys.tolist(), first.tolist(), count.tolist(), strict=True)}
        self._known: dict[tuple[int, int], Arrivals] = {}

    def arrivals(self, port: int, peer: int, about_ns: int) -> Arrivals | None:
        """Of the connection that this port had to this peer at that instant; None when its opening was not captured."""
        key = port << 8 | peer
        if key not in self._rows:
            return None
        rows = self._segments[self._rows[key]]
        opened = np.flatnonzero(rows["syn"])
        # A SYN sent again has the same number; another number is another connection over the same port.
        opened = opened[np.diff(rows["seq"][opened].astype(np.int64), prepend=NOT_FOUND) != 0]
        number = int(np.searchsorted(rows["stamp_ns"][opened], about_ns, side="right")) - 1
        if number < 0:
            return None
        if (key, number) not in self._known:
            last = int(opened[number + 1]) if number + 1 < len(opened) else len(rows)
            data = rows[int(opened[number]) : last]
            data = data[data["syn"] == 0]
            self._known[key, number] = arrivals(
                int(rows["seq"][opened[number]]), data["seq"], data["length"], data["stamp_ns"]
            )
        return self._known[key, number]
