"""Levels of a test under plain Locust: takes windows as they open and close, tells the workers, keeps the journal, waits for
the drains. Knows nothing of Locust's users; judges nothing.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gevent
from gevent.event import Event

from loadgen import messages
from loadgen.controller.server_watch import ServerWatch
from loadgen.controller.worker import Worker
from loadgen.locustfile.fleet import LocustfileFleet
from loadgen.locustfile.load import Load
from loadgen.locustfile.messages import OPEN_END_NS
from loadgen.locustfile.steps import AHEAD_NS, Closed, Opened
from loadgen.messages import Window
from loadgen.record import LevelPlan
from loadgen.run_folder import RunFolder

_log = logging.getLogger("loadgen")

_POLL_S = 0.05
# The workers' own deadline must pass before the master loses patience with them.
_PATIENCE_S = 5.0
# An end that is not known yet, for the journal: a master that is killed leaves a level that ends with its last record.
_FAR_NS = 366 * 86_400 * 1_000_000_000
_MOST_LEVELS = 4096


@dataclass(slots=True)
class _Measured:
    """A level from the opening of its window until its requests have ended."""

    plan: LevelPlan
    workers: list[Worker]
    late_before: int
    lost: set[str] = field(default_factory=set)


class Levels:
    """Of one test. At most one window is open; levels before it may still be draining."""

    def __init__(
        self,
        folder: RunFolder,
        fleet: LocustfileFleet,
        server_watch: ServerWatch,
        *,
        drain_timeout_s: float,
        effective: dict[str, Any] | None,
        on_drained: Callable[[], object],
    ) -> None:
        """`effective`: what the server runs with. `on_drained` is called when a level can be judged."""
        self._folder = folder
        self._fleet = fleet
        self._server_watch = server_watch
        self._drain_timeout_ns = round(drain_timeout_s * 1e9)
        self._effective = effective
        self._on_drained = on_drained
        self._number = 0
        self._open: _Measured | None = None
        self._draining: list[_Measured] = []
        self._drains: list[gevent.Greenlet] = []
        self.loads: list[Load] = []
        """Of the levels so far."""
        self.interrupted = False
        """Whether what is measured from now on is not to be trusted: somebody cannot keep it."""
        self.hurry = Event()
        """No request is waited for any more."""

    def begin(self) -> None:
        """Requests that are dispatched from here on belong to the next level."""
        self._fleet.say(messages.LEVEL, messages.Level(level=self._number, ramp_ns=0, depth=0, tell_progress=False))

    def open(self, opened: Opened, load: Load) -> int:
        """A window opens; gives the number of the level that it will be if it lasts."""
        fleet = self._fleet
        workers = fleet.present()
        fleet.measure_clocks()  # again: clocks of different hosts drift apart
        start_ns = max(opened.start_ns, time.monotonic_ns() + AHEAD_NS)
        plan = LevelPlan(
            level=self._number,
            concurrency=load.concurrency,
            request_rate=load.request_rate,
            max_in_flight=load.max_in_flight,
            overflow=load.overflow,
            window_start_ns=start_ns,
            window_end_ns=start_ns + _FAR_NS,
            window_reason="from all users spawned to the stop",
            workers=len(workers),
            think_time_s=None,
            effective=self._effective,
        )
        self._open = _Measured(plan, workers, fleet.late_joiners)
        self._note(self._open)
        self._tell(self._open, OPEN_END_NS, 0)
        self._server_watch.on_window(plan)
        return self._number

    def close(self, closed: Closed) -> None:
        """The open window has ended: a level drains from now on, or there was none."""
        measured, self._open = self._open, None
        if measured is None:
            return
        plan = measured.plan
        if not closed.kept or closed.end_ns <= plan.window_start_ns:
            # The journal's entry with an empty window says that it is no level; the next one takes its number.
            measured.plan = dataclasses.replace(plan, window_end_ns=plan.window_start_ns)
            self._note(measured)
            return
        measured.plan = dataclasses.replace(plan, window_end_ns=closed.end_ns)
        if closed.changed:
            measured.plan = dataclasses.replace(
                measured.plan,
                window_reason="from all users spawned to the next change of their number",
                load_changed_ns=closed.end_ns,
            )
        self._note(measured)
        self.loads.append(Load(plan.concurrency, plan.request_rate, plan.max_in_flight, plan.overflow))
        deadline_ns = time.monotonic_ns() + self._drain_timeout_ns
        self._tell(measured, closed.end_ns, deadline_ns)
        self._server_watch.on_window(measured.plan)  # its end is known only now
        if closed.changed and self._number + 1 < _MOST_LEVELS:
            self._number += 1
            self.begin()
        self._draining.append(measured)
        self._drains.append(gevent.spawn(self._drain, measured, deadline_ns + round(_PATIENCE_S * 1e9)))

    def note_lost(self) -> None:
        """Looks which workers have gone missing; called often."""
        lost = {worker.client_id for worker in self._fleet.find_lost()}
        for measured in filter(None, (self._open, *self._draining)):
            measured.lost |= lost & {worker.client_id for worker in measured.workers}

    def await_drained(self) -> None:
        """Waits until no level drains, or `hurry` is set."""
        while self._draining:
            self.note_lost()
            gevent.sleep(_POLL_S)
        gevent.joinall(self._drains, raise_error=True)

    def _drain(self, measured: _Measured, patience_ns: int) -> None:
        try:
            hurried = self._await_workers(measured, patience_ns)
            if not hurried:
                self._server_watch.await_end(measured.plan)
            measured.plan = dataclasses.replace(
                measured.plan,
                drained_ns=None if hurried else time.monotonic_ns(),
                interrupted=hurried or self.interrupted,
                lost_workers=len(measured.lost),
                late_workers=self._fleet.late_joiners - measured.late_before,
            )
            self._note(measured)
        finally:
            self._draining.remove(measured)
        if not hurried:
            self._on_drained()

    def _await_workers(self, measured: _Measured, patience_ns: int) -> bool:
        """Waits until every worker is done with the level; True when that was cut short."""
        level = measured.plan.level
        while waiting := [
            worker
            for worker in measured.workers
            if worker.client_id not in measured.lost and self._fleet.done_with(worker, level) is None
        ]:
            if self.hurry.is_set():
                return True
            if time.monotonic_ns() > patience_ns:
                measured.lost |= {worker.client_id for worker in waiting}
                break
            gevent.sleep(_POLL_S)
        return False

    def _tell(self, measured: _Measured, end_ns: int, drain_deadline_ns: int) -> None:
        plan = measured.plan
        for worker in measured.workers:
            window = Window(
                level=plan.level,
                start_ns=plan.window_start_ns + worker.offset_ns,
                end_ns=end_ns if end_ns == OPEN_END_NS else end_ns + worker.offset_ns,
                drain_deadline_ns=drain_deadline_ns + worker.offset_ns,
            )
            self._fleet.say(messages.WINDOW, window, worker)

    def _note(self, measured: _Measured) -> None:
        level = measured.plan.level
        said = {worker.index: self._fleet.done_with(worker, level) for worker in measured.workers}
        records = {index: done.records for index, done in said.items() if done is not None}
        offsets_ns = {worker.index: worker.offset_ns for worker in measured.workers}
        try:
            self._folder.note_level(measured.plan, offsets_ns, records)
        except OSError as error:
            self.interrupted = True
            _log.error("The journal %s cannot be written: %s.", self._folder.journal, error.strerror or error)
