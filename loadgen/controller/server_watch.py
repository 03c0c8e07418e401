"""Has the target's own metrics sampled while a run goes on, where the scenario wants it; knows the controller's part only."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from loadgen.api_key import read_api_key
from loadgen.record import LevelPlan
from loadgen.route import Route
from loadgen.run_folder import RunFolder
from loadgen.scenario.target import Target
from loadgen.server_metrics.sample import ServerSample
from loadgen.server_metrics.scraper import Scraper

_FIRST_S = 2.0


class ServerWatch:
    """The scraper of the server that is under test now; each server of a sweep has its own, all write one file."""

    def __init__(
        self, folder: RunFolder, target: Target, tell: Callable[[str], object], pause: Callable[[float], object]
    ) -> None:
        """`tell` gets a sentence where there are no metrics, once; `pause` sleeps so many seconds."""
        self._folder = folder
        self._target = target
        self._tell = tell
        self._pause = pause
        self._told: str | None = None
        self._scraper: Scraper | None = None
        self._url: str | None = None
        self._first: ServerSample | None = None

    def begin(self, base_url: str, route: Route) -> None:
        """The target answers: its metrics are sampled from now on."""
        self.end()
        self._url = metrics_url(self._target.server_metrics, base_url)
        if self._url is None:
            return
        same_server = _origin(self._url) == _origin(base_url)
        if not same_server:  # what is secret is for the target alone
            route = dataclasses.replace(route, headers={})
        key = read_api_key(self._target.api_key_env) if same_server and not route.authorizes else None
        self._scraper = Scraper(self._url, self._folder.server_metrics, route=route, api_key=key)
        self._scraper.await_sample(1, self._pause, _FIRST_S)
        self._first = self._scraper.latest
        problem = None if self._first is None else self._first.error
        if problem is not None and problem != self._told:
            self._told = problem
            self._tell(f"no server metrics: {problem}")

    def on_window(self, plan: LevelPlan) -> None:
        """A window has been told: its ends are looked at too."""
        if self._scraper is not None:
            self._scraper.at(plan.window_start_ns, plan.window_end_ns)

    def await_end(self, plan: LevelPlan) -> None:
        """Waits until the scrape of the window's end is in the file; a server that does not answer is not waited for long."""
        if self._scraper is not None and plan.window_end_ns <= time.monotonic_ns():
            self._scraper.await_sample(plan.window_end_ns, self._pause)

    @property
    def url(self) -> str | None:
        """Where the metrics of the server that is under test are looked for; None where they are not."""
        return self._url

    @property
    def first(self) -> ServerSample | None:
        """The first scrape of that server; None where none came."""
        return self._first

    @property
    def latest(self) -> ServerSample | None:
        """The last scrape; None where there was none."""
        return None if self._scraper is None else self._scraper.latest

    def describe(self) -> dict[str, Any]:
        """For the run's provenance: where the metrics were looked for, whose they are, or why there are none."""
        first = self._first
        problem = "they are switched off" if self._url is None else None if first is None else first.error
        return {"url": self._url, "kind": None if first is None else first.kind or None, "problem": problem}

    def end(self) -> None:
        if self._scraper is not None:
            self._scraper.close()
            self._scraper = None


def metrics_url(asked: str | None, base_url: str) -> str | None:
    """Where a target's metrics are: what the scenario says, or its own page; None where they are not wanted."""
    if asked == "off":
        return None
    return asked or f"{base_url}/metrics"


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc
