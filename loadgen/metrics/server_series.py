"""Takes finished level objects, gives the Prometheus series of what their server told and of what limits them; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import Metric

Level = Mapping[str, Any]

SERVER_GAUGES = {
    "mean_running": (
        "loadgen_level_server_running_requests",
        "Requests in the server's running batch, by its own account, averaged over the level's window.",
    ),
    "mean_waiting": (
        "loadgen_level_server_waiting_requests",
        "Requests that wait in the server, by its own account, averaged over the level's window.",
    ),
    "max_kv_usage": (
        "loadgen_level_server_kv_cache_usage_ratio",
        "Share of the server's KV cache that was used, at most, in the level's window.",
    ),
    "preemptions": (
        "loadgen_level_server_preemptions",
        "Requests that the server threw out of its KV cache in the level's window, to compute them again.",
    ),
    "prefix_cache_hit_share": (
        "loadgen_level_server_prefix_cache_hit_ratio",
        "Share of the prompts' tokens that the server took from its prefix cache in the level's window.",
    ),
}


def server_series(levels: Sequence[tuple[Level, dict[str, str]]]) -> Iterator[Metric]:
    """`levels`: each with its labels. What the server did not tell has no sample."""
    for key, (name, text) in SERVER_GAUGES.items():
        gauge = Metric(name, text, "gauge")
        for level, labels in levels:
            value = (level["server_metrics"] or {}).get(key)
            if value is not None:
                gauge.add_sample(name, labels, value)
        yield gauge
    limit = Metric("loadgen_level_limit", "What kept the server from doing more in the level: always 1.", "gauge")
    for level, labels in levels:
        if level["limit"] is not None:
            limit.add_sample(limit.name, {**labels, "kind": level["limit"]["kind"]}, 1)
    yield limit
