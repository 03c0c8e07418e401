"""The worker's process: a Locust worker that is configured by a controller, writes its spool and reports what it did.

Runs in the hub. The loop makes records; here they are written down, counted for the live display, and told to Locust.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gevent
import locust
import locust.runners
from locust.env import Environment

from loadgen import __version__, messages, spool
from loadgen.errors import LoadgenError
from loadgen.host import boot_id
from loadgen.messages import Block, Configure, Finished, Hello, Level, LevelDone, Ready, Window
from loadgen.prompts.recipe import PromptRecipe
from loadgen.record import OK, WorkerHealth
from loadgen.run_folder import RunFolder
from loadgen.wire.request import BodyTemplate
from loadgen.worker import generator
from loadgen.worker.async_user import fire_events, loop_thread
from loadgen.worker.generator import Generator
from loadgen.worker.live import LiveCounts
from loadgen.worker.prompt_queue import PromptQueue
from loadgen.worker.streaming_user import StreamingUser

_WRITE_S = 0.25
_REPORT_S = 1.0


class WorkerProcess:
    """One Locust worker from connection to exit."""

    def __init__(self, master_host: str, master_port: int) -> None:
        locust.runners.WORKER_REPORT_INTERVAL = _REPORT_S
        self._environment = Environment(user_classes=[StreamingUser], events=locust.events)
        self._thread = loop_thread()
        self._live = LiveCounts()
        self._generator: Generator | None = None
        self._template: BodyTemplate | None = None
        self._recipe: PromptRecipe | None = None
        self._prompts: PromptQueue | None = None
        self._spool: spool.SpoolWriter | None = None
        self._ships_blocks = False
        self._blocks = 0
        self._records = 0
        locust.events.report_to_master.add_listener(self._report)
        try:
            self._runner = self._environment.create_worker_runner(master_host, master_port)
        except ConnectionError:
            raise LoadgenError(
                f"No controller answered at {master_host}:{master_port}.",
                hint="start `loadgen run --expect-workers …` first, and check host and port",
            ) from None
        for name, listener, concurrent in (
            (messages.PING, self._on_ping, False),
            (messages.CONFIGURE, self._on_configure, True),
            (messages.LEVEL, self._on_level, False),
            (messages.WINDOW, self._on_window, False),
            (messages.FINISH, self._on_finish, True),
        ):
            self._runner.register_message(name, listener, concurrent)

    def run(self) -> int:
        """Says hello and serves until the controller ends the run, or a signal does. Gives the exit code."""
        # Terminal signals reach the whole process group; the controller decides what an interrupt means for the run.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gevent.signal_handler(signal.SIGTERM, self._terminate)
        hello = Hello(
            host=socket.gethostname(),
            pid=os.getpid(),
            cores=os.cpu_count() or 1,
            program_version=__version__,
            boot_id=boot_id(),
        )
        self._say(messages.HELLO, hello)
        writer = gevent.spawn(self._write_forever)
        filler = gevent.spawn(self._fill_forever)
        self._runner.greenlet.join()
        gevent.killall([writer, filler])
        self._close()
        return 0

    def _say(self, name: str, message: messages.Message) -> None:
        self._runner.send_message(name, message.encode())

    def _on_ping(self, environment: Any, msg: Any) -> None:
        self._runner.send_message(messages.PONG, {**msg.data, "worker_ns": time.monotonic_ns()})

    def _on_configure(self, environment: Any, msg: Any) -> None:
        plan = Configure.decode(msg.data)
        try:
            self._open_spool(plan)
        except OSError as error:
            problem = f"the spool cannot be written: {error.strerror or type(error).__name__}"
            self._say(messages.READY, Ready(worker=plan.worker, problem=problem))
            return
        self._recipe = PromptRecipe.from_dict(plan.recipe)
        self._template = BodyTemplate(
            model=plan.model,
            endpoint=plan.endpoint,  # type: ignore[arg-type]
            output_tokens=plan.output_tokens,
            ignore_eos=plan.ignore_eos,
            continuous_usage=plan.continuous_usage,
        )

        async def make() -> Generator:
            return Generator(plan, os.environ.get(plan.api_key_env))

        if self._generator is not None:
            self._thread.wait(self._generator.close(), timeout_s=10)
        self._generator = self._thread.wait(make(), timeout_s=10)
        generator.use(self._generator)
        # From here on memory is collected between levels only: see Generator.begin_level.
        gc.disable()
        self._say(messages.READY, Ready(worker=plan.worker, shares_folder=not self._ships_blocks))

    def _open_spool(self, plan: Configure) -> None:
        if self._spool is not None:  # configured again for the next server of the sweep
            return
        folder = RunFolder(Path(plan.run_folder))
        self._ships_blocks = folder.nonce() != plan.nonce
        if self._ships_blocks:
            folder = RunFolder(Path(tempfile.mkdtemp(prefix="loadgen-worker-")))
            folder.records.mkdir()
            print(f"spool: {folder.spool(plan.worker)}", file=sys.stderr)
        self._spool = spool.SpoolWriter(folder.spool(plan.worker))

    def _on_level(self, environment: Any, msg: Any) -> None:
        level = Level.decode(msg.data)
        load = self._generator
        assert load is not None and self._recipe is not None and self._template is not None
        prompts = PromptQueue(
            self._recipe,
            self._template,
            level=level.level,
            worker=load.plan.worker,
            workers=load.plan.workers,
            depth=level.depth,
        )
        while not prompts.fill():
            gevent.sleep(0)
        self._prompts = prompts
        self._thread.on_loop(load.begin_level, level.level, level.ramp_ns, prompts)

    def _on_window(self, environment: Any, msg: Any) -> None:
        window = Window.decode(msg.data)
        load = self._generator
        assert load is not None

        def done(health: WorkerHealth) -> None:
            self._thread.on_hub(lambda: gevent.spawn(self._level_done, health))

        self._thread.on_loop(lambda: self._thread.loop.create_task(load.measure(window, done)))

    def _level_done(self, health: WorkerHealth) -> None:
        self._write()
        self._append(spool.encode_health(health))
        assert self._spool is not None
        self._say(
            messages.LEVEL_DONE,
            LevelDone(
                worker=health.worker,
                level=health.level,
                records=self._records,
                spool_bytes=self._spool.bytes_written,
            ),
        )

    def _on_finish(self, environment: Any, msg: Any) -> None:
        # The window is over: what still runs is cancelled, recorded as such, and its connection closed.
        self._environment.stop_timeout = 0
        self._runner.stop()
        self._write()
        load = self._generator
        self._say(messages.FINISHED, Finished(worker=load.plan.worker if load else -1, records=self._records))

    def _terminate(self) -> None:
        self._environment.stop_timeout = 0
        self._runner.quit()

    def _write_forever(self) -> None:
        while True:
            gevent.sleep(_WRITE_S)
            self._write()

    def _fill_forever(self) -> None:
        while True:
            prompts = self._prompts
            gevent.sleep(0 if prompts is not None and not prompts.fill() else 0.02)

    def _write(self) -> None:
        """Takes the finished records: to the spool, the live counts and Locust's own statistics."""
        load = self._generator
        if load is None:
            return
        records = []
        while load.finished:
            records.append(load.finished.popleft())
        if not records:
            return
        self._records += len(records)
        self._append(spool.encode_records(records))
        self._live.add(records)
        for request in records:
            locust.events.request.fire(
                request_type="SSE",
                name=load.plan.endpoint,
                response_time=(request.finished_ns - request.dispatched_ns) / 1e6,
                response_length=request.response_bytes,
                exception=None if request.status == OK else RuntimeError(f"{request.status}: {request.reason}"),
                context={},
            )

    def _append(self, payload: bytes) -> None:
        assert self._spool is not None
        self._spool.append(payload)
        if self._ships_blocks:
            assert self._generator is not None
            self._say(messages.BLOCK, Block(worker=self._generator.plan.worker, number=self._blocks, payload=payload))
            self._blocks += 1

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
        if self._spool is not None:
            self._spool.close()
        self._thread.stop()
