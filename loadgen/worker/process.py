"""The worker's process: a Locust worker that is configured by a controller, writes its spool and reports what it did.

Runs in the hub. The loop makes records; here they are written down, counted for the live display, and told to Locust.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import time
from typing import Any

import gevent
import locust
import locust.runners
from locust.env import Environment

from loadgen import __version__, messages
from loadgen.api_key import read_api_key
from loadgen.errors import LoadgenError
from loadgen.host import boot_id, ephemeral_ports, raised_descriptor_limit
from loadgen.messages import Ack, Configure, Finish, Finished, Hello, Level, LevelDone, Problem, Ready, Window
from loadgen.record import OK, RequestRecord, WorkerHealth
from loadgen.route import Route
from loadgen.stats.progress import ProgressLog
from loadgen.worker import generator
from loadgen.worker.async_user import fire_events, loop_thread
from loadgen.worker.generator import Generator
from loadgen.worker.hub_probe import HubProbe
from loadgen.worker.ledger import Ledger
from loadgen.worker.live import LiveCounts
from loadgen.worker.memory import MemoryGuard
from loadgen.worker.prompt_supply import PromptSupply
from loadgen.worker.scheduled_user import ScheduledUser
from loadgen.worker.streaming_user import StreamingUser

_WRITE_S = 0.25
_REPORT_S = 1.0
# A worker whose controller says nothing for so long stops: load without a controller is nobody's wish.
_CONTROLLER_SILENT_S = 15
_LOOK_S = 0.1
_LOOKS_A_REPORT = 3
_LAST_ACK_S = 10.0


def connect(master_host: str, master_port: int) -> WorkerProcess:
    """A worker of the controller at this address. Raises LoadgenError when none answers."""
    locust.runners.WORKER_REPORT_INTERVAL = _REPORT_S
    locust.runners.MASTER_HEARTBEAT_TIMEOUT = _CONTROLLER_SILENT_S
    environment = Environment(user_classes=[StreamingUser, ScheduledUser], events=locust.events)
    print(f"awaiting the controller at {master_host}:{master_port}", file=sys.stderr, flush=True)
    try:
        return WorkerProcess(environment.create_worker_runner(master_host, master_port))
    except ConnectionError:
        raise LoadgenError(
            f"No controller answered at {master_host}:{master_port}.",
            hint="start `loadgen run --expect-workers …`, and check host and port",
        ) from None


class WorkerProcess:
    """One Locust worker from connection to exit."""

    def __init__(self, runner: Any) -> None:
        """`runner`: Locust's, connected."""
        self._runner = runner
        self._environment = runner.environment
        self._thread = loop_thread()
        self._live = LiveCounts()
        self._hub_probe = HubProbe()
        self._memory = MemoryGuard()
        self._ledger: Ledger | None = None
        self._generator: Generator | None = None
        self._supply = PromptSupply(self._tell_problem)
        self._level_done: LevelDone | None = None
        """Said and not acknowledged yet."""
        self._progress: ProgressLog | None = None
        """What the controller is told while it watches a level settle."""
        self._tokens_before = 0
        self._problem = False
        self._finishing: gevent.Greenlet | None = None
        self._measuring: asyncio.Task[None] | None = None
        """Who waits for the ends of a window and of its drain. On the loop only."""
        locust.events.report_to_master.add_listener(self._report)
        for name, listener, concurrent in (
            (messages.PING, self._on_ping, False),
            (messages.CONFIGURE, self._on_configure, True),
            (messages.LEVEL, self._on_level, False),
            (messages.WINDOW, self._on_window, False),
            (messages.ACK, self._on_ack, False),
            (messages.FINISH, self._on_finish, True),
        ):
            self._runner.register_message(name, listener, concurrent)

    def run(self) -> int:
        """Says hello and serves until the controller ends the run, or a signal does. Gives the exit code."""
        # Terminal signals reach the whole process group; the controller decides what an interrupt means for the run.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gevent.signal_handler(signal.SIGTERM, self._terminate)
        self._say(messages.HELLO, self._hello())
        background = self._start_background()
        self._runner.greenlet.join()
        gevent.killall(background)
        self._close()
        return 0

    def _hello(self) -> Hello:
        return Hello(
            host=socket.gethostname(),
            pid=os.getpid(),
            cores=os.cpu_count() or 1,
            program_version=__version__,
            boot_id=boot_id(),
            descriptors=raised_descriptor_limit(),
            ephemeral_ports=ephemeral_ports(),
            reads=None if (reads := self._thread.loop.reads) is None else reads.name,
        )

    def _start_background(self) -> list[gevent.Greenlet]:
        return [
            gevent.spawn(work)
            for work in (
                self._write_forever,
                self._supply.fill_forever,
                self._tell_progress_forever,
                self._memory.look_forever,
                self._hub_probe.run_forever,
            )
        ]

    def _say(self, name: str, message: messages.Message) -> None:
        self._runner.send_message(name, message.encode())

    def _on_ping(self, environment: Any, msg: Any) -> None:
        self._runner.send_message(messages.PONG, {**msg.data, "worker_ns": time.monotonic_ns()})

    def _on_configure(self, environment: Any, msg: Any) -> None:
        plan = Configure.decode(msg.data)
        try:
            api_key = read_api_key(plan.api_key_env)
            Route.from_dict(plan.route)  # a header's secret may not be set on this host
        except LoadgenError as error:
            self._say(messages.READY, Ready(worker=plan.worker, problem=str(error)))
            return
        if self._ledger is None:
            try:
                self._ledger = Ledger(plan, lambda block: self._say(messages.BLOCK, block))
            except OSError as error:
                problem = f"its spool cannot be written: {_words(error)}"
                self._say(messages.READY, Ready(worker=plan.worker, problem=problem))
                return
        ledger = self._ledger
        unusable = self._supply.configure(plan.workload)
        if unusable is not None:
            self._say(messages.READY, Ready(worker=plan.worker, problem=unusable))
            return

        async def make() -> Generator:
            return Generator(plan, api_key, ledger.table, self._hub_probe)

        if self._generator is not None:  # configured again, for the next server of the sweep
            self._write()
            self._thread.wait(self._end_measuring(), timeout_s=10)
            self._thread.wait(self._generator.close(), timeout_s=10)
        self._generator = self._thread.wait(make(), timeout_s=10)
        generator.use(self._generator)
        # From here on memory is collected between levels only (see Generator.begin_level), or before it runs out.
        gc.disable()
        self._say(messages.READY, Ready(worker=plan.worker, shares_folder=not ledger.ships))

    def _on_level(self, environment: Any, msg: Any) -> None:
        level = Level.decode(msg.data)
        load = self._generator
        assert load is not None
        requests, conversations = self._supply.begin_level(level, worker=load.plan.worker, workers=load.plan.workers)
        self._progress = None
        if level.tell_progress:
            self._progress = ProgressLog(now_ns=time.monotonic_ns(), clock_offset_ns=load.plan.clock_offset_ns)
            self._tokens_before = self._live.output_tokens(load)
        self._memory.begin_level()
        self._thread.on_loop(load.begin_level, level, requests, conversations)

    def _on_window(self, environment: Any, msg: Any) -> None:
        window = Window.decode(msg.data)
        load = self._generator
        assert load is not None
        self._progress = None

        def done(health: WorkerHealth) -> None:
            self._thread.on_hub(lambda: gevent.spawn(self._end_level, health))

        def measure() -> None:
            self._measuring = self._thread.loop.create_task(load.measure(window, done))

        self._thread.on_loop(measure)

    async def _end_measuring(self) -> None:
        """A level that was ended early has no end of its window to wait for."""
        if self._measuring is not None:
            self._measuring.cancel()

    def _end_level(self, health: WorkerHealth) -> None:
        self._write()
        ledger = self._ledger
        assert ledger is not None
        try:
            ledger.write_health(health)
        except OSError as error:
            self._give_up(error)
            return
        self._level_done = LevelDone(
            worker=health.worker, level=health.level, records=ledger.records, blocks=ledger.blocks
        )
        self._say(messages.LEVEL_DONE, self._level_done)

    def _on_ack(self, environment: Any, msg: Any) -> None:
        ack = Ack.decode(msg.data)
        assert self._ledger is not None
        self._ledger.acknowledge(ack.blocks)
        if self._level_done is not None and ack.level >= self._level_done.level:
            self._level_done = None

    def _on_finish(self, environment: Any, msg: Any) -> None:
        finish = Finish.decode(msg.data)
        if self._finishing is not None:
            self._finishing.kill(block=True)
        self._finishing = gevent.spawn(self._finish, finish.drain_s)

    def _finish(self, drain_s: float) -> None:
        # What still runs after the drain is cancelled, recorded as such, and its connection closed.
        self._environment.stop_timeout = drain_s
        self._runner.stop_users(self._runner.user_classes_count)
        self._write()
        ledger, load = self._ledger, self._generator
        if ledger is None or load is None:
            return
        with gevent.Timeout(_LAST_ACK_S, False):
            while not ledger.acknowledged:
                gevent.sleep(_WRITE_S)
        self._say(messages.FINISHED, Finished(worker=load.plan.worker, records=ledger.records, blocks=ledger.blocks))

    def _terminate(self) -> None:
        self._environment.stop_timeout = 0
        self._runner.quit()

    def _write_forever(self) -> None:
        resent_s = time.monotonic()
        while True:
            gevent.sleep(_WRITE_S)
            self._write()
            if self._ledger is not None:
                self._ledger.resend()
            if self._generator is not None and self._generator.problem is not None and not self._problem:
                self._give_up(self._generator.problem)
            if self._level_done is not None and time.monotonic() - resent_s > 2:
                resent_s = time.monotonic()
                self._say(messages.LEVEL_DONE, self._level_done)

    def _tell_progress_forever(self) -> None:
        """While a level settles: ten looks a second at the tokens so far, four reports a second."""
        looks = 0
        while True:
            gevent.sleep(_LOOK_S)
            log, load = self._progress, self._generator
            if log is None or load is None:
                continue
            log.note_tokens(time.monotonic_ns(), self._live.output_tokens(load) - self._tokens_before)
            looks += 1
            if looks % _LOOKS_A_REPORT == 0:
                self._runner.send_message(messages.PROGRESS, log.take().encode())

    def _write(self) -> None:
        """Takes the finished records: to the spool, the live counts and Locust's own statistics."""
        load, ledger = self._generator, self._ledger
        if load is None or ledger is None or self._problem:
            return
        finished = []
        while load.finished:
            finished.append(load.finished.popleft())
        if not finished:
            return
        try:
            ledger.write(finished)
            if load.answers is not None:
                ledger.write_answers(load.answers.take())
        except OSError as error:
            self._give_up(error)
            return
        # A request given up as censored comes a second time when it ends, and is counted then.
        records = [request for request, slot in finished if slot is not None]
        self._live.add(records)
        for request in records:
            if self._progress is not None:
                self._progress.note_finished(request)
            self._tell_locust(request, load.plan.endpoint)

    def _give_up(self, error: OSError) -> None:
        """What cannot be kept must not be measured: the controller ends the run with what it has."""
        self._problem = True
        self._tell_problem(f"its records cannot be written: {_words(error)}")

    def _tell_problem(self, problem: str) -> None:
        load = self._generator
        self._say(messages.PROBLEM, Problem(worker=load.plan.worker if load else -1, problem=problem))

    def _tell_locust(self, request: RequestRecord, name: str) -> None:
        locust.events.request.fire(
            request_type="SSE",
            name=name,
            response_time=(request.finished_ns - request.dispatched_ns) / 1e6,
            response_length=request.response_bytes,
            exception=None if request.status == OK else RuntimeError(f"{request.status}: {request.reason}"),
            context={},
        )

    def _report(self, client_id: str, data: dict[str, Any]) -> None:
        load = self._generator
        if load is not None:
            data[messages.LIVE] = self._live.snapshot(load)

    def _close(self) -> None:
        fire_events()
        if self._generator is not None:
            self._write()
            with contextlib.suppress(TimeoutError):
                self._thread.wait(self._generator.close(), timeout_s=2)
        if self._ledger is not None:
            self._ledger.close()
        self._supply.close()
        self._thread.stop()


def _words(error: OSError) -> str:
    return error.strerror or type(error).__name__
