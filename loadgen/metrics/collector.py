"""The controller's side of the live metrics: takes workers' snapshots and finished levels, gives what a scrape shows.

Live series are cumulative over the run and never carry a level label; a level's own series come when it has ended.
Prometheus scrapes on a thread of its own, so everything here is guarded by one lock that is held for microseconds.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from loadgen.metrics.client_series import client_series
from loadgen.metrics.level_series import LevelSeries
from loadgen.metrics.live import EDGES_S, LIVE_LATENCIES
from loadgen.metrics.soak_series import soak_series
from loadgen.record import OK, STATUSES, is_failure

HISTOGRAMS = {
    "ttft": ("loadgen_time_to_first_token_seconds", "Time from the send to the first token, one sample an ok request."),
    "itl": ("loadgen_inter_token_latency_seconds", "Gap between output tokens, pooled over the ok requests."),
    "tpot": (
        "loadgen_request_time_per_output_token_seconds",
        "Time per output token after the first, one sample an ok request.",
    ),
    "e2el": ("loadgen_e2e_request_latency_seconds", "Time from the send to the last token, one sample an ok request."),
}
Target = tuple[int | None, float | None, int]
"""Users, requests a second, and the level's number."""
_LE = [*(repr(edge) for edge in EDGES_S), "+Inf"]


class _Totals:
    """Cumulative counts of one worker, or of several added up."""

    def __init__(self, snapshot: Mapping[str, Any] | None = None) -> None:
        given = snapshot or {}
        self.requests: Counter[str] = Counter(given.get("requests", {}))
        self.output_tokens: int = given.get("output_tokens", 0)
        self.input_tokens: int = given.get("input_tokens", 0)
        self.sums_ns: Counter[str] = Counter()
        self.buckets = np.zeros((len(LIVE_LATENCIES), len(EDGES_S) + 1), np.int64)
        for row, name in enumerate(LIVE_LATENCIES):
            histogram = given.get("histograms", {}).get(name)
            if histogram is not None:
                self.sums_ns[name] = histogram["sum_ns"]
                self.buckets[row] = histogram["counts"]

    def add(self, other: _Totals) -> None:
        self.requests += other.requests
        self.output_tokens += other.output_tokens
        self.input_tokens += other.input_tokens
        self.sums_ns += other.sums_ns
        self.buckets += other.buckets

    def fell_below(self, earlier: _Totals) -> bool:
        """Whether this cannot be a later state of the same process: a counter is lower than it was."""
        return (
            any(self.requests[status] < count for status, count in earlier.requests.items())
            or self.output_tokens < earlier.output_tokens
            or self.input_tokens < earlier.input_tokens
        )


# A series that is born with its first failure has no rate yet: the first burst would alert nobody.
_FROM_THE_START: Mapping[str, int] = dict.fromkeys(
    (OK, *sorted(STATUSES - {OK}), "http_429", "http_500", "http_502", "http_503", "http_504"), 0
)


class LiveMetrics(Collector):
    """State of a run as a scrape shows it. Its registry holds nothing else: `LiveMetrics(…).registry`."""

    def __init__(self, *, scenario: str, version: str) -> None:
        self._lock = threading.Lock()
        self._scenario = scenario
        self._version = version
        self._ended = _Totals()
        """What earlier processes under a worker's name had counted."""
        self._latest: dict[str, _Totals] = {}
        self._present: dict[str, tuple[int, Mapping[str, Any]]] = {}
        """Requests in flight and the own figures of the workers that are there now."""
        self._target: Target | None = None
        self._finished = False
        self._soak: tuple[int, Mapping[str, Any]] | None = None
        self._levels = LevelSeries(scenario)
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def update_worker(self, worker_id: str | int, snapshot: Mapping[str, Any]) -> None:
        """Take a worker's latest snapshot, cumulative since it started; it replaces the one before.

        {requests: {status: n}, output_tokens, input_tokens, in_flight, client: {a figure of `client_series`: value, None where it is
        not known}, histograms: {ttft, itl, tpot, e2el: as `LiveHistograms.snapshot` gives it}}; what is left out counts as
        nothing so far. A worker that restarted under its old name counts from zero: what it had counted before stays in
        the sums.
        """
        key, totals = str(worker_id), _Totals(snapshot)
        with self._lock:
            earlier = self._latest.get(key)
            if earlier is not None and totals.fell_below(earlier):
                self._ended.add(earlier)
            self._latest[key] = totals
            self._present[key] = (snapshot.get("in_flight", 0), snapshot.get("client", {}))

    def remove_worker(self, worker_id: str | int) -> None:
        """The worker has left: it has nothing in flight any more; what it counted stays counted."""
        with self._lock:
            self._present.pop(str(worker_id), None)

    def set_model(self, model: str) -> None:
        """The model's name, once the target has told it."""
        with self._lock:
            self._levels.model = model

    def set_target(self, concurrency: int | None, level: int, *, request_rate: float | None = None) -> None:
        """A level begins: this is the load asked for from now on; both None for a rate that changes."""
        with self._lock:
            self._target = (concurrency, request_rate, level)

    def add_level(self, level: Mapping[str, Any]) -> None:
        """Show a finished level's own series; they stay until exit."""
        with self._lock:
            self._levels.add(level)

    def set_soak(self, windows: int, row: Mapping[str, Any]) -> None:
        """A soak has so many whole windows; `row` has the figures of the last."""
        with self._lock:
            self._soak = (windows, row)

    def level_registry(self) -> CollectorRegistry | None:
        """The finished levels' series alone, as metrics.prom has them; None when no level has ended."""
        with self._lock:
            return self._levels.registry() if len(self._levels) else None

    def finished(self) -> None:
        """The run has ended: nothing is in flight and no level is active, whatever a late snapshot says."""
        with self._lock:
            self._finished = True
            self._target = None

    def output_tokens(self) -> int:
        """Output tokens so far, all workers."""
        with self._lock:
            return self._total().output_tokens

    def failed(self) -> int:
        """Requests that failed so far, all workers."""
        with self._lock:
            return sum(count for status, count in self._total().requests.items() if is_failure(status))

    def in_flight(self) -> int:
        """Requests in flight now, all workers; 0 once the run has ended."""
        with self._lock:
            return 0 if self._finished else sum(count for count, _ in self._present.values())

    def _total(self) -> _Totals:
        total = _Totals()
        for one in (self._ended, *self._latest.values()):
            total.add(one)
        return total

    def collect(self) -> Iterator[Metric]:
        in_flight = self.in_flight()
        with self._lock:
            total = self._total()
            run = {"scenario": self._scenario, "model": self._levels.model or "", "version": self._version}
            present = list(self._present.values())
            target, finished, soak = self._target, self._finished, self._soak
            lost = 0 if finished else len(self._latest) - len(present)
            levels = list(self._levels.collect())
        yield from _counters(total)
        yield from _histograms(total)
        yield from _gauges(in_flight, len(present), lost, target, finished)
        yield from client_series([] if finished else [client for _, client in present])
        yield from soak_series(soak)
        info = GaugeMetricFamily("loadgen_run_info", "The run: always 1.", labels=tuple(run))
        info.add_metric(tuple(run.values()), 1)
        yield info
        yield from levels


def _counters(total: _Totals) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "loadgen_output_tokens",
        # An open request counts by its events, less three that may be the last ones, which carry no token.
        "Output tokens received so far, counted while they arrive, of requests of any status; an open request may be up to "
        "three behind, and is set right by the server's own count when it ends.",
        value=total.output_tokens,
    )
    yield CounterMetricFamily(
        "loadgen_input_tokens",
        "Prompt tokens of requests that ended with any status, as the server counted them; none where it did not say.",
        value=total.input_tokens,
    )
    requests = CounterMetricFamily("loadgen_requests", "Requests that ended, by how they ended.", labels=["status"])
    for status, count in {**_FROM_THE_START, **total.requests}.items():
        requests.add_metric([status], count)
    yield requests


def _histograms(total: _Totals) -> Iterator[Metric]:
    for row, latency in enumerate(LIVE_LATENCIES):
        name, text = HISTOGRAMS[latency]
        reached = np.cumsum(total.buckets[row]).tolist()
        buckets = list(zip(_LE, map(float, reached), strict=True))
        yield HistogramMetricFamily(name, text, buckets=buckets, sum_value=total.sums_ns[latency] / 1e9)


def _gauges(in_flight: int, workers: int, lost: int, target: Target | None, finished: bool) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "loadgen_requests_in_flight", "Requests in flight now, all workers; 0 once the run has ended.", value=in_flight
    )
    yield GaugeMetricFamily("loadgen_workers", "Workers that report now; a lost one does not count.", value=workers)
    yield GaugeMetricFamily(
        "loadgen_workers_lost", "Workers of this run that no longer report; 0 once the run has ended.", value=lost
    )
    concurrency = GaugeMetricFamily(
        "loadgen_target_concurrency",
        "Requests in flight that the active level asks for; 0 once the run has ended, absent in an open loop.",
    )
    rate = GaugeMetricFamily(
        "loadgen_target_requests_per_second",
        "Requests a second that the active level of an open loop asks for; 0 once the run has ended.",
    )
    active = GaugeMetricFamily(
        "loadgen_active_level", "Number of the level that runs now, from 0; absent before and after."
    )
    if target is not None:
        for gauge, asked in ((concurrency, target[0]), (rate, target[1])):
            if asked is not None:
                gauge.add_metric([], asked)
        active.add_metric([], target[2])
    elif finished:
        concurrency.add_metric([], 0)
        rate.add_metric([], 0)
    yield from (concurrency, rate, active)
