"""The workers' own figures as live gauges: takes the `client` part of their snapshots, gives the worst worker's; no labels.

Each is over the second or so since a worker's report before, so that a stall between two looks is not missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

FIGURES = {
    "loop_lag_ns": ("loop_lag_seconds", "Longest delay of an event loop in the last second."),
    "hub_lag_ns": (
        "hub_lag_seconds",
        "Longest delay, in the last second, of the thread that builds prompts and writes the records.",
    ),
    "read_delay_ns": (
        "read_delay_seconds",
        "Longest time that bytes lay in the kernel, of answers that ended in the last second; absent without its stamps.",
    ),
    "send_lag_ns": (
        "send_lag_seconds",
        "Longest delay behind the schedule, of requests that ended in the last second; absent in a closed loop.",
    ),
    "send_gap_ns": (
        "send_gap_seconds",
        "Longest time from just before a send to just after it, of requests that ended in the last second.",
    ),
    "gc_pause_ns": (
        "gc_pause_seconds",
        "Longest garbage collection in the last second, those between levels too; 0 without one.",
    ),
    "coalesced_share": (
        "coalesced_ratio",
        "Share of token events read together with another, of requests that ended in the last second.",
    ),
    "cpu_loop_thread": ("loop_cpu_ratio", "CPU time of an event loop's thread in the last second; 1 is a whole core."),
    "cpu_process": ("process_cpu_ratio", "CPU time of a worker's process in the last second; 1 is a whole core."),
    "resident_bytes": ("resident_memory_bytes", "Memory of a worker's process now."),
}
"""Name in a snapshot → (name of the series behind `loadgen_client_`, what it is)."""


def client_series(workers: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """One gauge a figure, the largest of the workers; without a sample where no worker told it."""
    for figure, (name, text) in FIGURES.items():
        gauge = GaugeMetricFamily(f"loadgen_client_{name}", f"{text} The worst worker's.")
        told = [client[figure] for client in workers if client.get(figure) is not None]
        if told:
            gauge.add_metric([], max(told) / (1e9 if figure.endswith("_ns") else 1))
        yield gauge
