"""What is known of a run while it goes on: the workers' cumulative counts merged, behind /metrics and the live line."""

from __future__ import annotations

import collections
import time
from typing import Any

from gevent.event import Event

from loadgen import __version__
from loadgen.controller.fleet import Worker
from loadgen.metrics import LiveMetrics, serve_metrics
from loadgen.record import LevelPlan
from loadgen.scenario.model import Scenario

_RATE_S = 3.0


class LiveRun:
    """Fed by the controller; read by the metrics endpoint's thread and by the display."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._metrics = LiveMetrics(scenario=scenario.name, version=__version__)
        self._server: Any = None
        self._tokens: collections.deque[tuple[float, int]] = collections.deque()

    def serve(self) -> None:
        """Opens /metrics. Raises UsageError when the port is taken."""
        metrics = self._scenario.metrics
        if metrics.port is not None:
            self._server = serve_metrics(self._metrics.registry, metrics.host, metrics.port)

    def set_model(self, model: str) -> None:
        self._metrics.set_model(model)

    def update_worker(self, worker: Worker) -> None:
        """Takes a worker's latest cumulative snapshot."""
        self._metrics.update_worker(worker.index, worker.live)
        now = time.monotonic()
        self._tokens.append((now, self._metrics.output_tokens()))
        while now - self._tokens[0][0] > _RATE_S:
            self._tokens.popleft()

    def begin_level(self, plan: LevelPlan) -> None:
        self._metrics.set_target(plan.concurrency, plan.level)

    def add_level(self, level: dict[str, Any]) -> None:
        self._metrics.add_level(level)

    def figures(self) -> dict[str, Any]:
        """For the live line: requests in flight, output tokens a second over the last seconds, failures so far."""
        rate = None
        if len(self._tokens) >= 2:
            (began, first), (ended, last) = self._tokens[0], self._tokens[-1]
            rate = (last - first) / (ended - began) if ended > began else None
        return {
            "in_flight": self._metrics.in_flight(),
            "tokens_per_s": rate,
            "failed": self._metrics.failed(),
        }

    def finish(self, stop: Event) -> None:
        """The run is over; /metrics stays for `metrics.linger`, or until `stop` is set again."""
        self._metrics.finished()
        linger_s = self._scenario.metrics.linger
        if self._server is not None and linger_s > 0:
            stop.clear()
            stop.wait(linger_s)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
