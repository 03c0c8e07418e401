"""The worker's side of the live metrics: takes durations, gives cumulative bucket counts to send; never a rate.

A snapshot is the whole truth of one worker since it started, so a lost one costs nothing and merging is adding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from loadgen.record import RequestRecord
from loadgen.stats.columns import columns
from loadgen.stats.latencies import chunk_gaps, itl_gaps, per_request_ns

LIVE_LATENCIES = ("ttft", "itl", "tpot", "e2el")

# Ten edges a decade (Renard's R10), 0.1 ms … 1000 s. They are part of the metrics' contract: a changed edge breaks
# every stored series and every recording rule.
_R10 = (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0)
EDGES_S: tuple[float, ...] = (*(float(f"{m}e{e}") for e in range(-4, 3) for m in _R10), 1000.0)
_EDGES_NS = np.array([round(edge * 1e9) for edge in EDGES_S], np.int64)


class LiveHistograms:
    """Cumulative counts of one latency in the buckets of `EDGES_S`; the last bucket has no upper edge."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(EDGES_S) + 1, np.float64)
        self._sum_ns = 0.0

    def observe_many(self, values_ns: ArrayLike, weights: ArrayLike | None = None) -> None:
        """Count durations in nanoseconds, shape (n,); `weights[i]` samples each, whole or fractional (1 without)."""
        values = np.asarray(values_ns)
        weight = np.ones(values.shape) if weights is None else np.asarray(weights, np.float64)
        # side="left" puts a value that equals an edge under it: Prometheus' `le` is inclusive.
        bucket = np.searchsorted(_EDGES_NS, values, side="left")
        self._counts += np.bincount(bucket, weight, self._counts.size)
        self._sum_ns += float(np.dot(values, weight))

    def snapshot(self) -> dict[str, Any]:
        """{counts: one whole number a bucket, sum_ns}; fractional weights are rounded in the running total."""
        reached = np.rint(np.cumsum(self._counts)).astype(np.int64)
        return {"counts": np.diff(reached, prepend=0).tolist(), "sum_ns": round(self._sum_ns)}


class LiveLatencies:
    """TTFT, ITL, TPOT and E2E latency of everything that a worker has finished since it started."""

    def __init__(self) -> None:
        self._histograms = {latency: LiveHistograms() for latency in LIVE_LATENCIES}

    def add(self, records: Sequence[RequestRecord]) -> None:
        """Count finished requests, with the level object's own definitions; a batch costs little more than one."""
        if not records:
            return
        c = columns(records)
        for latency, values_ns in per_request_ns(c).items():
            if latency in LIVE_LATENCIES:
                self._histograms[latency].observe_many(values_ns[~np.isnan(values_ns)])
        gaps = itl_gaps(c, chunk_gaps(c))
        itl = gaps.token_samples(gaps.ends_gap)
        self._histograms["itl"].observe_many(itl.values_ns, itl.weights)

    def snapshot(self) -> dict[str, Any]:
        """{ttft, itl, tpot, e2el: {counts, sum_ns}}, whole numbers only."""
        return {latency: histogram.snapshot() for latency, histogram in self._histograms.items()}
