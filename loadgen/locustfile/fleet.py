"""The workers of a plain Locust master, or the one process that is both: who is there for a test, and what each has done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from locust.runners import LocalRunner

from loadgen.controller.fleet import Fleet
from loadgen.controller.worker import Worker
from loadgen.errors import LoadgenError
from loadgen.locustfile.messages import CALL, NAMES, Call, Names
from loadgen.messages import LevelDone

_ANSWER_S = 10.0
_POLL_S = 0.02
LOCAL = "local"
"""Whom Locust names as the sender of a message of its only process."""


class LocustfileFleet(Fleet):
    """There as long as the process; every test gathers its workers anew."""

    def __init__(self, runner: Any, *, on_live: Callable[[Worker], object], pause: Callable[[float], object]) -> None:
        super().__init__(bind_host="", bind_port=0, on_live=on_live, pause=pause, runner=runner)
        self.names: set[str] = set()
        """What tasks have called their requests so far."""
        self._done: dict[tuple[str, int], LevelDone] = {}
        runner.register_message(NAMES, self._on_names)

    def gather(self) -> None:
        """Asks who is there. Raises LoadgenError when a worker of Locust's does not answer, or is of another version."""
        self.end_test()
        self.workers.clear()
        self._done.clear()
        self.names.clear()
        self.late_joiners = 0
        called = self._client_ids()
        for client_id in called:
            self.runner.send_message(CALL, Call().encode(), client_id)
        deadline = time.monotonic() + _ANSWER_S
        while missing := [client_id for client_id in called if client_id not in self.workers]:
            if self._refused is not None:
                raise self._refused
            if time.monotonic() > deadline:
                raise LoadgenError(
                    f"Worker {missing[0]} does not know of this test.",
                    hint="start every worker with the same locustfile and the same version of llm-loadgen",
                )
            self._pause(_POLL_S)

    def end_test(self) -> None:
        """A worker that joins now is none of a test's; files of what remote workers shipped are closed."""
        self._complete = False
        for worker in self.workers.values():
            if worker.block_writer is not None:
                worker.block_writer.close()
                worker.block_writer = None

    def note_joiner(self) -> None:
        """Locust has a new worker: during a test it is one that the test was not told of."""
        self.late_joiners += self._complete

    def take_live(self, data: dict[str, Any]) -> None:
        """The report of a process that is its own worker."""
        self._on_report(LOCAL, data)

    def done_with(self, worker: Worker, level: int) -> LevelDone | None:
        """What a worker said when it was done with a level, once everything that it wrote is here."""
        done = self._done.get((worker.client_id, level))
        if done is None or worker.blocks >= done.blocks or (worker.ready is not None and worker.ready.shares_folder):
            return done
        return None

    def _client_ids(self) -> list[str]:
        if isinstance(self.runner, LocalRunner):
            return [LOCAL]
        clients = self.runner.clients
        return [node.id for node in (*clients.ready, *clients.spawning, *clients.running)]

    def _on_hello(self, environment: Any, msg: Any) -> None:
        if not self._complete:  # else an answer that came after the test had begun
            super()._on_hello(environment, msg)

    def _on_level_done(self, environment: Any, msg: Any) -> None:
        done = LevelDone.decode(msg.data)
        self._done[msg.node_id, done.level] = done
        super()._on_level_done(environment, msg)

    def _on_names(self, environment: Any, msg: Any) -> None:
        self.names.update(Names.decode(msg.data).names)

    def _is_missing(self, worker: Worker) -> bool:
        return False if isinstance(self.runner, LocalRunner) else super()._is_missing(worker)
