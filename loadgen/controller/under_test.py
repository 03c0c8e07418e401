"""The server under test as a run goes on: has it answer with the settings of a level, notices its end, stops it if it is ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from loadgen.controller.effective import effective_of
from loadgen.controller.own_server import OwnServer, start_server
from loadgen.controller.server_watch import ServerWatch
from loadgen.controller.target import Target, inspect
from loadgen.controller.target_watch import TargetGoneError, TargetWatch, counts_of
from loadgen.datasets.plan import SurveyedDataset
from loadgen.run_folder import RunFolder
from loadgen.scenario.model import Level, Scenario


class UnderTest:
    """One server after another, as the levels want them."""

    def __init__(
        self,
        scenario: Scenario,
        folder: RunFolder,
        part: RunFolder,
        *,
        tell: Callable[[str], object],
        pause: Callable[[float], object],
    ) -> None:
        """`folder` gets the server's log, `part` its metrics. `pause` sleeps, and raises when the run is to end or `check` does."""
        self._scenario = scenario
        self._folder = folder
        self._tell = tell
        self._pause = pause
        self._server: OwnServer | None = None
        self._port = 0
        self._settings: dict[str, Any] | None = None
        """With which it answers now; None where nothing answers."""
        self._gone: TargetWatch | None = None
        self.dataset: SurveyedDataset | None = None
        """Where the requests come from, once it is read."""
        self.target: Target
        self.effective: dict[str, Any] | None = None
        """What the server runs with, as far as it says so."""
        self.metrics = ServerWatch(part, scenario.target, tell, pause)

    def runs(self, level: Level) -> bool:
        """Whether it answers with the settings of a level."""
        return self._settings == level.server

    def use(self, level: Level) -> None:
        """Has it answer with the settings of a level: starts it if it is ours, else waits for it. Raises LoadgenError."""
        scenario = self._scenario
        base_url = scenario.target.base_url
        self._settings = None
        if base_url is None:
            self.stop(self._pause)
            self._server = start_server(
                scenario,
                level.server,
                log=self._folder.path / "server.log",
                port=self._port,
                pause=self._pause,
                tell=self._tell,
            )
            base_url, self._port = self._server.base_url, self._server.port
        self.target = inspect(scenario, base_url, dataset=self.dataset, tell=self._tell, pause=self._pause)
        own = None if self._server is None else self._server.effective
        self.effective = own or effective_of(scenario, base_url, self.target.route)
        self.metrics.begin(base_url, self.target.route)
        self._settings = level.server
        # A proxy answers for one that is gone; a soak goes on until it is back.
        if self._server is None and self.target.route.proxy is None and scenario.soak.window is None:
            self._gone = TargetWatch(base_url)

    def check(self, live: Iterable[Mapping[str, Any]]) -> None:
        """Raises TargetLostError, once, when the server has ended or is gone. `live`: what the workers last told."""
        if self._server is not None and not self._server.alive():
            server, self._server, self._settings = self._server, None, None
            raise server.died(self._pause)
        if self._gone is not None:
            try:
                self._gone.look(counts_of(live))
            except TargetGoneError:
                self._gone = self._settings = None
                raise

    def stop(self, sleep: Callable[[float], object]) -> None:
        """Ends a server of ours; one that is not is left alone."""
        self.metrics.end()
        self._settings = self._gone = None
        if self._server is not None:
            server, self._server = self._server, None
            for held in server.stop(sleep):
                self._tell(f"warning: {held}")
