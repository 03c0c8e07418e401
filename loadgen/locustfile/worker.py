"""The side of a run under plain Locust that makes load: one for each worker's process, or for the only one.

As the worker of a scenario, but for its levels: they have no prompts to build, and their windows end when Locust's load
changes. It is there for as long as its process; a test begins with CONFIGURE and is over after FINISH.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from typing import Any, cast

import gevent
from locust.runners import WorkerRunner

from loadgen import messages
from loadgen.locustfile import sender
from loadgen.locustfile.messages import CALL, NAMES, OPEN_END_NS, Names
from loadgen.locustfile.sender import Sender
from loadgen.locustfile.workload import TaskWorkload
from loadgen.messages import Level, Window
from loadgen.record import RequestRecord, WorkerHealth
from loadgen.worker import generator
from loadgen.worker.async_user import fire_events
from loadgen.worker.live import LiveCounts
from loadgen.worker.open_loop import OpenLoop
from loadgen.worker.process import WorkerProcess
from loadgen.worker.prompt_queue import PromptQueue
from loadgen.workload.planned import PlannedRequest

_POLL_S = 0.05
# A worker that is interrupted waits this long for word that its master is, too.
_WORD_S = 5.0
_LAST_S = 60.0


class LocustfileWorker(WorkerProcess):
    """Serves one test after another."""

    def __init__(self, runner: Any, *, open_loop: bool) -> None:
        """`open_loop`: whether the users of the locustfile follow schedules."""
        super().__init__(runner)
        self._open_loop = open_loop
        self._background: list[gevent.Greenlet] = []
        self._opening: asyncio.Task[None] | None = None
        self._told_names = 0
        self._ending = False
        runner.register_message(CALL, self._on_call)

    def await_end(self) -> None:
        """The process was interrupted: lets a test that its master ends come to its end, as the master asks for it."""
        deadline = time.monotonic() + _WORD_S
        while sender.current() is not None and time.monotonic() < deadline:
            if self._ending:
                deadline = time.monotonic() + _LAST_S
            gevent.sleep(_POLL_S)

    def live(self) -> dict[str, Any]:
        """What a worker's report carries, for a process that is its own master."""
        data: dict[str, Any] = {}
        self._report("local", data)
        return data

    def _on_call(self, environment: Any, msg: Any) -> None:
        self._say(messages.HELLO, self._hello())

    def _on_configure(self, environment: Any, msg: Any) -> None:
        self._end_test()  # one whose master is gone
        super()._on_configure(environment, msg)
        load, workload = self._generator, self._supply.workload
        if load is None or not isinstance(workload, TaskWorkload):
            return  # READY has said why
        sender.use(Sender(load, workload, open_loop=self._open_loop))
        works = (self._write_forever, self._memory.look_forever, self._hub_probe.run_forever)
        self._background = [gevent.spawn(work) for work in works]

    def _on_level(self, environment: Any, msg: Any) -> None:
        level, load, send = Level.decode(msg.data), self._generator, sender.current()
        assert load is not None and send is not None
        plan, open_users = load.plan, send.open_users
        # For its numbers alone: what is asked for is made when a task asks.
        numbers = PromptQueue(_nothing, level=level.level, worker=plan.worker, workers=plan.workers, depth=0)

        def begin() -> None:
            load.begin_level(level, numbers)
            load.open_loop = cast(OpenLoop | None, open_users)  # asked the same, of several schedules

        self._memory.begin_level()
        self._thread.on_loop(begin)

    def _on_window(self, environment: Any, msg: Any) -> None:
        window, load = Window.decode(msg.data), self._generator
        assert load is not None
        self._ending = window.end_ns != OPEN_END_NS

        def done(health: WorkerHealth) -> None:
            self._thread.on_hub(lambda: gevent.spawn(self._end_level, health))

        def begin() -> None:
            if self._opening is not None:
                self._opening.cancel()
                self._opening = None
            create_task = self._thread.loop.create_task
            if window.end_ns == OPEN_END_NS:
                self._opening = create_task(load.open_window(window.start_ns))
            else:
                create_task(load.close_window(window, done))

        self._thread.on_loop(begin)

    def _on_ack(self, environment: Any, msg: Any) -> None:
        if self._ledger is not None:
            super()._on_ack(environment, msg)

    def _finish(self, drain_s: float) -> None:
        self._ending = True
        self._environment.stop_timeout = drain_s
        self._runner.stop_users(self._runner.user_classes_count)
        fire_events()
        if isinstance(self._runner, WorkerRunner):
            # Locust's master would wait half a second for the last report, and take its leave.
            self._runner._send_stats()
        super()._finish(drain_s)
        self._end_test()

    def _end_test(self) -> None:
        """Closes what a test has opened; does nothing where none was begun."""
        gevent.killall(self._background)
        sender.use(None)
        generator.use(None)
        if self._generator is not None:
            self._write()
            with contextlib.suppress(TimeoutError):
                self._thread.wait(self._generator.close(), timeout_s=10)
        if self._ledger is not None:
            self._ledger.close()
        self._generator = self._ledger = self._level_done = self._opening = None
        self._live = LiveCounts()
        self._problem = self._ending = False
        self._told_names = 0
        gc.unfreeze()
        gc.enable()

    def _write(self) -> None:
        super()._write()
        send = sender.current()
        if send is None:
            return
        names = list(send.names)  # in one step: the loop may add to them
        if len(names) > self._told_names:
            self._told_names = len(names)
            self._say(NAMES, Names(names=names))

    def _tell_locust(self, request: RequestRecord, name: str) -> None:
        """Users tell it themselves, with the name and the context of their task."""


def _nothing(level: int, number: int) -> PlannedRequest:
    raise AssertionError("a locustfile's requests are made by its tasks")
