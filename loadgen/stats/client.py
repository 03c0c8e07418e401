"""Takes the workers' health and the records' own stamps, gives how well the generator kept up; never the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from loadgen.record import LevelPlan, WorkerHealth
from loadgen.stats.columns import MISSING, Columns, Flags
from loadgen.stats.percentile import nearest_rank

WORST = (
    "loop_lag_p50_ms",
    "loop_lag_p99_ms",
    "loop_lag_max_ms",
    "read_delay_p99_ms",
    "cpu_loop_thread",
    "cpu_process",
)


def client_figures(plan: LevelPlan, c: Columns, begun: Flags, health: Sequence[WorkerHealth]) -> dict[str, Any]:
    """The worst worker's figures, flat, and every worker's own; None where no worker reported one.

    `kernel_stamps` is the share of the window's ok requests whose arrivals the kernel stamped; `send_lag` is
    dispatched − scheduled.
    """
    reports = sorted((one for one in health if one.level == plan.level), key=lambda one: one.worker)
    workers = [asdict(one) for one in reports]
    figures: dict[str, Any] = {}
    for name in WORST:
        values = [worker[name] for worker in workers if worker[name] is not None]
        figures[name] = max(values) if values else None
    ok = c.ok & begun
    planned = begun & (c.scheduled_ns != MISSING)
    lag_ns = (c.dispatched_ns - c.scheduled_ns)[planned]
    for name, value in zip(("p50", "p99", "max"), nearest_rank(lag_ns, (50, 99, 100)), strict=True):
        figures[f"send_lag_{name}_ms"] = None if value is None else value / 1e6
    return {
        **figures,
        "clock_error_max_ms": max((one.clock_error_ns / 1e6 for one in reports), default=None),
        "kernel_stamps": float(np.mean(c.kernel_stamps[ok])) if ok.any() else None,
        "workers": workers,
    }
