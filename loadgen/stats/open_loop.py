"""Takes a level with a schedule, gives what became of its arrivals: offered, sent, dropped, waiting, piling up; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadgen.arrivals.schedule import Schedule
from loadgen.record import LevelPlan, WorkerHealth
from loadgen.stats.backlog import Offered, backlog
from loadgen.stats.client_rules import MOST_LAG_MS
from loadgen.stats.columns import MISSING, Columns, Flags, Ints
from loadgen.stats.load import Window, within
from loadgen.stats.percentile import nearest_rank

WAITS = ("cap_wait", "dispatch_delay")


def open_loop_figures(
    plan: LevelPlan, c: Columns, begun: Flags, health: Sequence[WorkerHealth], window: Window
) -> dict[str, Any] | None:
    """The `open_loop` object of a level; None in a closed loop. `begun`, shape (n,): the window's requests."""
    if plan.concurrency is not None:
        return None
    schedule = None if plan.arrivals is None else Schedule.from_dict(plan.arrivals)
    dropped = sum(one.dropped or 0 for one in health if one.level == plan.level)
    planned = begun & (c.scheduled_ns != MISSING)
    waited = np.where(c.waited_ns != MISSING, c.waited_ns, 0)
    delay = c.dispatched_ns - c.scheduled_ns
    scheduled = c.scheduled_ns != MISSING
    seen = backlog(
        c.scheduled_ns[scheduled],
        c.finished_ns[scheduled],
        window,
        1.0 if schedule is None else schedule.gap_variation,
    )
    return {
        "pattern": None if schedule is None else schedule.pattern,
        "burstiness": None if schedule is None else schedule.burstiness,
        "burst_size": None if schedule is None else schedule.burst_size,
        "burst_period_s": None if schedule is None else schedule.burst_period_s,
        "stationary": schedule is None or schedule.stationary,
        "max_in_flight": plan.max_in_flight,
        "overflow": plan.overflow,
        "offered": _offered(plan, schedule, window, c, dropped),
        "dropped": dropped,
        "waited": int((planned & (waited > 0)).sum()),
        "late": int((planned & (delay - waited > MOST_LAG_MS * 1e6)).sum()),
        **_spread("cap_wait", waited[planned]),
        **_spread("dispatch_delay", delay[planned]),
        "under_way_at_start": seen.at_start,
        "under_way_at_end": seen.at_end,
        "saturated": seen.grew and (schedule is None or schedule.stationary),
    }


def _offered(plan: LevelPlan, schedule: Schedule | None, window: Window, c: Columns, dropped: int) -> int:
    """By the schedule itself where it is known: a worker that died has no record of what it did not send. What arrives
    there is a conversation's first turn; when a later one is due follows from the answer before it."""
    due = within(c.scheduled_ns, window)
    if schedule is None or plan.arrivals_start_ns is None:
        return int(due.sum()) + dropped
    start_ns, end_ns = window
    arrivals_ns = Offered(schedule, plan.arrivals_start_ns).before(end_ns)
    return int(arrivals_ns.size - np.searchsorted(arrivals_ns, start_ns) + (due & (c.turn > 1)).sum())


def _spread(name: str, values_ns: Ints) -> dict[str, float | None]:
    """`mean_M_ms`, `p50_M_ms`, `p95_M_ms`, `p99_M_ms`, `max_M_ms`; None without a request."""
    ranked = nearest_rank(values_ns, (50, 95, 99, 100))
    found = {f"mean_{name}_ms": float(values_ns.mean()) / 1e6 if values_ns.size else None}
    for statistic, value in zip(("p50", "p95", "p99", "max"), ranked, strict=True):
        found[f"{statistic}_{name}_ms"] = None if value is None else value / 1e6
    return found
