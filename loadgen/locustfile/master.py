"""The master of a locustfile's tests, or its only process: begins and ends a run of ours as Locust's events tell it."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import gevent
from gevent.event import Event
from locust.runners import LocalRunner

from loadgen.controller.target import Target
from loadgen.errors import LoadgenError, UsageError
from loadgen.locustfile.fleet import LocustfileFleet
from loadgen.locustfile.options import output_dir_of, scenario_of
from loadgen.locustfile.run import LocustfileRun
from loadgen.locustfile.target import inspect_target
from loadgen.locustfile.users import OpenLoopLLMUser, is_open_loop, llm_users
from loadgen.locustfile.worker import LocustfileWorker
from loadgen.locustfile.workload import TaskWorkload
from loadgen.scenario.model import Scenario

_log = logging.getLogger("loadgen")
_REPORT_S = 1.0


class Master:
    """One a process: a test after another, as the web UI may start them."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._runner = environment.runner
        self._run: LocustfileRun | None = None
        self._lingering: gevent.Greenlet | None = None
        self._no_more = Event()
        self._found: tuple[Scenario, Target, TaskWorkload] | None = None
        self._worker: LocustfileWorker | None = None
        self._fleet = LocustfileFleet(self._runner, on_live=self._on_live, pause=gevent.sleep)
        if isinstance(self._runner, LocalRunner):
            self._worker = LocustfileWorker(self._runner, open_loop=is_open_loop(environment))
            gevent.spawn(self._report_forever, self._worker)

    def _on_live(self, worker: Any) -> None:
        if self._run is not None:
            self._run.live.update_worker(worker)

    def _report_forever(self, worker: LocustfileWorker) -> None:
        while True:
            gevent.sleep(_REPORT_S)
            self._fleet.take_live(worker.live())

    def init(self) -> None:
        """Before anything: refuses what can be. A test that begins by itself must not lose its time to the target."""
        options = self._environment.parsed_options
        check_tasks(self._environment)
        if options is None or not (options.headless or options.autostart):
            return
        scenario = self._scenario(users=options.num_users or 1)
        self._found = (scenario, *inspect_target(scenario, gevent.sleep))

    def _scenario(self, users: int) -> Scenario:
        environment = self._environment
        classes = llm_users(environment)
        open_loop = is_open_loop(environment)
        rates = [one.request_rate for one in classes if issubclass(one, OpenLoopLLMUser)]
        host = environment.host or next((one.host for one in classes if one.host), None)
        return scenario_of(
            environment.parsed_options,
            host=host,
            locustfile=environment.locustfile or "locustfile",
            concurrency=None if open_loop else max(1, users),
            request_rate=max(1, users) * sum(rates) / len(rates) if open_loop else None,
        )

    def start(self) -> None:
        """Ends the greenlet of the test when it is refused."""
        self._end_linger()
        try:
            scenario = self._scenario(self._runner.target_user_count)
            found, self._found = self._found, None
            if found is not None and found[0].target == scenario.target and found[0].workload == scenario.workload:
                scenario, target, workload = scenario.model_copy(update={"seed": found[0].seed}), found[1], found[2]
            else:
                target, workload = inspect_target(scenario, gevent.sleep)
            folder = output_dir_of(self._environment.parsed_options)
            run = LocustfileRun(self._environment, self._fleet, scenario, folder)
            run.prepare(target, workload)
            self._run = run
        except LoadgenError as error:
            self._refuse(error)
            raise gevent.GreenletExit from None

    def _refuse(self, error: LoadgenError) -> None:
        _log.error(error.report())
        options = self._environment.parsed_options
        if options is not None and (options.headless or options.autostart):
            self._environment.process_exit_code = error.exit_code
            gevent.spawn(self._quit)

    def _quit(self) -> None:
        self._runner.quit()
        if self._environment.web_ui is not None:
            self._environment.web_ui.stop()

    def stopping(self) -> None:
        if self._run is not None:
            self._run.end()

    def stopped(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        try:
            exit_code = run.finish()
        except LoadgenError as error:
            _log.error(error.report())
            exit_code = error.exit_code
        if exit_code and self._environment.process_exit_code is None:
            self._environment.process_exit_code = exit_code
        self._no_more.clear()
        self._lingering = gevent.spawn(self._linger, run)

    def _linger(self, run: LocustfileRun) -> None:
        try:
            run.linger(self._no_more)
            if self._environment.web_ui is not None:  # there is time: until the next test, or until Locust is quit
                self._no_more.wait()
        finally:
            run.close()

    def _end_linger(self) -> None:
        self._no_more.set()
        if self._lingering is not None:
            self._lingering.join()
            self._lingering = None

    def quit(self) -> None:
        if self._lingering is None:
            return
        if self._environment.web_ui is not None:
            self._no_more.set()
        try:
            self._lingering.join()
        except KeyboardInterrupt:
            self._end_linger()

    def note_joiner(self) -> None:
        self._fleet.note_joiner()


def check_tasks(environment: Any) -> None:
    classes = llm_users(environment)
    kinds = {issubclass(one, OpenLoopLLMUser) for one in classes}
    if len(kinds) > 1:
        raise UsageError(
            "The locustfile has users of a closed loop and of an open one, and a level is one or the other: "
            f"{', '.join(one.__name__ for one in classes)}.",
            hint="name those to run behind the other options, such as `locust -f FILE ChatUser`",
        )
    for one in classes:
        if not one.tasks:
            raise UsageError(f"{one.__name__} has no task.", hint="write one: `@task` above `async def …(self)`")
        for task in one.tasks:
            if inspect.isclass(task):
                raise UsageError(
                    f"{one.__name__} has the TaskSet {task.__name__}, which runs on Locust's greenlets, not on the event loop.",
                    hint="write its tasks as `async def` of the user class",
                )
