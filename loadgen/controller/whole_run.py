"""One run: server, workers, target, levels, judgement, outputs, in that order. Its folder and /metrics are there already."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
from collections.abc import Collection
from typing import Any

import gevent
from gevent.event import Event
from rich.console import Console

from loadgen.arrivals.schedule import Schedule
from loadgen.controller.capture import Capture, check_capture
from loadgen.controller.configuration import configuration, prefix_cache_in_words, provenance
from loadgen.controller.display import Display, level_line
from loadgen.controller.fleet import Fleet
from loadgen.controller.guard import Guard, check_server_ttft
from loadgen.controller.level_loop import LevelLoop
from loadgen.controller.live import LiveRun
from loadgen.controller.open_level import check_places
from loadgen.controller.read_dataset import read_dataset, reading_s
from loadgen.controller.resume import changes, with_resumption
from loadgen.controller.soak_watch import SoakWatch, soak_hint
from loadgen.controller.sweep import Sweep
from loadgen.controller.sweep_progress import Progress
from loadgen.controller.target import route_of
from loadgen.controller.under_test import UnderTest
from loadgen.controller.worker import Worker, check_connections
from loadgen.datasets.plan import SurveyedDataset
from loadgen.errors import LoadgenError, RunInterruptedError, SafetyStopError
from loadgen.judgement import judge
from loadgen.outputs import unwritable, write_outputs
from loadgen.record import LevelPlan
from loadgen.report.summary import write_level
from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from loadgen.scenario.model import Level, Scenario
from loadgen.scenario.schedules import given_window_s, schedule_of, schedules
from loadgen.stats.limit import limit_of
from loadgen.worker.scheduled_user import ScheduledUser
from loadgen.worker.streaming_user import StreamingUser

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


class WholeRun:
    """The parts of one run, and the order in which they work: `prepare`, then `measure`."""

    def __init__(
        self,
        scenario: Scenario,
        folder: RunFolder,
        part: RunFolder,
        nonce: str,
        live: LiveRun,
        stack: contextlib.ExitStack,
        *,
        levels: list[dict[str, Any]] | None = None,
        continue_on_error: bool,
    ) -> None:
        """`part` gets the records: the folder itself, or a part of its own where the run is resumed. `levels`: those that are
        measured already."""
        self._scenario = scenario
        self._folder = folder
        self._part = part
        self._nonce = nonce
        self._live = live
        self._stack = stack
        self._console = Console(stderr=True)
        self._stop = Event()
        self._levels = levels or []
        self._under_test = UnderTest(scenario, folder, part, tell=self._tell, pause=self._pause)
        self._loop = LevelLoop(
            scenario, part, self._under_test, self._levels, tell=self._tell, continue_on_error=continue_on_error
        )
        self._dataset: SurveyedDataset | None = None
        self._capture: Capture | None = None
        self._fleet: Fleet | None = None
        self._guard = Guard(scenario.safety, open_loop=scenario.load.open_loop)
        self._progress: Progress | None = None
        self._soak: SoakWatch | None = None
        self._told_lost: set[int] = set()
        """Workers of which it was said that they went missing."""
        self._schedules: dict[int, Schedule] = {}
        """Of an open loop, by level as the scenario lists them."""

    def prepare(self) -> None:
        """Everything that can be refused: the target, the prompts, the workers."""
        scenario = self._scenario
        if scenario.audit:
            check_capture()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Python's own handlers, not gevent's watchers: asyncio.Runner, which sends the probe, would replace the
            # watcher of SIGINT, and leaves alone a handler that is not the default one.
            self._stack.callback(signal.signal, number, signal.signal(number, lambda *_: self._stop.set()))
        self._stack.callback(self._under_test.stop, gevent.sleep)
        index = self._folder.path / "dataset"  # for the workers of this host too; it goes with the run
        shutil.rmtree(index, ignore_errors=True)  # a killed controller could not take it along
        self._stack.callback(shutil.rmtree, index, ignore_errors=True)
        self._dataset = self._under_test.dataset = read_dataset(scenario, index, self._console, self._pause)
        self._schedules = schedules(scenario, self._trace_s())
        local, remote = scenario.workers.local_count(), scenario.workers.expect
        workers = scenario.workers
        fleet = self._fleet = Fleet(
            bind_host=workers.bind_host or ("*" if remote else "127.0.0.1"),
            bind_port=workers.bind_port if remote else 0,
            on_live=self._live.update_worker,
            pause=self._pause,
            user_class=ScheduledUser if scenario.load.open_loop else StreamingUser,
            further_classes=[ScheduledUser] if scenario.load.confirm else [],
        )
        self._stack.callback(fleet.close)
        log = self._stack.enter_context((self._folder.path / "run.log").open("ab"))
        os.environ.update(route_of(scenario.target).environment())  # for the workers
        # The workers start up while the server is asked what it is.
        fleet.start_local(local, log)
        self._loop.begin()
        check_server_ttft(scenario.safety, self._under_test.metrics.url, self._under_test.metrics.first)
        self._live.set_model(self._under_test.target.model)
        if scenario.audit:
            self._capture = Capture(self._part, self._under_test.target.base_url, log, self._pause)
            self._stack.callback(self._capture.close)
        if remote:
            self._tell(f"awaiting {remote} workers on port {fleet.port}")
        fleet.await_workers(local + remote)
        if remote:
            self._tell(f"{local + remote} workers have joined")
        check_places(scenario.load, local + remote)
        most = scenario.load.most_in_flight()
        if most is not None:
            check_connections(most, fleet.workers.values())
        fleet.measure_clocks()
        self._configure_workers()
        self._write_provenance()
        if scenario.target.server is not None:
            self._tell(f"prefix cache: {prefix_cache_in_words(scenario)}")
        for level in self._levels:
            self._live.add_level(level)

    def _trace_s(self) -> tuple[float, ...] | None:
        """The instants that are replayed; None where none are."""
        if self._dataset is None or self._scenario.load.replay_speed is None:
            return None
        return self._dataset.timestamps_s()

    def _tell(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _pause(self, seconds: float) -> None:
        """Lets the other greenlets work; raises RunInterruptedError when a signal has asked the run to end, TargetLostError
        when the server is gone."""
        if self._stop.is_set():
            raise RunInterruptedError("The run was interrupted.")
        workers = () if self._fleet is None else self._fleet.workers.values()
        self._tell_of_lost(workers)
        self._under_test.check(worker.live for worker in workers)
        level = None if self._progress is None else self._progress.loaded_level
        self._guard.look(workers, self._under_test.metrics.latest, level)
        if self._soak is not None:
            self._soak.look()
        gevent.sleep(seconds)

    def _tell_of_lost(self, workers: Collection[Worker]) -> None:
        """At once: a level that may last for hours is invalid from here on."""
        for worker in workers:
            if not worker.lost:
                self._told_lost.discard(worker.index)
            elif worker.index not in self._told_lost:
                self._told_lost.add(worker.index)
                self._tell(
                    f"worker {worker.index} ({worker.hello.host}, process {worker.hello.pid}) went missing: the level is invalid, "
                    f"and goes on with {sum(not one.lost for one in workers)} of {len(workers)} workers until Ctrl-C ends it"
                )

    def _configure_workers(self) -> None:
        assert self._fleet is not None
        target, workers = self._under_test.target, self._fleet.workers.values()
        self._live.set_model(target.model)
        self._fleet.configure(
            self._part,
            lambda worker: configuration(
                self._scenario, target, self._part, self._nonce, self._capture, worker, workers
            ),
            more_s=reading_s(self._dataset),
        )

    def _write_provenance(self) -> None:
        assert self._fleet is not None
        under = self._under_test
        workers = self._fleet.workers.values()
        now = provenance(
            self._scenario, under.target, under.effective, under.metrics.describe(), self._dataset, workers
        )
        if self._part is not self._folder:
            before = self._folder.provenance()
            for sentence in changes(before, now):
                self._tell(sentence)
            now = with_resumption(before, now)
        self._folder.write_provenance(now)

    def measure(self) -> int:
        """Runs the levels as far as it comes, then judges and writes whatever was measured."""
        assert self._fleet is not None
        load, course = self._scenario.load, self._loop.course
        to_come = course.listed(self._levels)
        progress = self._progress = Progress(
            levels=None if course.open_ended else len(to_come) + len(self._levels),
            named_keys=course.named_keys,
            remaining_s=sum(load.least_s(given_window_s(load, self._schedules.get(level.level))) for level in to_come),
        )
        display = Display(self._console, progress, self._live.figures)
        if self._levels:
            count = "1 level is" if len(self._levels) == 1 else f"{len(self._levels)} levels are"
            display.say(f"resumed: {count} measured, and kept")
        failure: LoadgenError | None = None
        drain_s = 0.0  # what is under way after the last window belongs to no window
        try:
            self._run_levels(self._fleet, progress, display)
        except (RunInterruptedError, SafetyStopError) as error:
            failure = error
            if isinstance(error, RunInterruptedError):
                resume = f"`loadgen run --resume {self._folder.path}` measures what is left"
                failure.hint = resume if self._soak is None else soak_hint(resume)
            self._stop.clear()  # it has been heard; another one ends the drain, or the wait for a last scrape
            drain_s = load.drain_timeout
            display.say(
                f"stopping: nothing more is sent; requests under way may take up to {drain_s:g} s to end, and another "
                "Ctrl-C ends them at once"
            )
        except LoadgenError as error:
            failure = error
        except OSError as error:
            if error.errno not in _NO_ROOM and not str(error.filename).startswith(str(self._folder.path)):
                raise
            failure = unwritable(self._folder.path, error)
        finally:
            progress.enter("drain" if drain_s else "writing")
            self._fleet.finish(drain_s, self._stop)
            if self._capture is not None:
                self._capture.close()
            self._under_test.metrics.end()
            self._live.end_load()
            display.close()
        if failure is not None:
            display.say(failure.report())
        judged = write_outputs(self._folder, Console())
        self._live.finish(judged.levels, self._stop)
        return judged.exit_code if failure is None else failure.exit_code

    def _run_levels(self, fleet: Fleet, progress: Progress, display: Display) -> None:
        reader = RunReader(self._folder)
        if self._scenario.soak.window is not None:
            self._soak = SoakWatch(reader, self._folder.path, self._live.set_soak)
        trace_s = self._trace_s()
        rows = None if self._dataset is None else self._dataset.survey.rows
        sweep = Sweep(
            fleet,
            self._part,
            self._scenario,
            lambda level: schedule_of(self._scenario, level, trace_s),
            self._pause,
            progress,
            rows,
        )

        def begin(level: Level) -> None:
            self._live.begin_level(level)
            display.begin(level)

        def drained(plan: LevelPlan) -> None:
            if self._capture is not None and plan.drained_ns is not None:
                self._capture.await_covered(plan.drained_ns)
            self._under_test.metrics.await_end(plan)

        def judge_them() -> None:
            for level in judge(reader.drained(), self._scenario):
                self._levels.append(level)
                level["limit"] = limit_of(level, self._levels)
                self._live.add_level(level)
                display.say(level_line(level, progress))
                write_level(self._folder.path, level)

        self._loop.run(
            fleet,
            sweep,
            progress,
            configure=self._configure_workers,
            on_begin=begin,
            on_drained=drained,
            judge=judge_them,
        )
