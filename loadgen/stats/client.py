"""Takes the workers' health and the records' own stamps, gives how well the generator kept up; never the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from loadgen.record import LevelPlan, WorkerHealth
from loadgen.stats.columns import MISSING, Columns, Flags, Ints
from loadgen.stats.percentile import nearest_rank

REPORTED = (
    "loop_lag_p50_ms",
    "loop_lag_p99_ms",
    "loop_lag_max_ms",
    "hub_lag_p50_ms",
    "hub_lag_p99_ms",
    "hub_lag_max_ms",
    "read_delay_p50_ms",
    "read_delay_p99_ms",
    "read_delay_max_ms",
    "cpu_loop_thread",
    "cpu_process",
    "gc_pauses",
    "gc_pause_total_ms",
    "gc_pause_max_ms",
    "resident_bytes",
)
"""What a worker tells of itself; more is worse."""
RECORDED = (
    "send_lag_p50_ms",
    "send_lag_p99_ms",
    "send_lag_max_ms",
    "send_gap_p99_ms",
    "send_gap_max_ms",
    "connection_wait_p99_ms",
    "connection_wait_max_ms",
    "coalesced_share",
)
"""What a worker's records tell of it; more is worse."""


def client_figures(
    plan: LevelPlan, c: Columns, begun: Flags, arrived: Flags, health: Sequence[WorkerHealth]
) -> dict[str, Any]:
    """The worst worker's figures, flat, and every worker's own; None where no worker reported one.

    `begun`, shape (n,), are the window's requests, `arrived`, shape (m,), the events that arrived in it of requests that
    did not fail. `kernel_stamps` is the share of the window's ok requests whose arrivals the kernel stamped.
    """
    reports = sorted((one for one in health if one.level == plan.level), key=lambda one: one.worker)
    sender, coalesced = c.worker[c.request[arrived]], c.coalesced[arrived]
    recorded = {
        worker: {**_sends(c, begun & (c.worker == worker)), "coalesced_share": _share(coalesced[sender == worker])}
        for worker in sorted({*np.unique(c.worker).tolist(), *(one.worker for one in reports)})
    }
    workers = [{**asdict(one), **recorded[one.worker]} for one in reports]
    return {
        **{name: _worst(workers, name) for name in REPORTED},
        **{name: _worst(list(recorded.values()), name) for name in RECORDED},
        "clock_error_max_ms": max((one.clock_error_ns / 1e6 for one in reports), default=None),
        "kernel_stamps": _share(c.kernel_stamps[c.ok & begun]),
        "workers": workers,
    }


def _worst(workers: list[dict[str, Any]], name: str) -> Any:
    return max((worker[name] for worker in workers if worker[name] is not None), default=None)


def _share(flags: Flags) -> float | None:
    return float(np.mean(flags)) if flags.size else None


def _sends(c: Columns, mine: Flags) -> dict[str, float | None]:
    """Of the requests `mine`, how late they were sent, how sure their `sent` is, and how long they had no connection."""
    planned, bracketed = mine & (c.scheduled_ns != MISSING), mine & (c.send_gap_ns != MISSING)
    # The wait for a place among the requests in flight was asked for: it is no delay of the worker's.
    waited_ns = np.where(c.waited_ns != MISSING, c.waited_ns, 0)
    lag = _ranked((c.dispatched_ns - c.scheduled_ns - waited_ns)[planned], (50, 99, 100))
    gap = _ranked(c.send_gap_ns[bracketed], (99, 100))
    wait = _ranked(c.connection_wait_ns[mine & (c.connection_wait_ns != MISSING)], (99, 100))
    return dict(zip(RECORDED, (*lag, *gap, *wait), strict=False))


def _ranked(values_ns: Ints, percents: tuple[int, ...]) -> list[float | None]:
    return [None if value is None else value / 1e6 for value in nearest_rank(values_ns, percents)]
