"""The schedule of a level: plain data that every worker is told, the stream that it stands for, and a worker's share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loadgen.arrivals.gaps import gaps_of
from loadgen.arrivals.pattern import Pattern
from loadgen.arrivals.processes import (
    Arrivals,
    BurstArrivals,
    MergedArrivals,
    PacedArrivals,
    ReplayedArrivals,
)
from loadgen.arrivals.rate import Rate


@dataclass(frozen=True, slots=True)
class Schedule:
    """All arrivals of one level, a function of these values alone: any number of workers makes the same process."""

    pattern: Pattern
    burstiness: float
    """Shape of gamma gaps; 1 is Poisson."""
    times_s: tuple[float, ...]
    rates: tuple[float, ...]
    """Requests a second at those times; `rate` is that of the arrivals."""
    seed: int
    level: int
    burst_size: int | None = None
    burst_period_s: float | None = None
    timestamps_s: tuple[float, ...] | None = None
    """Of a replayed trace, in place of pattern and rate."""
    speed: float = 1.0
    """How much faster than recorded the trace is replayed."""
    turns: float = 1.0
    """Requests that an arrival stands for on average: where it is a conversation, its turns."""

    @property
    def rate(self) -> Rate:
        """Of the arrivals."""
        return Rate(self.times_s, tuple(rate / self.turns for rate in self.rates))

    @property
    def length_s(self) -> float:
        """How long its course is; 0 for a steady rate, with or without bursts."""
        if self.timestamps_s is not None:
            return (self.timestamps_s[-1] - self.timestamps_s[0]) / self.speed if self.timestamps_s else 0.0
        return self.rate.length_s

    @property
    def stationary(self) -> bool:
        """Whether the load is meant to be the same throughout, so that it can be steady."""
        return self.timestamps_s is None and len(self.times_s) == 1 and self.burst_size is None

    @property
    def gap_variation(self) -> float:
        """Coefficient of variation of the gaps of a steady rate."""
        if self.pattern == "constant":
            return 0.0
        return 1.0 if self.pattern == "poisson" else 1 / math.sqrt(self.burstiness)

    def asked_rate(self) -> float:
        """Requests a second on average over its course, without bursts."""
        if self.timestamps_s is not None:
            return (len(self.timestamps_s) - 1) / self.length_s if self.length_s else 0.0
        return self.rate.mean(0.0, self.length_s) * self.turns if self.length_s else self.rates[-1]

    def arrivals(self) -> Arrivals:
        """The process."""
        if self.timestamps_s is not None:
            return ReplayedArrivals(self.timestamps_s, self.speed)
        gaps = gaps_of(self.pattern, self.burstiness, seed=self.seed, level=self.level)
        paced = PacedArrivals(gaps, self.rate)
        if self.burst_size is None or self.burst_period_s is None:
            return paced
        return MergedArrivals((paced, BurstArrivals(self.burst_size, self.burst_period_s)))

    def share(self, position: int, of: int) -> Iterator[float]:
        """Offsets of the arrivals position, position + of, position + 2 · of, …: what one of `of` workers sends."""
        return itertools.islice(self.arrivals().offsets(), position, None, of)

    def count_between(self, start_s: float, end_s: float) -> int:
        """Arrivals in [start, end)."""
        until = itertools.takewhile(lambda offset: offset < end_s, self.arrivals().offsets())
        return sum(offset >= start_s for offset in until)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a message and a journal."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schedule:
        """What `to_dict` was called on, also after JSON."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**values)
