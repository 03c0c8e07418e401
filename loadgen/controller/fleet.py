"""The workers as the controller sees them: Locust's master, who is there, what each has said, and who went missing."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import gevent
import locust
from gevent.event import Event
from locust import User, rpc
from locust.env import Environment
from locust.exception import RPCError
from locust.runners import STATE_MISSING

from loadgen import messages, spool
from loadgen.controller.local_workers import LocalWorkers
from loadgen.controller.worker import Worker
from loadgen.errors import LoadgenError, UsageError
from loadgen.host import boot_id
from loadgen.messages import (
    Ack,
    Block,
    Configure,
    Finish,
    Finished,
    Hello,
    IncompatibleWorkerError,
    LevelDone,
    Message,
    Problem,
    Ready,
)
from loadgen.run_folder import RunFolder
from loadgen.stats.progress import Progress
from loadgen.worker.streaming_user import StreamingUser

_PINGS = 12
_POLL_S = 0.02
_CONNECT_S = 30.0
_FINISH_S = 15.0

# The users of a level are there at once; the ramp that spreads their first requests is ours.
logging.getLogger("locust.runners").addFilter(lambda entry: "spawn rate is very high" not in str(entry.msg))

Pause = Callable[[float], object]


class Fleet:
    """Locust's master runner and its workers, local and remote. Runs in the hub; nothing here blocks it."""

    def __init__(
        self,
        *,
        bind_host: str,
        bind_port: int,
        on_live: Callable[[Worker], object],
        pause: Pause,
        user_class: type[User] = StreamingUser,
        further_classes: Sequence[type[User]] = (),
        runner: Any = None,
    ) -> None:
        """`bind_port` 0 takes a free one. `pause` sleeps, and raises when the run is to end. `user_class`: whom the workers
        run; `further_classes`: whom `use` may have them run instead. `runner`: a master that is there already, in place of those three. Raises UsageError when the port is taken."""
        if runner is None:
            environment = Environment(user_classes=[user_class, *further_classes], events=locust.events)
            try:
                runner = environment.create_master_runner(bind_host, bind_port)
            except (RPCError, SystemExit):
                raise UsageError(
                    f"The port {bind_port} for workers is taken on {bind_host}.",
                    hint="end the other controller, or choose another with --master-bind-port",
                ) from None
            self.port: int = runner.server.port
        self.runner = runner
        self._user_class: type[User] | None = user_class if further_classes else None
        self._environment = runner.environment
        self.workers: dict[str, Worker] = {}
        self._local = LocalWorkers()
        self._on_live = on_live
        self._pause = pause
        self.on_progress: Callable[[int, Progress], object] | None = None
        """Who watches the level settle: is given each worker's index and what it tells."""
        self._folder: RunFolder | None = None
        self._best_ping_ns: dict[str, int] = {}
        self._complete = False
        self._refused: IncompatibleWorkerError | None = None
        self.late_joiners = 0
        """Workers that came after the run had begun, and were sent away."""
        for name, listener in (
            (messages.HELLO, self._on_hello),
            (messages.PONG, self._on_pong),
            (messages.READY, self._on_ready),
            (messages.PROGRESS, self._on_progress),
            (messages.BLOCK, self._on_block),
            (messages.LEVEL_DONE, self._on_level_done),
            (messages.PROBLEM, self._on_problem),
            (messages.FINISHED, self._on_finished),
        ):
            self.runner.register_message(name, listener)
        locust.events.worker_report.add_listener(self._on_report)

    def start_local(self, count: int, log: Any) -> None:
        """Starts workers on this host; they die with this process, and their output goes to `log`."""
        self._local.start(count, self.port, log)

    def await_workers(self, count: int) -> None:
        """Waits until `count` workers have said hello. Raises LoadgenError when one dies or does not come."""
        deadline = time.monotonic() + (_CONNECT_S if len(self._local.processes) == count else float("inf"))
        while len(self.workers) < count:
            if self._refused is not None:
                raise self._refused
            for process in self._local.ended():
                raise LoadgenError(
                    f"A worker ended with exit code {process.returncode} before it connected.",
                    hint="its output is in run.log in the run folder",
                )
            if time.monotonic() > deadline:
                raise LoadgenError(
                    f"Only {len(self.workers)} of {count} workers connected within {_CONNECT_S:g} s.",
                    hint="its output is in run.log in the run folder",
                )
            self._pause(_POLL_S)

    def measure_clocks(self) -> None:
        """Finds each remote worker's clock offset from the ping with the least round trip (Cristian 1989)."""
        if all(worker.same_clock for worker in self.workers.values()):
            return
        self._best_ping_ns.clear()
        for _ in range(_PINGS):
            for worker in self.workers.values():
                self.runner.send_message(messages.PING, {"sent_ns": time.monotonic_ns()}, worker.client_id)
            self._pause(0.05)

    def configure(self, folder: RunFolder, plan_for: Callable[[Worker], Configure], *, more_s: float = 0.0) -> None:
        """Configures every worker and waits until each is ready, `more_s` longer than it takes for nothing. Raises
        LoadgenError when one is not."""
        self._folder = folder
        self._complete = True
        for worker in self.workers.values():
            worker.ready = None
            self.say(messages.CONFIGURE, plan_for(worker), worker)
        deadline = time.monotonic() + _CONNECT_S + more_s
        while waiting := [w for w in self.workers.values() if w.ready is None]:
            if time.monotonic() > deadline:
                raise LoadgenError(f"Worker {waiting[0].index} ({waiting[0].hello.host}) did not get ready.")
            self._pause(_POLL_S)
        for worker in self.workers.values():
            if worker.ready is not None and worker.ready.problem:
                raise LoadgenError(f"Worker {worker.index} ({worker.hello.host}) cannot work: {worker.ready.problem}.")

    def say(self, name: str, message: Message, worker: Worker | None = None) -> None:
        """Sends a message to one worker, or to all."""
        for each in [worker] if worker is not None else list(self.workers.values()):
            self.runner.send_message(name, message.encode(), each.client_id)

    def spawn(self, users: int) -> None:
        """Has Locust run so many users over all workers; waits until they are there and surplus ones have gone."""
        # The rate holds for the way down too: one that is lower takes users away a second apart.
        classes = None if self._user_class is None else [self._user_class]
        self.runner.start(users, spawn_rate=max(1, users, self.users), user_classes=classes)
        deadline = time.monotonic() + self._environment.stop_timeout + 1
        while self.users > users and time.monotonic() < deadline:
            self._pause(_POLL_S)

    def use(self, user_class: type[User]) -> None:
        """Users that are spawned from here on are of this class, one of those that the fleet was made with; others end."""
        if self._user_class not in (None, user_class):
            self.spawn(0)
            self._user_class = user_class

    @property
    def users(self) -> int:
        """Users that run now, as the workers report."""
        return int(self.runner.user_count)

    def set_stop_timeout(self, seconds: float) -> None:
        """How long a user that is to stop may take to finish its request."""
        self._environment.stop_timeout = seconds

    def find_lost(self) -> list[Worker]:
        """Marks the workers that are gone: their process has ended, or Locust misses their heartbeat. Gives the marked."""
        for worker in self.workers.values():
            worker.lost |= self._is_missing(worker)
        return [worker for worker in self.workers.values() if worker.lost]

    def present(self) -> list[Worker]:
        """Forgets the marks of workers that have come back, and gives those that are there."""
        for worker in self.workers.values():
            worker.lost = self._is_missing(worker)
        return [worker for worker in self.workers.values() if not worker.lost]

    def _is_missing(self, worker: Worker) -> bool:
        if worker.finished is not None:
            return False
        node = self.runner.clients.get(worker.client_id)
        if worker.same_clock and worker.hello.pid in {process.pid for process in self._local.ended()}:
            if node is not None:
                self._drop(worker.client_id)
            return True
        return node is None or node.state == STATE_MISSING

    def _drop(self, client_id: str) -> None:
        """Takes a worker out of Locust's distribution at once: it would notice after seconds, and give users to nobody."""
        self.runner.handle_message(client_id, rpc.Message("client_stopped", None, client_id))

    def finish(self, drain_s: float, stop: Event) -> None:
        """Ends the users and lets every worker write what it has; requests under way may take `drain_s` to end, or until
        `stop` is set."""
        self.say(messages.FINISH, Finish(drain_s))
        deadline = time.monotonic() + drain_s + _FINISH_S
        while any(not w.finished and not w.lost for w in self.workers.values()) and time.monotonic() < deadline:
            if drain_s and stop.is_set():
                self.finish(0, stop)
                return
            self.find_lost()
            gevent.sleep(_POLL_S)

    def close(self) -> None:
        """Tells the workers to quit and waits for the local ones; kills those that do not."""
        self._local.terminate()  # a worker that has not connected yet hears nothing else
        with contextlib.suppress(Exception):  # whatever state Locust is in, the processes below must end
            self.runner.quit()
        self._local.end()
        for worker in self.workers.values():
            if worker.block_writer is not None:
                worker.block_writer.close()
        locust.events.worker_report.remove_listener(self._on_report)

    def _on_hello(self, environment: Any, msg: Any) -> None:
        if msg.node_id in self.workers:
            return
        try:
            hello = Hello.decode(msg.data)
        except IncompatibleWorkerError as error:
            self._refused = error
            self.runner.send_message("quit", None, msg.node_id)
            return
        if self._complete:
            # Its share of the prompts and its clock are not known to the run, and users would move to it in mid-level.
            self.late_joiners += 1
            self.runner.send_message("quit", None, msg.node_id)
            # Not here: it waits for other workers' messages, and this is the greenlet that receives them.
            gevent.spawn(self._drop, msg.node_id)
            return
        self.workers[msg.node_id] = Worker(msg.node_id, len(self.workers), hello, same_clock=hello.boot_id == boot_id())

    def _on_pong(self, environment: Any, msg: Any) -> None:
        now_ns = time.monotonic_ns()
        worker = self.workers[msg.node_id]
        round_trip_ns = now_ns - msg.data["sent_ns"]
        if worker.same_clock or round_trip_ns >= self._best_ping_ns.get(msg.node_id, sys.maxsize):
            return
        self._best_ping_ns[msg.node_id] = round_trip_ns
        worker.offset_ns = msg.data["worker_ns"] - (msg.data["sent_ns"] + now_ns) // 2
        worker.error_ns = round_trip_ns // 2

    def _on_ready(self, environment: Any, msg: Any) -> None:
        self.workers[msg.node_id].ready = Ready.decode(msg.data)

    def _on_progress(self, environment: Any, msg: Any) -> None:
        if self.on_progress is not None:
            self.on_progress(self.workers[msg.node_id].index, Progress.decode(msg.data))

    def _on_block(self, environment: Any, msg: Any) -> None:
        block = Block.decode(msg.data)
        worker = self.workers[msg.node_id]
        if block.number == worker.blocks:  # else it came before, or one before it is missing and will be sent again
            if worker.block_writer is None:
                assert self._folder is not None
                worker.block_writer = spool.SpoolWriter(self._folder.spool(worker.index))
            try:
                worker.block_writer.append(block.payload)
            except OSError as error:
                worker.problem = f"its records cannot be written here: {error.strerror or type(error).__name__}"
                return
            worker.blocks += 1
        self._acknowledge(worker)

    def _on_level_done(self, environment: Any, msg: Any) -> None:
        worker = self.workers[msg.node_id]
        worker.level_done = LevelDone.decode(msg.data)
        self._acknowledge(worker)

    def _acknowledge(self, worker: Worker) -> None:
        level = worker.level_done.level if worker.level_done is not None else -1
        self.say(messages.ACK, Ack(blocks=worker.blocks, level=level), worker)

    def _on_problem(self, environment: Any, msg: Any) -> None:
        self.workers[msg.node_id].problem = Problem.decode(msg.data).problem

    def _on_finished(self, environment: Any, msg: Any) -> None:
        self.workers[msg.node_id].finished = Finished.decode(msg.data)

    def _on_report(self, client_id: str, data: dict[str, Any]) -> None:
        worker = self.workers.get(client_id)
        if worker is not None and messages.LIVE in data:
            worker.live, worker.live_s = data[messages.LIVE], time.monotonic()
            self._on_live(worker)
