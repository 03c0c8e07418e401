"""How an open loop's level begins: everybody is there, then each worker is told its share and when it starts."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

from loadgen import messages
from loadgen.arrivals.schedule import Schedule
from loadgen.controller.fleet import Fleet
from loadgen.controller.worker import Worker
from loadgen.errors import UsageError
from loadgen.record import LevelPlan
from loadgen.scenario.load_section import Load
from loadgen.scenario.model import Level

# From telling the workers until the first arrival may be due: prompts are built ahead, and an earlier level's end.
_LEAD_NS = 1_000_000_000
_POLL_S = 0.02
_SPAWN_S = 10.0
_LEAST_DEPTH, _MOST_DEPTH = 64, 4096
# Requests kept ready: what is due within so many seconds.
_READY_S = 2.0


def check_places(load: Load, workers: int) -> None:
    """Raises UsageError when there are fewer places in flight than workers."""
    if load.max_in_flight is not None and load.max_in_flight < workers:
        raise UsageError(
            f"load.max_in_flight is {load.max_in_flight}, fewer than the {workers} workers.",
            hint="allow at least one request a worker, or use fewer workers",
        )


def begin_open_level(
    fleet: Fleet,
    participants: Sequence[Worker],
    level: Level,
    schedule: Schedule,
    load: Load,
    *,
    tell_progress: bool,
    pause: Callable[[float], object],
) -> int:
    """Has one user a worker there, and tells the schedule; gives the instant that its offsets count from."""
    of = len(participants)
    fleet.spawn(of)
    deadline = time.monotonic() + _SPAWN_S
    while fleet.users < of and time.monotonic() < deadline and not fleet.find_lost():
        pause(_POLL_S)
    start_ns = time.monotonic_ns() + _LEAD_NS
    for position, worker in enumerate(participants):
        message = messages.Level(
            level=level.level,
            ramp_ns=0,
            depth=_depth(schedule, of),
            tell_progress=tell_progress,
            arrivals=schedule.to_dict(),
            start_ns=start_ns + worker.offset_ns,
            position=position,
            of=of,
            max_in_flight=_share(load.max_in_flight, position, of),
            drops=load.overflow == "drop",
        )
        fleet.say(messages.LEVEL, message, worker)
    return start_ns


def with_arrivals(plan: LevelPlan, schedule: Schedule, start_ns: int, load: Load) -> LevelPlan:
    """The plan of a level whose arrivals count from `start_ns`."""
    return dataclasses.replace(
        plan,
        request_rate=schedule.asked_rate(),
        arrivals=schedule.to_dict(),
        arrivals_start_ns=start_ns,
        max_in_flight=load.max_in_flight,
        overflow=None if load.max_in_flight is None else load.overflow,
    )


def _share(most: int | None, position: int, of: int) -> int | None:
    return None if most is None else most // of + (position < most % of)


def _depth(schedule: Schedule, of: int) -> int:
    due = _READY_S * max(schedule.rates) + (schedule.burst_size or 0)
    return min(_MOST_DEPTH, max(_LEAST_DEPTH, math.ceil(due / of)))
