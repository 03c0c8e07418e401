"""What is known of a run while it goes on, and how it is shown: /metrics, the live line, a Pushgateway at the end.

Takes the workers' cumulative counts and the finished levels; computes no figure of a result.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from typing import Any

from gevent.event import Event
from rich.console import Console

from loadgen import __version__
from loadgen.controller.worker import Worker
from loadgen.errors import LoadgenError
from loadgen.metrics.collector import LiveMetrics
from loadgen.metrics.endpoint import MetricsServer, serve_metrics
from loadgen.metrics.pushgateway import JOB, push
from loadgen.metrics.scrapes import Linger
from loadgen.scenario.model import Level, Scenario

_RATE_S = 3.0
# How often a lingering endpoint asks whether the scraper's interval has become known.
_LINGER_POLL_S = 1.0


class LiveRun:
    """Fed by the controller; read by the metrics endpoint's thread and by the display."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._metrics = LiveMetrics(scenario=scenario.name, version=__version__)
        self._levels: set[int] = set()
        self._server: MetricsServer | None = None
        self._workers: dict[int, Worker] = {}
        self._console = Console(stderr=True)
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
        self._workers[worker.index] = worker
        self._remove_lost()
        now = time.monotonic()
        self._tokens.append((now, self._metrics.output_tokens()))
        while now - self._tokens[0][0] > _RATE_S:
            self._tokens.popleft()

    def begin_level(self, level: Level) -> None:
        self._remove_lost()
        self._metrics.set_target(level.concurrency, level.level, request_rate=level.request_rate)

    def _remove_lost(self) -> None:
        # A lost worker stays lost: what it may still say is counted, but the level does not rest on it.
        for worker in self._workers.values():
            if worker.lost:
                self._metrics.remove_worker(worker.index)

    def add_level(self, level: dict[str, Any]) -> None:
        self._levels.add(level["level"])
        self._metrics.add_level(level)
        soak = level.get("soak")
        if soak is not None and soak["windows"]:  # the last ones were not complete while it went on
            self.set_soak(len(soak["windows"]), soak["windows"][-1])

    def set_soak(self, windows: int, row: dict[str, Any]) -> None:
        """A soak has so many whole windows, and this is the last of them."""
        self._metrics.set_soak(windows, row)

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

    def end_load(self) -> None:
        """Nothing is in flight any more."""
        self._remove_lost()
        self._metrics.finished()

    def finish(self, levels: Sequence[dict[str, Any]], stop: Event) -> None:
        """The run is over and these are its levels: shows those that are not shown yet (an interrupted one), pushes them,
        and keeps /metrics up as `metrics.linger` says, or until `stop` is set.

        A signal that ended the run has been cleared from `stop`: one that is there came later, and ends the wait too.
        """
        for level in levels:
            if level["level"] not in self._levels:
                self.add_level(level)
        self._push()
        if self._server is not None:
            self._linger(self._server, stop)

    def _push(self) -> None:
        url, registry = self._scenario.metrics.pushgateway, self._metrics.level_registry()
        if url is None or registry is None:
            return
        try:
            push(registry, url, self._scenario.name)
        except LoadgenError as error:
            self._say(f"warning: {error}\nhint: {error.hint}")
        else:
            self._say(f"pushed to {url} (job {JOB}, instance {self._scenario.name})")

    def _linger(self, server: MetricsServer, stop: Event) -> None:
        ended_s = time.monotonic()
        linger = self._asked_linger() or server.scrapes.linger(ended_s)
        if linger is None or linger.seconds <= 0 or stop.is_set():
            return
        self._say(
            f"/metrics stays up for {round(linger.seconds, 1):g} s, since {linger.reason}; Ctrl-C ends it at once"
        )
        while linger and (left_s := ended_s + linger.seconds - time.monotonic()) > 0:
            if stop.wait(min(left_s, _LINGER_POLL_S)):
                return
            linger = self._asked_linger() or server.scrapes.linger(ended_s)

    def _asked_linger(self) -> Linger | None:
        seconds = self._scenario.metrics.linger
        return None if seconds is None else Linger(seconds, "metrics.linger asks for it")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
