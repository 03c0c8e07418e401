"""Takes finished level objects, gives their Prometheus series: exact, unchanging, one set of labels a level; pure.

What was not measured has no sample. Labels are the run's scenario and model and the level's own settings, never an id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from loadgen.metrics.server_series import server_series
from loadgen.stats.asked import asked_number, is_open

Level = Mapping[str, Any]

SUMMARIES = {
    "ttft": ("loadgen_level_ttft_seconds", "Time from the send to the first token of the level's ok requests, exact."),
    "itl": ("loadgen_level_itl_seconds", "Gap between output tokens, pooled over the level's ok requests."),
    "tpot": ("loadgen_level_tpot_seconds", "Time per output token after the first, one sample a request."),
    "e2el": ("loadgen_level_e2el_seconds", "Time from the send to the last token of the level's ok requests."),
    "ttft_from_schedule": (
        "loadgen_level_ttft_from_schedule_seconds",
        "Of an open loop: time from when the schedule wanted the request sent to its first token.",
    ),
    "e2el_from_schedule": (
        "loadgen_level_e2el_from_schedule_seconds",
        "Of an open loop: time from when the schedule wanted the request sent to its last token.",
    ),
}
QUANTILES = {"0.5": "p50", "0.95": "p95", "0.99": "p99"}
GAUGES = {
    "output_throughput": (
        "loadgen_level_output_tokens_per_second",
        "Output tokens of all users that arrived in the level's window, per second.",
    ),
    "input_throughput": (
        "loadgen_level_input_tokens_per_second",
        "Prompt tokens of requests whose first token arrived in the level's window, per second.",
    ),
    "request_throughput": (
        "loadgen_level_requests_per_second",
        "Requests that ended ok in the level's window, per second.",
    ),
    "served_request_rate": (
        "loadgen_level_served_requests_per_second",
        "Requests that were served in the level's window, each by the share of its output tokens that arrived in it, per second.",
    ),
    "request_goodput": (
        "loadgen_level_good_requests_per_second",
        "Requests of the level that met every latency SLO, per second.",
    ),
    "achieved_concurrency": (
        "loadgen_level_achieved_concurrency",
        "Requests in flight, time-weighted over the level's window.",
    ),
    "offered_request_rate": (
        "loadgen_level_offered_requests_per_second",
        "Requests that an open loop's schedule placed in the level's window, per second.",
    ),
    "sent_request_rate": ("loadgen_level_sent_requests_per_second", "Requests sent in the level's window, per second."),
    "window_s": ("loadgen_level_window_seconds", "Length of the level's measuring window."),
}


class LevelSeries(Collector):
    """The series of the levels of one run, in the order in which they were added."""

    def __init__(self, scenario: str, model: str | None = None) -> None:
        self._scenario = scenario
        self.model = model
        """None while it is not known."""
        self._levels: list[Level] = []

    def add(self, level: Level) -> None:
        """Show one more finished level."""
        self._levels.append(level)

    def __len__(self) -> int:
        return len(self._levels)

    def registry(self) -> CollectorRegistry:
        """A registry that holds these series and no others."""
        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def _labels(self, level: Level) -> dict[str, str]:
        return {
            "scenario": self._scenario,
            "model": self.model or "",
            **_load_label(level),
            "max_num_seqs": str(level["server"].get("max_num_seqs", "")),
            "level": str(level["level"]),
        }

    def collect(self) -> Iterator[Metric]:
        # A copy: the scrape runs on its own thread while the controller adds levels.
        levels = [(level, self._labels(level)) for level in tuple(self._levels)]
        for latency, (name, text) in SUMMARIES.items():
            yield _summary(name, text, latency, levels)
        for key, (name, text) in GAUGES.items():
            gauge = Metric(name, text, "gauge")
            for level, labels in levels:
                if level[key] is not None:
                    gauge.add_sample(name, labels, level[key])
            yield gauge
        requests = Metric("loadgen_level_requests", "Requests sent in the level's window, by how they ended.", "gauge")
        valid = Metric("loadgen_level_valid", "1 when the level can be trusted, 0 when a rule says it cannot.", "gauge")
        for level, labels in levels:
            for status, count in level["requests"].items():
                requests.add_sample(requests.name, {**labels, "status": status}, count)
            valid.add_sample(valid.name, labels, int(level["valid"]))
        yield from (requests, valid)
        yield from server_series(levels)


def _load_label(level: Level) -> dict[str, str]:
    return {"request_rate" if is_open(level) else "concurrency": asked_number(level)}


def _summary(name: str, text: str, latency: str, levels: Sequence[tuple[Level, dict[str, str]]]) -> Metric:
    summary = Metric(name, text, "summary")
    for level, labels in levels:
        n = level[f"n_{latency}"]
        if not n:
            continue
        for quantile, statistic in QUANTILES.items():
            summary.add_sample(name, {**labels, "quantile": quantile}, level[f"{statistic}_{latency}_ms"] / 1e3)
        summary.add_sample(f"{name}_sum", labels, level[f"mean_{latency}_ms"] * n / 1e3)
        summary.add_sample(f"{name}_count", labels, n)
    return summary


def textfile(levels: Sequence[Level], scenario: str, model: str | None) -> bytes:
    """The same series as a file for node_exporter's textfile collector."""
    series = LevelSeries(scenario, model)
    for level in levels:
        series.add(level)
    return generate_latest(series.registry())
