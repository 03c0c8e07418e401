"""`loadgen run` from scenario to exit code: server, workers, target, sweep, judgement, outputs, in that order."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from rich.console import Console

from loadgen import host
from loadgen.arrivals.schedule import Schedule
from loadgen.controller.capture import Capture, check_capture
from loadgen.controller.display import Display, level_line
from loadgen.controller.fleet import Fleet, Worker, check_connections
from loadgen.controller.live import LiveRun
from loadgen.controller.open_level import check_places
from loadgen.controller.own_server import start_simulator
from loadgen.controller.read_dataset import read_dataset, reading_s
from loadgen.controller.sweep import Sweep
from loadgen.controller.sweep_progress import Progress
from loadgen.controller.target import Target, inspect, route_of
from loadgen.datasets.plan import SurveyedDataset, provenance_of
from loadgen.datasets.workload import DatasetWorkload
from loadgen.errors import LoadgenError, RunInterruptedError, UsageError
from loadgen.judgement import judge
from loadgen.messages import Configure
from loadgen.outputs import write_outputs
from loadgen.record import LevelPlan
from loadgen.report.summary import write_level
from loadgen.run_folder import RunFolder, RunReader
from loadgen.scenario.model import Level, Scenario
from loadgen.scenario.schedules import given_window_s, schedules
from loadgen.wire.pool import Reuse
from loadgen.worker.scheduled_user import ScheduledUser
from loadgen.worker.streaming_user import StreamingUser
from loadgen.workload.carried import to_carry
from server.process import ServerProcess


def run(scenario: Scenario, output_dir: Path | None) -> int:
    """Runs the whole scenario and gives the exit code. Raises LoadgenError before anything was measured."""
    scenario = scenario.with_seed()
    path = output_dir or Path("runs") / scenario.name / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    existed = path.exists()
    with contextlib.ExitStack() as stack:
        live = LiveRun(scenario)
        stack.callback(live.close)
        live.serve()
        nonce = secrets.token_hex(8)
        folder = RunFolder.create(path, scenario_yaml=scenario.to_yaml(), nonce=nonce)
        stack.enter_context(folder.lock())
        controller = _Controller(scenario, folder, nonce, live, stack)
        try:
            controller.prepare()
        except BaseException:
            stack.close()  # whoever writes into the folder ends first
            folder.discard(keep=existed)
            raise
        return controller.measure()


class _Controller:
    """The parts of one run, and the order in which they work."""

    def __init__(
        self, scenario: Scenario, folder: RunFolder, nonce: str, live: LiveRun, stack: contextlib.ExitStack
    ) -> None:
        self._scenario = scenario
        self._folder = folder
        self._nonce = nonce
        self._live = live
        self._stack = stack
        self._console = Console(stderr=True)
        self._stop = Event()
        self._server: ServerProcess | None = None
        self._server_port = 0
        self._dataset: SurveyedDataset | None = None
        self._target: Target
        self._capture: Capture | None = None
        self._fleet: Fleet
        self._schedules: dict[int, Schedule] = {}
        """Of an open loop, by level."""

    def prepare(self) -> None:
        """Everything that can be refused: the target, the prompts, the workers."""
        scenario = self._scenario
        if scenario.audit:
            check_capture()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Python's own handlers, not gevent's watchers: asyncio.Runner, which sends the probe, would replace the
            # watcher of SIGINT, and leaves alone a handler that is not the default one.
            self._stack.callback(signal.signal, number, signal.signal(number, lambda *_: self._stop.set()))
        self._stack.callback(self._stop_server)
        index = self._folder.path / "dataset"  # for the workers of this host too; it goes with the run
        self._stack.callback(shutil.rmtree, index, ignore_errors=True)
        self._dataset = read_dataset(scenario, index, self._console, self._pause)
        self._schedules = schedules(scenario, self._trace_s())
        local, remote = scenario.workers.local_count(), scenario.workers.expect
        workers = scenario.workers
        self._fleet = Fleet(
            bind_host=workers.bind_host or ("*" if remote else "127.0.0.1"),
            bind_port=workers.bind_port if remote else 0,
            on_live=self._live.update_worker,
            pause=self._pause,
            user_class=ScheduledUser if scenario.load.open_loop else StreamingUser,
        )
        self._stack.callback(self._fleet.close)
        log = self._stack.enter_context((self._folder.path / "run.log").open("ab"))
        os.environ.update(route_of(scenario.target).environment())  # for the workers
        # The workers start up while the server is asked what it is.
        self._fleet.start_local(local, log)
        self._use_server(scenario.levels()[0])
        if scenario.audit:
            self._capture = Capture(self._folder, self._target.base_url, log, self._pause)
            self._stack.callback(self._capture.close)
        if remote:
            self._console.print(f"awaiting {remote} workers on port {self._fleet.port}", highlight=False)
        self._fleet.await_workers(local + remote)
        if remote:
            self._console.print(f"{local + remote} workers have joined", highlight=False)
        check_places(scenario.load, local + remote)
        most = scenario.load.most_in_flight()
        if most is not None:
            check_connections(most, self._fleet.workers.values())
        self._fleet.measure_clocks()
        self._configure_workers()
        self._folder.write_provenance(self._provenance())

    def _trace_s(self) -> tuple[float, ...] | None:
        """The instants that are replayed; None where none are."""
        if self._dataset is None or self._scenario.load.replay_speed is None:
            return None
        return self._dataset.timestamps_s()

    def _use_server(self, level: Level) -> None:
        """Has the target answer with the settings of a level, starting it if it is ours."""
        scenario = self._scenario
        base_url = scenario.target.base_url
        if base_url is None:
            self._stop_server()
            self._server, base_url = start_simulator(
                level.server,
                log=self._folder.path / "server.log",
                port=self._server_port,
                timeout_s=scenario.target.ready_timeout,
                pause=self._pause,
            )
            self._server_port = int(base_url.rpartition(":")[2])
        self._target = inspect(
            scenario,
            base_url,
            dataset=self._dataset,
            tell=lambda text: self._console.print(text, highlight=False),
            pause=self._pause,
        )
        self._live.set_model(self._target.model)

    def _pause(self, seconds: float) -> None:
        """Lets the other greenlets work; raises RunInterruptedError when a signal has asked the run to end."""
        if self._stop.is_set():
            raise RunInterruptedError("The run was interrupted.")
        gevent.sleep(seconds)

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _configure_workers(self) -> None:
        workers = len(self._fleet.workers)
        more_s = reading_s(self._dataset)
        self._fleet.configure(self._folder, lambda worker: self._plan_for(worker, workers), more_s=more_s)

    def _plan_for(self, worker: Worker, workers: int) -> Configure:
        scenario, target = self._scenario, self._target
        timeouts = scenario.timeouts
        limits = {
            f"{name}_ns": None if (value := getattr(timeouts, name)) is None else round(value * 1e9)
            for name in ("connect", "first_byte", "first_token", "between_tokens", "total")
        }
        return Configure(
            worker=worker.index,
            workers=workers,
            base_url=target.base_url,
            endpoint=scenario.target.endpoint,
            route=target.route.to_dict(),
            reuse=self._reuse_of(worker, workers).to_dict(),
            api_key_env=scenario.target.api_key_env,
            workload=to_carry(target.workload),
            limits_ns=limits,
            run_folder=str(self._folder.path.resolve()),
            nonce=self._nonce,
            clock_offset_ns=worker.offset_ns,
            clock_error_ns=worker.error_ns,
            audit_addresses=None if self._capture is None else self._capture.addresses,
        )

    def _reuse_of(self, worker: Worker, workers: int) -> Reuse:
        target = self._scenario.target
        most = target.max_connections
        if most is not None and most < workers:
            raise UsageError(
                f"target.max_connections is {most}, fewer than the {workers} workers.",
                hint="allow at least one connection a worker, or use fewer workers",
            )
        position = sorted(other.index for other in self._fleet.workers.values()).index(worker.index)
        return Reuse(
            per_request=target.connections == "per-request",
            recycle_requests=target.recycle_requests,
            recycle_age_ns=None if target.recycle_age is None else round(target.recycle_age * 1e9),
            max_connections=None if most is None else most // workers + (position < most % workers),
        )

    def _provenance(self) -> dict[str, Any]:
        return {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "seed": self._scenario.seed,
            "target": self._target.describe(),
            "dataset": self._dataset_provenance(),
            "controller": host.describe(),
            "workers": [
                {
                    "worker": worker.index,
                    "cores": worker.hello.cores,
                    "program_version": worker.hello.program_version,
                    "same_host": worker.same_clock,
                    "reads": worker.hello.reads,
                    "clock_error_ms": worker.error_ns / 1e6,
                }
                for worker in self._fleet.workers.values()
            ],
        }

    def _dataset_provenance(self) -> dict[str, Any] | None:
        workload = self._target.workload
        if self._dataset is None or not isinstance(workload, DatasetWorkload):
            return None
        return provenance_of(self._dataset, workload)

    def measure(self) -> int:
        """Runs the sweep as far as it comes, then judges and writes whatever was measured."""
        levels = self._scenario.levels()
        load = self._scenario.load
        progress = Progress(
            levels=len(levels),
            named_keys=_named_keys(levels),
            remaining_s=sum(load.least_s(given_window_s(load, self._schedules.get(level.level))) for level in levels),
        )
        display = Display(self._console, progress, self._live.figures)
        failure: LoadgenError | None = None
        drain_s = 0.0  # what is under way after the last window belongs to no window
        try:
            reader = RunReader(self._folder)
            for plan in self._sweep(levels, progress, display):
                if self._capture is not None and plan.drained_ns is not None:
                    self._capture.await_covered(plan.drained_ns)
                for level in judge(reader.drained(), self._scenario):
                    self._live.add_level(level)
                    display.say(level_line(level, progress))
                    write_level(self._folder.path, level)
        except RunInterruptedError as error:
            failure = error
            self._stop.clear()  # it has been heard; another one ends the drain, or the wait for a last scrape
            drain_s = load.drain_timeout
        except LoadgenError as error:
            failure = error
        finally:
            progress.enter("drain" if drain_s else "writing")
            self._fleet.finish(drain_s, self._stop)
            if self._capture is not None:
                self._capture.close()
            self._live.end_load()
            display.close()
        if failure is not None:
            display.say(failure.report())
        judged = write_outputs(self._folder, Console())
        self._live.finish(judged.levels, self._stop)
        return judged.exit_code if failure is None else failure.exit_code

    def _sweep(self, levels: list[Level], progress: Progress, display: Display) -> Iterator[LevelPlan]:
        def begin(level: Level) -> None:
            self._live.begin_level(level)
            display.begin(level)

        rows = None if self._dataset is None else self._dataset.survey.rows
        sweep = Sweep(self._fleet, self._folder, self._scenario, self._schedules, self._pause, progress, rows)
        for number, (_, group) in enumerate(groupby(levels, key=lambda level: level.server)):
            for position, level in enumerate(group):
                if number and not position:
                    progress.enter("restarting the server")
                    self._fleet.spawn(0)
                    self._use_server(level)
                    self._configure_workers()
                yield sweep.run(level, on_begin=begin)


def _named_keys(levels: list[Level]) -> tuple[str, ...]:
    """Settings of our server that every level states: those that are swept, and the one that people tune."""
    settings = levels[0].server
    return tuple(key for key in settings if key == "max_num_seqs" or len({level.server[key] for level in levels}) > 1)
