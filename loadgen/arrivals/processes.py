"""Arrival processes: each answers "when is the next one?" as an ascending stream of offsets in seconds from the start."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loadgen.arrivals.gaps import Gaps
from loadgen.arrivals.rate import Rate


class Arrivals(Protocol):
    """A schedule."""

    def offsets(self) -> Iterator[float]:
        """Seconds after the start of every arrival, ascending; it may never end."""
        ...


@dataclass(frozen=True, slots=True)
class PacedArrivals:
    """Gaps of a pattern at a rate that may change.

    The n-th arrival is where the rate's integral reaches the sum of the first n gaps, so the number of arrivals until
    any instant is right however the rate changes. With exponential gaps it is a Poisson process of that intensity
    (Çinlar, *Introduction to Stochastic Processes*, 1975, ch. 4.7).
    """

    gaps: Gaps
    rate: Rate

    def offsets(self) -> Iterator[float]:
        reached = 0.0
        for block in self.gaps.blocks():
            counts = reached + np.cumsum(block)
            reached = float(counts[-1])
            for offset in self.rate.instants(counts).tolist():
                if offset == float("inf"):
                    return
                yield offset


@dataclass(frozen=True, slots=True)
class BurstArrivals:
    """`size` arrivals at once, every `period_s`; the first after one period."""

    size: int
    period_s: float

    def offsets(self) -> Iterator[float]:
        for burst in itertools.count(1):
            yield from itertools.repeat(burst * self.period_s, self.size)


@dataclass(frozen=True, slots=True)
class ReplayedArrivals:
    """The instants of a trace, in seconds, the first at offset 0, `speed` times as fast.

    `offsets` raises ValueError, naming the entry, where the trace goes back in time.
    """

    timestamps_s: Iterable[float]
    speed: float = 1.0

    def offsets(self) -> Iterator[float]:
        first = latest = None
        for number, at in enumerate(self.timestamps_s, 1):
            if first is None or latest is None:
                first = latest = at
            if at < latest:
                raise ValueError(
                    f"entry {number} of the trace is at {at:g} s, before the one ahead of it ({latest:g} s)"
                )
            latest = at
            yield (at - first) / self.speed


@dataclass(frozen=True, slots=True)
class MergedArrivals:
    """Several processes over each other."""

    processes: tuple[Arrivals, ...]

    def offsets(self) -> Iterator[float]:
        return heapq.merge(*(process.offsets() for process in self.processes))
