"""Takes a histogram as it stood at two instants, gives what was observed between them; pure.

A server keeps no more of an observation than its bucket, so a quantile is a range: it lies above `low` and at or below
`high`. The mean is exact, since sum and count are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from loadgen.server_metrics.sample import Buckets, ServerSample

QUANTILES = (50, 95, 99)


def latencies_between(samples: Sequence[ServerSample]) -> dict[str, dict[str, Any]]:
    """{name of the histogram: figures} of what was observed from the first to the last sample that has it."""
    names = dict.fromkeys(name for sample in samples for name in sample.histograms)
    figures = {}
    for name in names:
        seen = [sample.histograms[name] for sample in samples if name in sample.histograms]
        if len(seen) > 1 and seen[0].bounds_s == seen[-1].bounds_s:
            figures[name] = between(seen[0], seen[-1])
    return figures


def between(first: Buckets, last: Buckets) -> dict[str, Any]:
    """{n, mean_ms, p50_low_ms, p50_high_ms, …}; None without an observation, and where a range has no end."""
    counts = [end - start for start, end in zip(first.counts, last.counts, strict=True)]
    n = counts[-1]
    figures: dict[str, Any] = {"n": round(n), "mean_ms": (last.sum_s - first.sum_s) / n * 1e3 if n > 0 else None}
    for percent in QUANTILES:
        low_s, high_s = _range(first.bounds_s, counts, percent) if n > 0 else (None, None)
        figures[f"p{percent}_low_ms"] = None if low_s is None else low_s * 1e3
        figures[f"p{percent}_high_ms"] = None if high_s is None else high_s * 1e3
    return figures


def _range(bounds_s: Sequence[float], counts: Sequence[float], percent: int) -> tuple[float, float | None]:
    rank = math.ceil(counts[-1] * percent / 100)  # nearest rank, as everywhere
    bucket = next(i for i, count in enumerate(counts) if count >= rank)
    low_s = bounds_s[bucket - 1] if bucket else 0.0
    return low_s, None if math.isinf(bounds_s[bucket]) else bounds_s[bucket]
