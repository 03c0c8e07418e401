"""The last whole window of a soak as live gauges: takes its row, gives no series before there is one; no labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

SOAK_GAUGES: Mapping[str, tuple[str, float, str]] = {
    "p50_ttft_ms": ("ttft_p50_seconds", 1e-3, "P50 of the time to first token."),
    "p95_ttft_ms": ("ttft_p95_seconds", 1e-3, "P95 of the time to first token."),
    "p50_tpot_ms": ("tpot_p50_seconds", 1e-3, "P50 of the time per output token."),
    "p95_tpot_ms": ("tpot_p95_seconds", 1e-3, "P95 of the time per output token."),
    "p50_longest_gap_ms": ("longest_gap_p50_seconds", 1e-3, "P50 of the longest gap in a request's stream."),
    "p95_longest_gap_ms": ("longest_gap_p95_seconds", 1e-3, "P95 of the longest gap in a request's stream."),
    "output_throughput": ("output_tokens_per_second", 1.0, "output tokens a second."),
    "request_throughput": ("requests_per_second", 1.0, "requests that ended ok, a second."),
    "error_rate": ("error_ratio", 1.0, "share of the requests that failed."),
    "kv_usage": ("kv_cache_usage_ratio", 1.0, "mean usage of the server's KV cache."),
    "server_memory_bytes": ("server_memory_bytes", 1.0, "most memory of the server's process, or of its GPUs."),
}
"""By key of a window's row: name, factor to the base unit, and meaning."""
_PREFIX = "loadgen_soak_window_"


def soak_series(soak: tuple[int, Mapping[str, Any]] | None) -> Iterator[Metric]:
    """`soak`: how many whole windows there are, and the last one's row. A figure that it does not have is absent."""
    windows = GaugeMetricFamily("loadgen_soak_windows", "Windows of the soak so far; absent where there is no soak.")
    marked = GaugeMetricFamily(
        f"{_PREFIX}marked", "Of the soak's last window: 1 where the server began anew or answered no request, else 0."
    )
    if soak is not None:
        windows.add_metric([], soak[0])
        marked.add_metric([], soak[1]["mark"] is not None)
    yield from (windows, marked)
    for key, (name, factor, text) in SOAK_GAUGES.items():
        gauge = GaugeMetricFamily(_PREFIX + name, f"Of the soak's last window: {text}")
        value = None if soak is None else soak[1].get(key)
        if value is not None:
            gauge.add_metric([], value * factor)
        yield gauge
