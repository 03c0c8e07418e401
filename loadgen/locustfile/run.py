"""One test of a locustfile under plain Locust, as its master sees it: prepares it, makes levels of it, judges and writes.

Locust decides when users come and go; this looks on. It writes the same run folder as `loadgen run`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from locust.runners import STATE_RUNNING
from rich.console import Console

from loadgen.controller.configuration import configuration, provenance
from loadgen.controller.display import level_line
from loadgen.controller.effective import effective_of
from loadgen.controller.live import LiveRun
from loadgen.controller.server_watch import ServerWatch
from loadgen.controller.sweep_progress import Progress
from loadgen.controller.target import Target
from loadgen.controller.worker import Worker
from loadgen.judgement import judge
from loadgen.locustfile.about import about_locustfile
from loadgen.locustfile.fleet import LocustfileFleet
from loadgen.locustfile.levels import Levels
from loadgen.locustfile.load import load_of
from loadgen.locustfile.steps import Closed, Opened, Steps
from loadgen.locustfile.users import llm_users
from loadgen.locustfile.workload import TaskWorkload
from loadgen.messages import Configure
from loadgen.outputs import write_outputs
from loadgen.report.summary import write_level
from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from loadgen.scenario.model import Level, Scenario
from loadgen.stats.limit import limit_of
from loadgen.workload.carried import to_carry

_log = logging.getLogger("loadgen")

_LOOK_S = 0.05


class LocustfileRun:
    """From `prepare` to `finish`."""

    def __init__(self, environment: Any, fleet: LocustfileFleet, scenario: Scenario, folder: Path | None) -> None:
        """Makes the run folder and serves /metrics. Raises LoadgenError when one of them cannot be."""
        self._environment = environment
        self._runner = environment.runner
        self._fleet = fleet
        self._scenario = scenario
        self._nonce = secrets.token_hex(8)
        path = folder or Path("runs") / scenario.name / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
        self._existed = path.exists()
        self.live = LiveRun(scenario)
        with contextlib.ExitStack() as stack:
            stack.callback(self.live.close)
            self.live.serve()
            self.folder = RunFolder.create(path, scenario_yaml=self._yaml(), nonce=self._nonce)
            stack.enter_context(self.folder.lock())
            self._stack = stack.pop_all()
        self._reader = RunReader(self.folder)
        self._steps = Steps(warmup_ns=round((scenario.load.warmup or 0.0) * 1e9))
        self._levels: Levels
        self._server_watch: ServerWatch
        self._provenance: dict[str, Any] = {}
        self._told_names: list[str] = []
        self._judged: list[dict[str, Any]] = []
        self._watcher: gevent.Greenlet | None = None
        self._ending = False

    def prepare(self, target: Target, workload: TaskWorkload) -> None:
        """Tells the workers of the test; then users may come. Raises LoadgenError, and leaves nothing behind."""
        try:
            self._prepare(target, workload)
        except BaseException:  # also when Locust ends the greenlet that starts the test
            self._stack.close()
            self.folder.discard(keep=self._existed)
            raise
        self._watcher = gevent.spawn(self._watch)

    def _prepare(self, target: Target, workload: TaskWorkload) -> None:
        fleet, scenario = self._fleet, self._scenario
        fleet.gather()
        fleet.measure_clocks()
        workers = fleet.workers.values()

        def plan_for(worker: Worker) -> Configure:
            plan = configuration(scenario, target, self.folder, self._nonce, None, worker, workers)
            return dataclasses.replace(plan, workload=to_carry(workload))

        fleet.configure(self.folder, plan_for)
        watch = self._server_watch = ServerWatch(self.folder, scenario.target, _log.info, gevent.sleep)
        self._stack.callback(watch.end)
        watch.begin(target.base_url, target.route)
        effective = effective_of(scenario, target.base_url, target.route)
        self.live.set_model(target.model)
        self._provenance = {
            **provenance(scenario, target, effective, watch.describe(), None, workers),
            "locustfile": about_locustfile(self._environment, warmup_s=scenario.load.warmup or 0.0),
        }
        self.folder.write_provenance(self._provenance)
        self._levels = Levels(
            self.folder,
            fleet,
            watch,
            drain_timeout_s=scenario.load.drain_timeout,
            effective=effective,
            on_drained=self._show,
        )
        self._levels.begin()

    def _yaml(self) -> str:
        return (
            f"# Made for a test of {self._environment.locustfile} under Locust: its tasks say what is sent, `workload` does not.\n"
            + self._scenario.to_yaml()
        )

    def _watch(self) -> None:
        while not self._ending:
            self._look()
            gevent.sleep(_LOOK_S)

    def _look(self) -> None:
        self._note_names()
        self._levels.note_lost()
        self._stop_where_records_are_not_kept()
        runner, classes = self._runner, llm_users(self._environment)
        counts = runner.target_user_classes_count
        seen = self._steps.look(
            time.monotonic_ns(), steady=self._is_steady(), asked=runner.target_user_count, counts=counts
        )
        if isinstance(seen, Closed):
            self._levels.close(seen)
        elif isinstance(seen, Opened) and (load := load_of(classes, counts)):  # else users of other classes alone
            number = self._levels.open(seen, load)
            self.live.begin_level(Level(number, load.concurrency, 0, {}, load.request_rate))

    def _is_steady(self) -> bool:
        runner = self._runner
        return bool(runner.state == STATE_RUNNING and runner.user_count >= runner.target_user_count)

    def _note_names(self) -> None:
        names = sorted(self._fleet.names)
        if names != self._told_names:
            self._told_names = names
            self._provenance["locustfile"]["names"] = names
            self.folder.write_provenance(self._provenance)

    def _stop_where_records_are_not_kept(self) -> None:
        problem = next((worker.problem for worker in self._fleet.workers.values() if worker.problem is not None), None)
        if problem is not None and not self._levels.interrupted:
            self._levels.interrupted = True
            _log.error("A worker gave up, and the test is stopped: %s.", problem)
            gevent.spawn(self._runner.quit if self._environment.parsed_options.headless else self._runner.stop)

    def _show(self) -> None:
        """Judges what has drained: a line, its file, its series."""
        self._note_names()
        progress = Progress(levels=len(self._levels.loads))
        for level in judge(self._reader.drained(), self._scenario, self._provenance):
            self._judged.append(level)
            level["limit"] = limit_of(level, self._judged)
            self.live.add_level(level)
            write_level(self.folder.path, level)
            _log.info(level_line(level, progress))

    def end(self) -> None:
        """The test is being stopped: ends the window, waits for its requests while the users go on, then has them end."""
        if self._ending:
            return
        self._look()
        self._ending = True
        if self._watcher is not None:
            self._watcher.kill()
        closed = self._steps.stop(time.monotonic_ns(), steady=self._is_steady())
        if closed is not None:
            self._levels.close(closed)
        hurry = self._levels.hurry
        with self._interrupts():
            self._levels.await_drained()
            self._fleet.finish(0.0 if hurry.is_set() else self._environment.stop_timeout, hurry)
        self._fleet.end_test()
        self._server_watch.end()
        self.live.end_load()

    @contextlib.contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Ctrl-C, which has perhaps ended the test, said again: nothing is waited for any more, and all is still written."""
        before = signal.signal(signal.SIGINT, lambda *_: self._levels.hurry.set())
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def finish(self) -> int:
        """Judges and writes whatever was measured, and prints it; gives the exit code that `loadgen run` would have.

        Raises LoadgenError when it cannot be written.
        """
        self._note_names()
        left_out = self._provenance["locustfile"]["steps_left_out"] = self._steps.left_out
        self.folder.write_provenance(self._provenance)
        self._write_scenario()
        with self._interrupts():
            judged = write_outputs(self.folder, Console(stderr=True))
        if not judged.levels:
            _log.error("Nothing was measured: the test was stopped before all users had been spawned and warmed up.")
        elif left_out:
            _log.info("%d steps are no levels: their users stayed the same for too short a time.", left_out)
        shown = {level["level"] for level in self._judged}
        for level in judged.levels:
            if level["level"] not in shown:
                self.live.add_level(level)
        self._judged = judged.levels
        return judged.exit_code

    def _write_scenario(self) -> None:
        """The load as it came: a shape's steps are known at the end only."""
        loads = self._levels.loads
        if not loads:
            return
        if loads[0].concurrency is None:
            load: dict[str, Any] = {"concurrency": None, "request_rate": tuple(one.request_rate for one in loads)}
        else:
            load = {"concurrency": tuple(one.concurrency for one in loads)}
        self._scenario = self._scenario.model_copy(update={"load": self._scenario.load.model_copy(update=load)})
        (self.folder.path / "scenario.yaml").write_text(self._yaml())

    def linger(self, stop: Event) -> None:
        """Keeps /metrics up for a last scrape, as a scenario's run does."""
        self.live.finish(self._judged, stop)

    def close(self) -> None:
        """Ends /metrics and lets go of the folder."""
        self._stack.close()
