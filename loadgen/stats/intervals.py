"""Takes the columns of a level's requests, gives the 95 % intervals of its figures; pure, the same records give the same.

An interval says where the figure would lie, had the level been measured for ever under the same conditions. It counts in that
requests which are near in time are alike (`long_run`); it does not count in that another day is another day.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from loadgen.stats.columns import MISSING, Columns, Flags, Floats, Ints
from loadgen.stats.latencies import PER_REQUEST, Gaps
from loadgen.stats.latency_fields import PERCENTILES
from loadgen.stats.load import Served, Window, within
from loadgen.stats.long_run import MeanError, mean_error, share_interval, t_quantile
from loadgen.stats.percentile import SAMPLES_BEYOND, Values, rank

Bounds = tuple[float | None, float | None]
"""(lower, upper); None where the samples are too few to have a bound on that side."""

TIME_CELLS = 200
"""Equal parts of the window in which rates and gaps are counted."""
MOST_GAPS = 400_000
"""With more gaps than this, those of every so many-th request are taken."""
_DIGITS = 9
"""What sums differ in because of the order of their parts is beyond these, so the order of the records does not matter."""
_FEWEST_USERS = 6
"""Fewer say too little of how different users are: Student's t is above 2.6 then."""
EXTRAPOLATION = 3.0
"""So that tails as long as those of an exponential are held as often as by rank; see docs/method.md."""


def level_intervals(
    c: Columns,
    begun: Flags,
    window: Window,
    durations: Mapping[str, Floats],
    itl: Gaps,
    itl_inside: Flags,
    good: Flags | None,
    served: Served,
) -> dict[str, Bounds]:
    """The interval of each figure of the level object that has one, in the figure's own unit.

    `begun`, `good` shape (n,): the window's requests, and those that meet every threshold; `itl_inside` shape (m,): the gaps
    that end in the window.
    """
    anchor_ns = c.anchor_ns
    found: dict[str, Bounds] = {}
    for name in PER_REQUEST:
        found |= _fields(name, _of_requests(durations[name], anchor_ns, begun))
    found |= _fields("itl", _of_gaps(itl, _thinned(itl, itl_inside, c.finished_ns, anchor_ns), window))
    decided = begun & (c.ok | c.failed)
    found["error_rate"] = _error_rate(c.failed[decided], anchor_ns[decided])
    counted = within(c.arrivals_ns, window) & ~c.failed[c.request]
    found["output_throughput"] = _rate(c.arrivals_ns[counted], c.tokens[counted], window)
    completed = _rate(c.finished_ns[within(c.finished_ns, window) & c.ok], None, window)
    found["completed_request_rate"] = found["request_throughput"] = completed
    found["served_request_rate"] = _served(c, served, begun, window, durations["e2el"])
    if good is not None:
        found["request_goodput"] = _rate(anchor_ns[good], None, window)
    return found


def complete(bounds: Mapping[str, Bounds]) -> dict[str, list[float]]:
    """{field: [low, high]} of the figures that the samples can bound on both sides."""
    return {name: [low, high] for name, (low, high) in bounds.items() if low is not None and high is not None}


def _fields(name: str, bounds: Iterable[Bounds]) -> dict[str, Bounds]:
    return {
        f"p{percent}_{name}_ms": (_ms(low), _ms(high))
        for percent, (low, high) in zip(PERCENTILES, bounds, strict=False)
    }


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1e6


def _of_requests(duration_ns: Floats, anchor_ns: Ints, begun: Flags) -> list[Bounds]:
    place = np.flatnonzero(begun & ~np.isnan(duration_ns))
    values = duration_ns[place]
    values = values[np.lexsort((values, anchor_ns[place]))]
    return percentile_intervals(values)


def percentile_intervals(values: Values) -> list[Bounds]:
    """The interval of each of `PERCENTILES` of samples in order of time, shape (n,); empty with fewer than three.

    What varies is the share of samples at or below the percentile: its error, correlation counted in, is turned into two other
    ranks (Woodruff, JASA 47, 1952). It is never taken as smaller than that of independent samples, and its blocks are no shorter
    than those of the median, of which the samples tell more than of a tail.
    """
    n = int(values.size)
    ranked = np.sort(values)
    bounds: list[Bounds] = []
    block = 1
    for percent in PERCENTILES if n >= 3 else ():
        error = mean_error((values <= ranked[rank(n, percent) - 1]).astype(np.float64), least_block=block)
        block = max(block, 1 if error is None else error.block)
        bounds.append(_bounds(lambda place: float(ranked[place - 1]), n, percent, error))
    return bounds


def _bounds(at: Callable[[int], float], n: int, percent: int, error: MeanError | None) -> Bounds:
    """The two bounds, from `at(rank)`, the samples by rank 1 … n.

    Of how many samples lie beyond the percentile, counted as if they were independent, five give an upper bound by rank.
    From one on it is extrapolated: `EXTRAPOLATION` times as far above the percentile as the lower one is below it, and no lower
    than any rank that its interval reaches. Else there is none.
    """
    share = percent / 100
    spread = share * (1 - share)
    independent = MeanError(math.sqrt(spread / n), n, 1)
    worse = independent if error is None else max(independent, error, key=lambda one: one.half_width)
    low, high = math.floor(n * (share - worse.half_width)), math.floor(n * (share + worse.half_width)) + 1
    if low < 1:
        return None, None
    beyond = min(float(n), spread / worse.standard_error**2) * (1 - share) * (1 + 1e-9)
    if beyond >= SAMPLES_BEYOND and high <= n:
        return at(low), at(high)
    if beyond < 1:
        return at(low), None
    value = at(rank(n, percent))
    return at(low), max(at(min(high, n)), value + EXTRAPOLATION * (value - at(low)))


def _of_gaps(itl: Gaps, place: Ints, window: Window) -> list[Bounds]:
    """The same for gaps between tokens, of which there are many, and alike across streams: counted in parts of the window."""
    n = int(place.size)
    if n < 3:
        return []
    weights = itl.tokens[place]
    values = itl.gap_ns[place] / weights
    order = np.argsort(values)
    ranked, reached = values[order], np.cumsum(weights[order])
    cell = _cell(itl.end_ns[place], window)
    in_cell = np.bincount(cell, weights, TIME_CELLS)

    def at(share: float) -> float:
        return float(ranked[min(int(np.searchsorted(reached, share * reached[-1] * (1 - 1e-9))), n - 1)])

    bounds: list[Bounds] = []
    block = 1
    for percent in PERCENTILES:
        below = np.bincount(cell, weights * (values <= at(percent / 100)), TIME_CELLS)
        beyond = (below - below.sum() / in_cell.sum() * in_cell) / in_cell.mean()
        error = mean_error(np.round(beyond, _DIGITS), least_block=block)
        block = max(block, 1 if error is None else error.block)
        # As many samples as there are gaps: tokens of one event are not independent of each other.
        bounds.append(_bounds(lambda place: at(place / n), n, percent, error))
    return bounds


def _thinned(itl: Gaps, inside: Flags, finished_ns: Ints, anchor_ns: Ints) -> Ints:
    """Places of the gaps that end in the window; of more than `MOST_GAPS` those of every so many-th request in order of time."""
    place = np.flatnonzero(inside)
    keep = -(-place.size // MOST_GAPS)
    if keep <= 1:
        return place
    rank = np.empty(anchor_ns.size, np.int64)
    rank[np.lexsort((finished_ns, anchor_ns))] = np.arange(anchor_ns.size)
    chosen: Ints = place[rank[itl.request[place]] % keep == 0]
    return chosen


def _cell(instant_ns: Ints, window: Window) -> Ints:
    cells: Ints = ((instant_ns - window[0]) * TIME_CELLS) // (window[1] - window[0])
    return cells


def _rate(instant_ns: Ints, weights: Floats | None, window: Window) -> Bounds:
    """Of what is counted a second, from the instants at which it happened."""
    counts: Floats = np.bincount(_cell(instant_ns, window), weights, TIME_CELLS).astype(np.float64).round(_DIGITS)
    error = mean_error(counts)
    if error is None:
        return None, None
    a_second = TIME_CELLS / ((window[1] - window[0]) / 1e9)
    mean = float(counts.mean())
    return max(0.0, mean - error.half_width) * a_second, (mean + error.half_width) * a_second


def _served(c: Columns, parts: Served, begun: Flags, window: Window, e2el_ns: Floats) -> Bounds:
    """Of requests served a second: that of the rate at which their parts came, and never narrower than what the sources of the
    requests leave open, which blocks of the window cannot see where answers last nearly as long as they.

    In an open loop the source is the schedule: the interval is at least as wide as that of the arrivals' own rate. In a closed one
    it is the users. Each is a renewal process: the number of requests that it ends in a long time has a relative error of the
    durations' coefficient of variation over the root of the number (D. R. Cox, Renewal Theory, 1962), however evenly its tokens
    come. Of several users what each was served is a sample of its own, conversations and cut-off requests included.
    """
    inside = within(parts.instant_ns, window)
    low, high = _rate(parts.instant_ns[inside], parts.share[inside], window)
    if low is None or high is None:
        return None, None
    window_s = (window[1] - window[0]) / 1e9
    mean = float(parts.share[inside].sum()) / window_s
    if (c.scheduled_ns != MISSING).any():
        due = _rate(c.scheduled_ns[within(c.scheduled_ns, window)], None, window)
        half = 0.0 if due[0] is None or due[1] is None else (due[1] - due[0]) / 2
    else:
        spent = e2el_ns[begun & ~np.isnan(e2el_ns)]
        if spent.size < 2 or not spent.any():
            return None, None
        half = t_quantile(spent.size - 1) * float(spent.std(ddof=1) / spent.mean()) / math.sqrt(spent.size) * mean
        half = max(half, _between_users(c, parts, inside) / window_s)
    return min(low, max(0.0, mean - half)), max(high, mean + half)


def _between_users(c: Columns, parts: Served, inside: Flags) -> float:
    """Half the interval of how many requests all users together were served, from what each was; 0 where they are too few."""
    users, user = np.unique((c.worker << 32) | c.user, return_inverse=True)
    if users.size < _FEWEST_USERS:
        return 0.0
    each = np.bincount(user[parts.request[inside]], parts.share[inside], users.size)
    return float(t_quantile(users.size - 1) * each.std(ddof=1) * math.sqrt(users.size))


def _error_rate(failed: Flags, anchor_ns: Ints) -> Bounds:
    outcomes = failed[np.lexsort((failed, anchor_ns))].astype(np.float64)
    error = mean_error(outcomes)
    if error is None:
        return None, None
    n, share = outcomes.size, float(outcomes.mean())
    independent = share * (1 - share) / error.standard_error**2 if error.standard_error > 0 else n
    return share_interval(share, min(float(n), max(1.0, independent)))
