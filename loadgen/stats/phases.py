"""Takes a level's requests, gives the first wave, the warm-up and the drain as figures of their own; pure.

They stand beside the window's figures so that what was left out can be seen; no answer rests on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadgen.record import LevelPlan, RequestRecord
from loadgen.stats.columns import Columns, Flags, Floats, Ints
from loadgen.stats.load import Window, within
from loadgen.stats.percentile import nearest_rank


def phases(
    plan: LevelPlan, records: Sequence[RequestRecord], c: Columns, durations: Mapping[str, Floats], mine: Flags
) -> dict[str, Any]:
    """`{first_wave, warmup, drain}`; `mine`, shape (n,): the requests that were dispatched in the level.

    The first wave is every user's first request of the level, which finds a server that was not yet, or otherwise, loaded; None
    in an open loop. The warm-up is what was sent before the window, the drain what was sent after it. Throughput counts the
    tokens that arrived meanwhile, whenever their request was sent; it is None where the phase has no length.
    """
    anchor_ns = c.anchor_ns
    begin_ns = int(np.min(anchor_ns[mine])) if mine.any() else plan.window_start_ns
    before = mine & (anchor_ns < plan.window_start_ns)
    after = mine & (anchor_ns >= plan.window_end_ns)
    drained_ns = plan.window_end_ns if plan.drained_ns is None else plan.drained_ns
    first = None
    if plan.concurrency is not None:
        wave = _first_of_each_user(records, c, anchor_ns, mine)
        first = {
            **_latencies(c, durations, wave),
            "in_window": int((wave & within(anchor_ns, (plan.window_start_ns, plan.window_end_ns))).sum()),
        }
    return {
        "first_wave": first,
        "warmup": {**_latencies(c, durations, before), **_pace(c, (begin_ns, plan.window_start_ns))},
        "drain": {**_latencies(c, durations, after), **_pace(c, (plan.window_end_ns, drained_ns))},
    }


def _first_of_each_user(records: Sequence[RequestRecord], c: Columns, anchor_ns: Ints, mine: Flags) -> Flags:
    first: dict[tuple[int, int], int] = {}
    # Latest first, so that the earliest stays. Of two at one instant the one that ended first is the first, in any order of records.
    ties = (c.first_event_tokens, c.output_tokens, c.ok, c.first_token_ns, c.last_token_ns)
    latest_first = np.lexsort((*ties, c.finished_ns, anchor_ns))[::-1]
    for i in latest_first[mine[latest_first]].tolist():
        first[records[i].worker, records[i].user] = i
    wave = np.zeros(anchor_ns.size, np.bool_)
    wave[list(first.values())] = True
    return wave


def _latencies(c: Columns, durations: Mapping[str, Floats], chosen: Flags) -> dict[str, Any]:
    found: dict[str, Any] = {"requests": int(chosen.sum()), "ok": int((chosen & c.ok).sum())}
    for name in ("ttft", "tpot", "e2el"):
        values = durations[name][chosen]
        for percent, value in zip((50, 95), nearest_rank(values[~np.isnan(values)], (50, 95)), strict=True):
            found[f"p{percent}_{name}_ms"] = None if value is None else value / 1e6
    return found


def _pace(c: Columns, span: Window) -> dict[str, Any]:
    span_s = (span[1] - span[0]) / 1e9
    if span_s <= 0:
        return {"duration_s": 0.0, "output_throughput": None}
    arrived = within(c.arrivals_ns, span) & ~c.failed[c.request]
    # Sums of shares of tokens differ in their last digits with the order of the records.
    return {"duration_s": span_s, "output_throughput": round(float(c.tokens[arrived].sum()), 6) / span_s}
