"""The sweep: one level after another over the same fleet. Decides when; knows nothing of HTTP and computes no figure.

A level is ramp → warm-up → window → drain. The window is a pair of instants told to the workers ahead of time; its
requests are followed to their end while the users keep running, so they end under unchanged load.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

from loadgen import messages
from loadgen.arrivals.schedule import Schedule
from loadgen.controller.fleet import Fleet
from loadgen.controller.open_level import begin_open_level, with_arrivals
from loadgen.controller.participants import check_workers, clock_change_ns
from loadgen.controller.sweep_progress import Progress
from loadgen.controller.worker import Worker
from loadgen.errors import LoadgenError, SafetyStopError, TargetLostError
from loadgen.messages import Window
from loadgen.record import LevelPlan
from loadgen.run_folder import RunFolder
from loadgen.scenario.model import Level, Scenario
from loadgen.scenario.schedules import given_window_s
from loadgen.stats.backlog import Offered
from loadgen.stats.steady import SettleDetector, Verdict
from loadgen.stats.window import WindowLength, window_length
from loadgen.worker.scheduled_user import ScheduledUser
from loadgen.worker.streaming_user import StreamingUser

_POLL_S = 0.05
_SETTLE_POLL_S = 0.25
# The window is told to the workers this long before it opens.
_AHEAD_NS = 100_000_000
# The workers' own deadline must pass before the controller loses patience with them.
_PATIENCE_S = 5.0
# Prompts kept ready: enough for every user to send a few before the hub gets its next turn.
_DEPTH_PER_USER, _LEAST_DEPTH = 4, 64


class Sweep:
    """Runs levels over a fleet and notes each in the run's journal."""

    def __init__(
        self,
        fleet: Fleet,
        folder: RunFolder,
        scenario: Scenario,
        schedule_of: Callable[[Level], Schedule | None],
        pause: Callable[[float], object],
        progress: Progress,
        dataset_rows: int | None = None,
    ) -> None:
        """`schedule_of`: of a level of an open loop; None of a closed one. `dataset_rows`: of the file that requests come from.
        `pause` sleeps so many seconds; it raises RunInterruptedError when the run is to end, and TargetLostError when the
        server under test is gone."""
        self._fleet = fleet
        self._folder = folder
        self._load = scenario.load
        self._soak_window_s = scenario.soak.window
        self._seed = scenario.seed or 0
        think = scenario.load.think_time
        self._think_s = scenario.workload.mean_think_s(0.0 if think is None else think.mean_s)
        self._turns = scenario.workload.mean_turns()
        self._schedule_of = schedule_of
        self._pause = pause
        self._dataset_rows = dataset_rows
        self.progress = progress
        self.effective: dict[str, Any] | None = None
        """What the server runs with."""
        self._participants: list[Worker] = []
        """Workers that were there when the level began."""
        self._late_before = 0
        self._noted = (0, 0)
        self._schedule: Schedule | None = None
        """Of the level that runs, and the instant that its offsets count from."""
        self._start_ns = 0

    def run(
        self, level: Level, on_begin: Callable[[Level], object], on_window: Callable[[LevelPlan], object]
    ) -> LevelPlan:
        """One level, from its ramp to the end of its drain. `on_window` gets the plan ahead of its window.

        Raises RunInterruptedError or TargetLostError after noting the level as interrupted, and LoadgenError when no worker
        is left.
        """
        progress = self.progress
        progress.level = level
        progress.enter("ramp")
        on_begin(level)
        detector = self._begin(level)
        verdict = self._warm_up(detector)
        length = self._window_length(detector, verdict)
        plan = self._announce(level, verdict, length)
        on_window(plan)
        try:
            self._wait_until(plan, plan.window_start_ns)
            progress.enter("window", length.window_s)
            self._wait_until(plan, plan.window_end_ns)
            progress.enter("drain")
            self._wait_for_drain(plan)
        except LoadgenError as error:
            by = str(error) if isinstance(error, TargetLostError | SafetyStopError) else ""
            # Of the window the part that was measured.
            end_ns = max(plan.window_start_ns, min(plan.window_end_ns, time.monotonic_ns()))
            marked = self._marked(plan)
            self._note(dataclasses.replace(marked, interrupted=True, interrupted_by=by, window_end_ns=end_ns))
            raise
        plan = dataclasses.replace(self._marked(plan), drained_ns=time.monotonic_ns())
        self._note(plan)
        if (change_ns := clock_change_ns(self._fleet, self._participants)) is not None:
            plan = dataclasses.replace(plan, clock_change_ns=change_ns)
            self._note(plan)
        return plan

    def _begin(self, level: Level) -> SettleDetector:
        """Has the level's load begin; gives who watches it settle."""
        fleet, load = self._fleet, self._load
        self._schedule = self._schedule_of(level)
        if load.confirm:
            fleet.use(StreamingUser if self._schedule is None else ScheduledUser)
        self._participants = fleet.present()
        self._late_before = fleet.late_joiners
        check_workers(self._fleet, self._participants)
        fleet.measure_clocks()  # again: clocks of different hosts drift apart
        for worker in self._participants:
            worker.level_done = None
        adaptive = load.given_warmup_s is None or given_window_s(load, self._schedule) is None
        fleet.set_stop_timeout(load.drain_timeout)
        if self._schedule is not None:
            return self._begin_open(level, self._schedule, adaptive)
        assert level.concurrency is not None
        # A first request after a warm-up that is given would leave the window below its load.
        ramp_s = load.ramp if load.warmup is None else min(load.ramp, load.warmup)
        began_ns = time.monotonic_ns()
        fleet.say(
            messages.LEVEL,
            messages.Level(
                level=level.level,
                ramp_ns=round(ramp_s * 1e9),
                depth=max(_LEAST_DEPTH, _DEPTH_PER_USER * level.concurrency),
                tell_progress=adaptive,
                think_time=None
                if load.think_time is None
                else dataclasses.replace(load.think_time, seed=self._seed).to_dict(),
            ),
        )
        shrinks = fleet.users > level.concurrency
        fleet.spawn(level.concurrency)
        check_workers(self._fleet, self._participants)
        there_ns = time.monotonic_ns()
        detector = SettleDetector(
            workers=len(self._participants),
            users=level.concurrency,
            # Users that were taken away ended their last requests in this level without belonging to it.
            began_ns=there_ns if shrinks else began_ns,
            all_there_ns=there_ns + round(ramp_s * 1e9),
            most_s=load.max_warmup,
            requests_each=math.ceil(self._turns),
        )
        fleet.on_progress = detector.update if adaptive else None
        return detector

    def _begin_open(self, level: Level, schedule: Schedule, adaptive: bool) -> SettleDetector:
        fleet = self._fleet
        self._start_ns = begin_open_level(
            fleet, self._participants, level, schedule, self._load, tell_progress=adaptive, pause=self._pause
        )
        check_workers(self._fleet, self._participants)
        detector = SettleDetector(
            workers=len(self._participants),
            users=len(self._participants),
            began_ns=self._start_ns,
            all_there_ns=self._start_ns,
            most_s=self._load.max_warmup,
            arrivals=Offered(schedule, self._start_ns, all_sent=self._load.overflow != "drop"),
        )
        fleet.on_progress = detector.update if adaptive else None
        return detector

    def _announce(self, level: Level, verdict: Verdict | None, length: WindowLength) -> LevelPlan:
        """Tells every worker the window, in its own clock, and the journal the plan."""
        start_ns = time.monotonic_ns() + _AHEAD_NS
        load, schedule = self._load, self._schedule
        if schedule is not None and load.given_warmup_s is not None:
            # To the instant, since the rate's course may begin or change there.
            start_ns = max(start_ns, self._start_ns + round(load.given_warmup_s * 1e9))
        plan = LevelPlan(
            level=level.level,
            concurrency=level.concurrency,
            window_start_ns=start_ns,
            window_end_ns=start_ns + round(length.window_s * 1e9),
            run=level.run,
            step=level.step,
            server=self.progress.named(level),
            effective=self.effective,
            workers=len(self._participants),
            settled=None if verdict is None else verdict.settled,
            settle_reason="" if verdict is None else verdict.reason,
            window_reason=length.reason,
            dataset_rows=self._dataset_rows,
            soak_window_s=self._soak_window_s,
            mean_turns=self._turns,
            think_time_s=0.0 if schedule is not None else self._think_s,
        )
        if schedule is not None:
            plan = with_arrivals(plan, schedule, self._start_ns, load)
        for worker in self._participants:
            window = Window(
                level=level.level,
                start_ns=plan.window_start_ns + worker.offset_ns,
                end_ns=plan.window_end_ns + worker.offset_ns,
                drain_deadline_ns=self._drain_deadline_ns(plan) + worker.offset_ns,
            )
            self._fleet.say(messages.WINDOW, window, worker)
        # Noted before it is measured: a controller that is killed in it leaves enough to judge what there is.
        self._note(plan)
        return plan

    def _warm_up(self, detector: SettleDetector) -> Verdict | None:
        """Waits for the given warm-up (None), or until the level is steady or will not be."""
        warmup_s, now_ns = self._load.given_warmup_s, time.monotonic_ns()
        if warmup_s is not None:
            self.progress.enter("warm-up", warmup_s)
            over_ns = now_ns + round(warmup_s * 1e9)
            if self._schedule is not None:  # early enough to tell the window that opens when it is over
                over_ns += self._start_ns - now_ns - 2 * _AHEAD_NS
            while time.monotonic_ns() < over_ns:
                self._pause(_POLL_S)
                check_workers(self._fleet, self._participants)
            return None
        self.progress.enter("settling")
        while True:
            self._pause(_SETTLE_POLL_S)
            verdict = detector.settled(time.monotonic_ns())
            if verdict.measure:
                return verdict
            if self._fleet.find_lost():  # its reports are missing, and the level is invalid anyway
                check_workers(self._fleet, self._participants)
                return Verdict(False, True, f"a worker went missing: {verdict.reason}", None)

    def _window_length(self, detector: SettleDetector, verdict: Verdict | None) -> WindowLength:
        given_s = given_window_s(self._load, self._schedule)
        if given_s is not None:
            reason = "" if self._load.duration is not None else f"{given_s:g} s is the course of the rate"
            return WindowLength(given_s, reason, capped=False)
        pace = detector.pace()
        completed_rate = pace.completed_rate
        if self._schedule is not None and verdict is not None and verdict.settled:
            completed_rate = self._schedule.asked_rate()  # surer than the few requests that were seen
        return window_length(completed_rate, pace.e2e_p95_s, most_s=self._load.max_duration)

    def _note(self, plan: LevelPlan) -> None:
        self._noted = (plan.lost_workers, plan.late_workers)
        try:
            workers = self._fleet.workers.values()
            done = {w.index: w.level_done.records for w in workers if w.level_done and w.level_done.level == plan.level}
            self._folder.note_level(plan, {w.index: w.offset_ns for w in workers}, done)
        except OSError as error:
            raise LoadgenError(
                f"The journal {self._folder.journal} cannot be written: {error.strerror or error}.",
                hint="make room, and run again; what was measured before is in the run folder",
            ) from None

    def _marked(self, plan: LevelPlan) -> LevelPlan:
        """The plan with the workers that went missing or came too late since the level began."""
        lost = set(map(id, self._fleet.find_lost()))
        return dataclasses.replace(
            plan,
            lost_workers=sum(id(worker) in lost for worker in self._participants),
            late_workers=self._fleet.late_joiners - self._late_before,
        )

    def _watch(self, plan: LevelPlan) -> None:
        """Notes at once when a worker goes missing or comes too late: the level is not what it seems any more."""
        marked = self._marked(plan)
        if (marked.lost_workers, marked.late_workers) != self._noted:
            self._note(marked)
        check_workers(self._fleet, self._participants)

    def _wait_until(self, plan: LevelPlan, instant_ns: int) -> None:
        while (remaining_ns := instant_ns - time.monotonic_ns()) > 0:
            self._pause(min(_POLL_S, remaining_ns / 1e9))
            self._watch(plan)

    def _drain_deadline_ns(self, plan: LevelPlan) -> int:
        return plan.window_end_ns + round(self._load.drain_timeout * 1e9)

    def _wait_for_drain(self, plan: LevelPlan) -> None:
        patience_ns = self._drain_deadline_ns(plan) + round(_PATIENCE_S * 1e9)
        while waiting := [w for w in self._participants if not w.lost and not w.has_done(plan.level)]:
            if time.monotonic_ns() > patience_ns:
                for worker in waiting:
                    worker.lost = True
                return
            self._pause(_POLL_S)
            self._watch(plan)
