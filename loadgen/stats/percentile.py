"""Takes arrays of samples, gives nearest-rank percentiles; never interpolates and never averages percentiles.

The nearest-rank percentile is the smallest sample with at least that share of all samples at or below it, so every
published percentile is a value that was measured. No samples, no percentile: None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Percent = int | float
Values = NDArray[np.int64] | NDArray[np.float64]

_LOW_BITS = 44
"""Bits of a float left out of its range: ranges are 0.4 % wide."""
SAMPLES_BEYOND = 5
"""A percentile with fewer than this many samples above it says little: it is marked, not hidden."""


def _share(percent: Percent) -> Fraction:
    # Through the decimal text: 99.9 as a binary float is a little more than 99.9 and would move the rank by one.
    share = Fraction(str(percent)) / 100
    if not 0 < share <= 1:
        raise ValueError(f"percent must lie in (0, 100], not {percent}")
    return share


def rank(n: int, percent: Percent) -> int:
    """Rank (1 … n) of the nearest-rank percentile among `n` sorted samples: ceil(n · percent / 100)."""
    product = _share(percent) * n
    return max(1, -(-product.numerator // product.denominator))


def is_weak(n: int, percent: Percent) -> bool:
    """Whether fewer than five of `n` samples lie beyond the percentile: n · (1 − p) < 5."""
    return n * (1 - _share(percent)) < SAMPLES_BEYOND


def nearest_rank(values: Values, percents: Sequence[Percent]) -> list[float | int | None]:
    """Percentiles of `values` (any order, shape (n,)), one for each of `percents`; all None without samples."""
    n = int(values.size)
    if n == 0:
        return [None] * len(percents)
    places = [rank(n, percent) - 1 for percent in percents]
    partitioned = np.partition(values, sorted(set(places)))
    return [partitioned[place].item() for place in places]


def weighted_nearest_rank(
    values: Values, weights: NDArray[Any], percents: Sequence[Percent]
) -> list[float | int | None]:
    """The same where `values[i]` stands for `weights[i]` equal samples; weights ≥ 0, whole or fractional.

    With whole weights the result is exactly `nearest_rank(np.repeat(values, weights), percents)`. Values must not be
    negative (ValueError).
    """
    values = np.ascontiguousarray(values, np.float64)
    total = float(weights.sum())
    if total <= 0:
        return [None] * len(percents)
    if float(np.min(values)) < 0:
        raise ValueError("a duration must not be negative")
    # Ten million samples take seconds to sort. The upper bits of a float ≥ 0 order like its value, so they are counted
    # first, and only the one narrow range that holds the percentile is sorted.
    key = (values + 0.0).view(np.int64) >> _LOW_BITS
    key -= np.min(key)
    reached = np.cumsum(np.bincount(key, weights))
    whole = np.issubdtype(weights.dtype, np.integer)
    return [_within_range(values, weights, key, reached, _target(total, percent, whole)) for percent in percents]


def _target(total: float, percent: Percent, whole: bool) -> float:
    # A sum of fractions can end a rounding error short of the share that it stands for.
    return rank(int(total), percent) if whole else float(_share(percent)) * total * (1 - 1e-9)


def _within_range(
    values: NDArray[np.float64], weights: NDArray[Any], key: NDArray[np.int64], reached: NDArray[Any], target: float
) -> float:
    narrow = int(np.searchsorted(reached, target))
    below = float(reached[narrow - 1]) if narrow else 0.0
    chosen = key == narrow
    values, weights = values[chosen], weights[chosen]
    order = np.argsort(values)
    place = int(np.searchsorted(below + np.cumsum(weights[order]), target))
    # The two sums round differently in their last bits: the last sample of the range is then the one meant.
    return float(values[order[min(place, order.size - 1)]])


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Durations in nanoseconds, shape (n,); `weights[i]` says how many equal samples `values_ns[i]` stands for."""

    values_ns: Values
    weights: NDArray[Any] | None = None

    @property
    def n(self) -> int:
        """How many samples; fractional weights are rounded to the nearest whole number."""
        return int(self.values_ns.size) if self.weights is None else round(float(self.weights.sum()))

    def mean_ns(self) -> float | None:
        """Arithmetic mean; None without samples."""
        if self.weights is None:
            return float(self.values_ns.mean()) if self.values_ns.size else None
        total = float(self.weights.sum())
        return float(np.dot(self.values_ns, self.weights)) / total if total > 0 else None

    def max_ns(self) -> float | int | None:
        """The largest sample; None without samples."""
        measured = self.values_ns if self.weights is None else self.values_ns[self.weights > 0]
        return np.max(measured).item() if measured.size else None

    def percentiles_ns(self, percents: Sequence[Percent]) -> list[float | int | None]:
        """Nearest-rank percentiles; all None without samples."""
        if self.weights is None:
            return nearest_rank(self.values_ns, percents)
        return weighted_nearest_rank(self.values_ns, self.weights, percents)
