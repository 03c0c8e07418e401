"""Takes samples of latencies, gives the flat fields of a level object (`p95_ttft_ms`) and which of them are weak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from loadgen.stats.percentile import Samples, is_weak

PERCENTILES = (50, 90, 95, 99)


def latency_fields(samples: Mapping[str, Samples], names: Iterable[str]) -> dict[str, Any]:
    """For each name its number of samples, mean, percentiles and largest, in milliseconds; None without a sample."""
    flat: dict[str, Any] = {}
    for name in names:
        of = samples[name]
        flat[f"n_{name}"] = of.n
        flat[f"mean_{name}_ms"] = _ms(of.mean_ns())
        for percent, value in zip(PERCENTILES, of.percentiles_ns(PERCENTILES), strict=True):
            flat[f"p{percent}_{name}_ms"] = _ms(value)
        flat[f"max_{name}_ms"] = _ms(of.max_ns())
    return flat


def weak_fields(samples: Mapping[str, Samples], names: Iterable[str]) -> list[str]:
    """Names of the percentiles with fewer than five samples beyond them."""
    return [
        f"p{percent}_{name}_ms"
        for name in names
        for percent in PERCENTILES
        if samples[name].n and is_weak(samples[name].n, percent)
    ]


def _ms(value_ns: float | int | None) -> float | None:
    return None if value_ns is None else value_ns / 1e6
