"""Runs one level after another as the course asks, each on the server that it wants; decides what a server's death means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loadgen.controller.fleet import Fleet
from loadgen.controller.sweep import Sweep
from loadgen.controller.sweep_progress import Progress
from loadgen.controller.under_test import UnderTest
from loadgen.controller.worker import check_connections
from loadgen.errors import LoadgenError, RunInterruptedError, TargetLostError
from loadgen.record import LevelPlan
from loadgen.run_folder import RunFolder
from loadgen.scenario.model import Level, Scenario
from loadgen.search.course import Course
from loadgen.search.failures import DIED, NOT_STARTED, Failure, has_failed


class LevelLoop:
    """The levels of a run, from the first that is still to be measured."""

    def __init__(
        self,
        scenario: Scenario,
        part: RunFolder,
        under_test: UnderTest,
        levels: list[dict[str, Any]],
        *,
        tell: Callable[[str], object],
        continue_on_error: bool,
    ) -> None:
        """`part` has the journal; `levels` are those that are measured, to which others append; `tell` gets sentences.

        `continue_on_error`: whether the sweep goes on without a setting whose server does not start.
        """
        self._scenario = scenario
        self._part = part
        self._under_test = under_test
        self._levels = levels
        self._tell = tell
        self._continue = continue_on_error
        self._failures: list[Failure] = []
        self.course = Course(scenario)

    def begin(self) -> None:
        """Has the server of the first level answer. Raises LoadgenError when none does."""
        failed: LoadgenError | None = None
        while (level := self.next()) is not None:
            try:
                self._under_test.use(level)
                return
            except RunInterruptedError:
                raise
            except LoadgenError as error:
                if not self._goes_on_without(level):
                    raise
                failed = error
                self._give_up(level, error)
        assert failed is not None
        raise failed

    def next(self) -> Level | None:
        """The level to run now."""
        return self.course.next(self._levels, self._failures)

    def run(
        self,
        fleet: Fleet,
        sweep: Sweep,
        progress: Progress,
        *,
        configure: Callable[[], object],
        on_begin: Callable[[Level], object],
        on_drained: Callable[[LevelPlan], object],
        judge: Callable[[], object],
    ) -> None:
        """Runs all of them. `configure` tells the workers of another server; `judge` appends what has drained to the levels.

        Raises RunInterruptedError; TargetLostError when a target that is not ours is gone a second time; LoadgenError when
        a server does not start, or no worker is left.
        """
        while (level := self.next()) is not None:
            listed = len(self.course.listed(self._levels, self._failures))
            progress.levels = None if self.course.open_ended else level.level + listed
            if level.concurrency is not None and self._scenario.load.searches:
                check_connections(level.concurrency, fleet.workers.values())
            if not self._under_test.runs(level) and not self._change_server(level, fleet, progress, configure):
                continue
            sweep.effective = self._under_test.effective
            try:
                on_drained(sweep.run(level, on_begin=on_begin, on_window=self._under_test.metrics.on_window))
            except TargetLostError as error:
                self._lost(level, error)
            judge()

    def _change_server(self, level: Level, fleet: Fleet, progress: Progress, configure: Callable[[], object]) -> bool:
        """Whether the server that a level wants answers; False when its setting is given up."""
        progress.enter("restarting the server" if self._scenario.target.server else "waiting for the server")
        fleet.spawn(0)
        try:
            self._under_test.use(level)
            configure()
        except RunInterruptedError:
            raise
        except LoadgenError as error:
            if not self._goes_on_without(level):
                raise
            self._give_up(level, error)
            return False
        return True

    def _goes_on_without(self, level: Level) -> bool:
        """Whether the sweep goes on without a setting whose server does not answer: where that was asked for, or it did
        answer before."""
        server = self.course.named(level.server)
        died = any(failure["server"] == server for failure in self._failures)
        return self._scenario.target.server is not None and (self._continue or died)

    def _give_up(self, level: Level, error: LoadgenError) -> None:
        self._note(level, NOT_STARTED, str(error))
        self._tell(f"{error.report()}\nnothing more is measured with {self._in_words(level)}")

    def _lost(self, level: Level, error: TargetLostError) -> None:
        self._note(level, DIED, str(error))
        again = not has_failed(self.course.named(level.server), self._failures)
        if self._scenario.target.server is None:
            if not again:
                raise error
            timeout_s = self._scenario.target.ready_timeout
            self._tell(f"{error}\nthe level has ended; waiting up to {timeout_s:g} s until the server answers again")
        elif again:
            self._tell(f"{error}\nthe level has ended; the server is started once more, and the level repeated")
        else:
            self._tell(
                f"{error.report()}\nnothing more is measured with {self._in_words(level)}: it ended for the second time"
            )

    def _note(self, level: Level, kind: str, text: str) -> None:
        server = self.course.named(level.server)
        self._part.note_failure(server, level.level, kind, text)
        self._failures.append({"server": server, "level": level.level, "kind": kind, "text": text})

    def _in_words(self, level: Level) -> str:
        settings = ", ".join(f"{key} {value}" for key, value in self.course.named(level.server).items())
        return settings or "this server"
