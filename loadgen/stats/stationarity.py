"""Takes a finished level's plan and records, says whether the window was stationary: no figure rose or fell through it.

Pure and after the fact; when a window may begin is decided online by `loadgen.stats.steady`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.record import LevelPlan, RequestRecord
from loadgen.stats.columns import Columns, Flags, Floats, Ints, columns
from loadgen.stats.latencies import per_request_ns
from loadgen.stats.load import Window, within
from loadgen.stats.trend import layout, least_p_value, seasonal_kendall

FIGURES = ("achieved_concurrency", "output_throughput", "ttft", "tpot")
LEAST_DRIFT = 0.1
"""Change over the window, as a share of the mean, below which a trend does not matter, however clear it is."""
MOST_P_VALUE = 0.02
"""Of fifty stationary levels at most one is suspected wrongly; it bounds all figures together."""


def stationarity(plan: LevelPlan, records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Whether the window of a level was stationary, as JSON-able values; see `window_stationarity`."""
    return window_stationarity(columns(records), (plan.window_start_ns, plan.window_end_ns))


def window_stationarity(c: Columns, window: Window) -> dict[str, Any]:
    """`{judged, drifting, figure, drift_per_window, p_value, generations, figures}`.

    `figures` has for each of `FIGURES` its `drift_per_window` (change from the window's start to its end as a share of
    the mean: Theil–Sen slope; None with fewer than two generations or without a sample) and `p_value` (seasonal
    Kendall test, times the number of figures: Bonferroni; None where even the clearest trend would not be significant).
    `drifting` says whether one moved by at least `LEAST_DRIFT` with p ≤ `MOST_P_VALUE`; `figure` names the worst,
    whose two numbers stand on top; `judged` is False where concurrency and throughput could not be told from chance.

    A *generation* is the time in which every user is served once: the mean time of a request from send to end. Users
    that began together stay together, so load swings within a generation for as long as the level lasts; only whole
    generations, or equal parts of them, are compared. Concurrency and throughput are cut by time. TTFT and TPOT are
    cut by order of sending, a generation being as many requests as are in flight (Little's law), so that every part
    has its requests. Failed requests count for the generation only.
    """
    begun = within(c.anchor_ns, window)
    ended = begun & (c.ok | c.failed)
    generations = 0.0
    if ended.any():
        generation_ns = float((c.finished_ns - c.on_the_wire_ns)[ended].mean())
        generations = (window[1] - window[0]) / generation_ns if generation_ns > 0 else 0.0
    durations = per_request_ns(c)
    cells = {
        "achieved_concurrency": _concurrency(c, window, generations),
        "output_throughput": _throughput(c, window, generations),
        **{name: _by_order(durations[name], c.anchor_ns, begun, generations) for name in ("ttft", "tpot")},
    }
    figures = {name: _drift(cells[name]) for name in FIGURES}
    drifting = [
        name
        for name, found in figures.items()
        if found["p_value"] is not None
        and found["drift_per_window"] is not None
        and found["p_value"] <= MOST_P_VALUE
        and abs(found["drift_per_window"]) >= LEAST_DRIFT
    ]
    tested = [name for name, found in figures.items() if found["p_value"] is not None]
    worst = min(drifting or tested, key=lambda name: figures[name]["p_value"] or 0.0, default=None)
    nothing: dict[str, float | None] = {"drift_per_window": None, "p_value": None}
    return {
        "judged": {"achieved_concurrency", "output_throughput"} <= set(tested),
        "drifting": bool(drifting),
        "figure": worst,
        **(nothing if worst is None else figures[worst]),
        "generations": generations or None,
        "figures": figures,
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    values: Floats
    """shape (cycles, seasons)."""
    cycles_per_window: float
    """A little more than the cycles, where the window has a remainder."""


def _edges(window: Window, generations: float) -> tuple[Ints, tuple[int, int], float] | None:
    """(instants that bound the cells, their shape, cycles a window)."""
    cut = layout(generations)
    if cut is None:
        return None
    cycles, seasons, share = cut
    cell_ns = share * (window[1] - window[0]) / seasons
    edges = window[0] + np.rint(np.arange(cycles * seasons + 1) * cell_ns).astype(np.int64)
    return edges, (cycles, seasons), 1 / share


def _throughput(c: Columns, window: Window, generations: float) -> _Cells | None:
    cut = _edges(window, generations)
    if cut is None:
        return None
    edges, shape, cycles_per_window = cut
    counted = within(c.arrivals_ns, (int(edges[0]), int(edges[-1]))) & ~c.failed[c.request]
    cell = np.searchsorted(edges, c.arrivals_ns[counted], side="right") - 1
    tokens = np.bincount(cell, c.tokens[counted], edges.size - 1)
    return _Cells((tokens / np.diff(edges)).reshape(shape), cycles_per_window)


def _concurrency(c: Columns, window: Window, generations: float) -> _Cells | None:
    cut = _edges(window, generations)
    if cut is None:
        return None
    edges, shape, cycles_per_window = cut
    # Nothing that ended before the window or began after it matters, and small numbers keep the sums exact.
    begins = np.clip(c.on_the_wire_ns, edges[0], edges[-1]) - edges[0]
    ends = np.clip(c.finished_ns, edges[0], edges[-1]) - edges[0]
    busy_ns = np.diff(_time_since(begins, edges - edges[0]) - _time_since(ends, edges - edges[0]))
    return _Cells((busy_ns / np.diff(edges)).reshape(shape), cycles_per_window)


def _time_since(instants: Ints, edges: Ints) -> Ints:
    """At each edge the sum of the time that has passed since every instant before it, shape (edges,)."""
    ordered = np.sort(instants)
    before = np.searchsorted(ordered, edges)
    passed: Ints = before * edges - np.concatenate(([0], np.cumsum(ordered)))[before]
    return passed


def _by_order(duration_ns: Floats, sent_ns: Ints, begun: Flags, generations: float) -> _Cells | None:
    measured = begun & ~np.isnan(duration_ns)
    n = int(measured.sum())
    if not n or not generations:
        return None
    in_flight = max(1, round(n / generations))
    cut = layout(n / in_flight)
    if cut is None:
        return None
    cycles, seasons, share = cut
    seasons = min(seasons, in_flight)
    a_cycle = min(max(1, round(n * share)), n // cycles)
    # Requests sent at one instant are ordered by duration, so that the order of the records does not matter.
    ordered = duration_ns[measured][np.lexsort((duration_ns[measured], sent_ns[measured]))]
    first = np.arange(seasons) * a_cycle // seasons
    sums = np.add.reduceat(ordered[: cycles * a_cycle].reshape(cycles, a_cycle), first, axis=1)
    return _Cells(sums / np.diff(first, append=a_cycle), n / a_cycle)


def _drift(cells: _Cells | None) -> dict[str, float | None]:
    mean = 0.0 if cells is None else float(cells.values.mean())
    if cells is None or mean <= 0:
        return {"drift_per_window": None, "p_value": None}
    # Differences that only rounding made are ties.
    trend = seasonal_kendall(np.round(cells.values / mean, 9))
    decidable = len(FIGURES) * least_p_value(*cells.values.shape) <= MOST_P_VALUE
    return {
        "drift_per_window": trend.slope * cells.cycles_per_window,
        "p_value": min(1.0, len(FIGURES) * trend.p_value) if decidable else None,
    }
