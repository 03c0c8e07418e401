"""Takes integer durations, gives a mergeable log-linear histogram with a bounded relative error; never drops a value.

The index is HdrHistogram's: 128 equal sub-buckets in every octave, so a bucket's middle is within 1/256 (0.39 %) of
every value in the bucket; below 256 ns it is exact. Counts are integers, so merging is adding arrays and is
associative, commutative and loses nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.stats.percentile import Percent, rank

_SUB_BITS = 7
_TOP_BITS = 44
"""Values reach up to 2**44 ns (4.9 hours)."""
_BUCKETS = (_TOP_BITS - _SUB_BITS + 1) << _SUB_BITS

RELATIVE_ERROR = 1 / (1 << (_SUB_BITS + 1))
"""Bound of |percentile − true nearest-rank percentile| / true percentile."""
MAX_VALUE_NS = (1 << _TOP_BITS) - 1


def _bucket(values: NDArray[np.int64]) -> NDArray[np.int64]:
    # frexp gives the bit length exactly for values below 2**53; shift 0 keeps the first two octaves exact.
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(bits - 1 - _SUB_BITS, 0)
    return (shift << _SUB_BITS) + (values >> shift)


def _middles() -> NDArray[np.float64]:
    bucket = np.arange(_BUCKETS, dtype=np.int64)
    shift = np.maximum((bucket >> _SUB_BITS) - 1, 0)
    lowest = (bucket - (shift << _SUB_BITS)) << shift
    middles: NDArray[np.float64] = lowest + ((1 << shift) - 1) / 2
    return middles


_MIDDLE = _middles()


class LogLinearHistogram:
    """Counts of durations in nanoseconds; min, max, n and sum are exact beside the buckets."""

    __slots__ = ("_counts", "max_ns", "min_ns", "n", "sum_ns")

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(_BUCKETS, np.int64)
        self.n = 0
        self.sum_ns = 0
        self.min_ns: int | None = None
        self.max_ns: int | None = None

    def add(self, values_ns: NDArray[np.int64], weights: NDArray[np.int64] | None = None) -> None:
        """Add durations, shape (n,); `weights[i]` whole samples of `values_ns[i]` each (1 without weights).

        A gap g that brought k tokens is k samples of g / k. Raises ValueError for a value outside 0 … `MAX_VALUE_NS`
        and for a weight that is negative or not whole.
        """
        values = np.asarray(values_ns)
        counts = np.ones(values.shape, np.int64) if weights is None else np.asarray(weights)
        if not (np.issubdtype(values.dtype, np.integer) and np.issubdtype(counts.dtype, np.integer)):
            raise ValueError("durations are whole nanoseconds and weights whole numbers of samples")
        if values.shape != counts.shape:
            raise ValueError(f"one weight a value: {values.shape} values, {counts.shape} weights")
        if counts.size and int(np.min(counts)) < 0:
            raise ValueError("a weight must not be negative")
        values = values[counts > 0].astype(np.int64)
        counts = counts[counts > 0].astype(np.int64)
        if values.size == 0:
            return
        lowest, highest = int(np.min(values)), int(np.max(values))
        if lowest < 0 or highest > MAX_VALUE_NS:
            raise ValueError(f"a duration must lie in 0 … {MAX_VALUE_NS} ns, not {lowest if lowest < 0 else highest}")
        np.add.at(self._counts, _bucket(values), counts)
        self.n += int(counts.sum())
        self.sum_ns += int(np.dot(values, counts))
        self._widen(lowest, highest)

    def merge(self, other: LogLinearHistogram) -> None:
        """Add the samples of `other`, as if they had been added here."""
        self._counts += other._counts
        self.n += other.n
        self.sum_ns += other.sum_ns
        if other.min_ns is not None and other.max_ns is not None:
            self._widen(other.min_ns, other.max_ns)

    def _widen(self, lowest: int, highest: int) -> None:
        self.min_ns = lowest if self.min_ns is None else min(self.min_ns, lowest)
        self.max_ns = highest if self.max_ns is None else max(self.max_ns, highest)

    def percentile_ns(self, percent: Percent) -> float | None:
        """Nearest-rank percentile to within `RELATIVE_ERROR`, never outside min … max; None without samples."""
        if self.min_ns is None or self.max_ns is None:
            return None
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank(self.n, percent)))
        return min(max(float(_MIDDLE[bucket]), float(self.min_ns)), float(self.max_ns))

    def mean_ns(self) -> float | None:
        """Exact mean; None without samples."""
        return self.sum_ns / self.n if self.n else None

    def to_wire(self) -> dict[str, Any]:
        """A small dict of integers, None and bytes, for msgpack: only the buckets that are not empty."""
        filled = np.flatnonzero(self._counts)
        return {
            "version": 1,
            "sum_ns": self.sum_ns,
            "min_ns": self.min_ns,
            "max_ns": self.max_ns,
            "buckets": filled.astype("<u2").tobytes(),
            "counts": self._counts[filled].astype("<i8").tobytes(),
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> LogLinearHistogram:
        """The histogram that `to_wire` was called on. Raises ValueError for a form that this version does not know."""
        if wire.get("version") != 1:
            raise ValueError(f"histogram of version {wire.get('version')!r}; this program reads version 1")
        histogram = cls()
        buckets = np.frombuffer(wire["buckets"], "<u2").astype(np.int64)
        counts = np.frombuffer(wire["counts"], "<i8").astype(np.int64)
        if buckets.size != counts.size or (buckets.size and int(np.max(buckets)) >= _BUCKETS):
            raise ValueError("histogram with broken buckets")
        histogram._counts[buckets] = counts
        histogram.n = int(counts.sum())
        histogram.sum_ns = wire["sum_ns"]
        histogram.min_ns = wire["min_ns"]
        histogram.max_ns = wire["max_ns"]
        return histogram

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogLinearHistogram):
            return NotImplemented
        same_edges = (self.sum_ns, self.min_ns, self.max_ns) == (other.sum_ns, other.min_ns, other.max_ns)
        return same_edges and bool(np.array_equal(self._counts, other._counts))

    __hash__ = None  # type: ignore[assignment]
