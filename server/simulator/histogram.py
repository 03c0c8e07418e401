"""Counts values in buckets as Prometheus has them: takes values, several at a time, gives cumulative counts. No names."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate


class Histogram:
    """Counts per bucket and the sum of all values."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, samples: int = 1) -> None:
        """Count `samples` equal values; a value on a bound belongs below it (`le`)."""
        self._counts[bisect_left(self._bounds, value)] += samples
        self._sum += value * samples

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, samples at or below it), as Prometheus wants them."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(bounds, (float(n) for n in accumulate(self._counts)), strict=True))

    @property
    def count(self) -> int:
        """How many values."""
        return sum(self._counts)

    @property
    def sum(self) -> float:
        """Sum of all values."""
        return self._sum
