"""Takes a level's plan, records and workers' health, gives the level object of summary.json; pure, never reads a clock.

The meaning of the fields is in docs/metrics.md. Milliseconds, requests and tokens per second; None is "not measured".
Of the requests that were sent in the window only `ok` ones enter a latency; tokens count where and when they arrived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadgen.audit_trail import AuditTrail
from loadgen.record import OK, SCHEMA_VERSION, LevelPlan, RequestRecord, WorkerHealth, is_failure
from loadgen.server_metrics.sample import ServerSample
from loadgen.stats.audit import audit_figures
from loadgen.stats.classes import RequestKind, class_figures, intended_prefix_share
from loadgen.stats.client import client_figures
from loadgen.stats.columns import Columns, columns
from loadgen.stats.dataset import dataset_passes
from loadgen.stats.intervals import complete, level_intervals
from loadgen.stats.latencies import LATENCIES, chunk_gaps, itl_gaps, per_request_ns
from loadgen.stats.latency_fields import latency_fields, weak_fields
from loadgen.stats.load import ended_after_change, full_run, in_flight, request_rates, served_parts, token_rates, within
from loadgen.stats.open_loop import open_loop_figures
from loadgen.stats.percentile import Samples
from loadgen.stats.phases import phases
from loadgen.stats.prefill_slope import ttft_ms_per_input_token
from loadgen.stats.roofline import roofline_share
from loadgen.stats.server_metrics import server_part
from loadgen.stats.slo import evaluate, good_requests, latency_slos
from loadgen.stats.stationarity import window_stationarity
from loadgen.stats.token_counts import token_counts
from loadgen.stats.turns import turn_figures
from loadgen.stats.validity import judge

MOST_ERROR_REASONS = 10


def level_object(
    plan: LevelPlan,
    records: Sequence[RequestRecord],
    health: Sequence[WorkerHealth],
    *,
    slo: Mapping[str, float] | None = None,
    audit: AuditTrail | None = None,
    kinds: Sequence[RequestKind] = (),
    server: Sequence[ServerSample] = (),
    settings: Mapping[str, Any] | None = None,
    shared_target: bool = False,
    soak: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that is said of one level, as JSON-able Python values.

    `records` are those of the level, in any order, in the controller's clock; a neighbouring level's may be among
    them, for what lies in the window is decided by time. `slo` has milliseconds (a share for `error_rate`), see
    `loadgen.stats.slo`. `audit` is what an audited run knows beside the records. `kinds` are the classes of the workload, in their order.
    `settings` are all that the server was started with; None: there are no others than those of `plan.server`, which name the level.
    `shared_target`: others use the server too, and are meant to. `soak` is what is said of a soak, by `loadgen.stats.soak`.
    Raises ValueError for a window without length or an unknown SLO.
    """
    window = (plan.window_start_ns, plan.window_end_ns)
    if window[1] <= window[0]:
        raise ValueError(f"level {plan.level}: the window must end after it starts, not {window}")
    window_s = (window[1] - window[0]) / 1e9
    c = columns(records)
    begun = within(c.anchor_ns, window)
    belonging = [record for record, inside in zip(records, begun.tolist(), strict=True) if inside]
    statuses = Counter(record.status for record in belonging)
    decided = int(((c.ok | c.failed) & begun).sum())
    error_rate = int((c.failed & begun).sum()) / decided if decided else None

    durations = per_request_ns(c)
    every = chunk_gaps(c)
    itl = itl_gaps(c, every)
    gaps_inside = every.ends_gap & within(every.end_ns, window)
    itl_inside = itl.ends_gap & within(itl.end_ns, window)
    samples = {name: Samples(value[begun & ~np.isnan(value)]) for name, value in durations.items()}
    samples |= {"itl": itl.token_samples(itl_inside), "chunk_gap": every.chunk_samples(gaps_inside)}

    slos = latency_slos(slo or {}, open_loop=plan.concurrency is None)
    good = good_requests(slos, c, durations, itl, every) & begun if slos else None
    served = served_parts(c)
    bounds = level_intervals(c, begun, window, durations, itl, itl_inside, good, served)
    mine = np.fromiter((record.level == plan.level for record in records), np.bool_, c.n)
    achieved, peak = in_flight(c, window)
    rates = request_rates(c, served, window)
    open_loop = open_loop_figures(plan, c, begun, health, window)
    if open_loop is not None:
        rates["offered_request_rate"] = open_loop["offered"] / window_s
    level: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "level": plan.level,
        "run": plan.run,
        "step": plan.step,
        "concurrency": plan.concurrency,
        "request_rate": plan.request_rate,
        "server": dict(plan.server),
        "effective": plan.effective,
        "shared_target": shared_target,
        "window_s": window_s,
        "requests": {OK: statuses.pop(OK, 0), **dict(sorted(statuses.items()))},
        "error_rate": error_rate,
        "achieved_concurrency": achieved,
        "peak_concurrency": peak,
        "users_seen": None if open_loop is not None else _users_seen(c, records, window),
        "open_loop": open_loop,
        "think_time_s": plan.think_time_s,
        "request_throughput": rates["completed_request_rate"],
        "request_goodput": None if good is None else int(good.sum()) / window_s,
        **token_rates(c, window),
        **rates,
        **latency_fields(samples, LATENCIES),
        "weak_percentiles": weak_fields(samples, LATENCIES),
        "intervals": complete(bounds),
        "itl_estimated": _any_estimated(c, itl.request[itl_inside]),
        "coalesced_gaps": int((every.coalesced & gaps_inside).sum()),
        "censored": _count(belonging, "censored"),
        **token_counts(c, begun),
        "intended_prefix_share": intended_prefix_share(c, begun, kinds),
        "dataset_passes": dataset_passes(plan, records),
        "output_tokens_source": _sources(belonging),
        "not_streamed": sum(not record.streamed for record in belonging),
        "finish_reasons": dict(Counter(r.finish_reason or "none" for r in belonging if r.status == OK).most_common()),
        "error_reasons": _error_reasons(belonging),
        "classes": class_figures(c, begun, window, [record.status for record in records], durations, kinds, served),
        "turns": turn_figures(plan, c, begun, [record.status for record in records], durations),
        "full_run": full_run(c, mine),
        "phases": phases(plan, records, c, durations, mine),
        "client": client_figures(plan, c, begun, within(c.arrivals_ns, window) & ~c.failed[c.request], health),
        "audit": None if audit is None else audit_figures([r for r in belonging if r.status == OK], audit),
        **server_part(c, server, window, plan.drained_ns),
        "limit": None,
        "soak": soak,
        "ttft_ms_per_input_token": ttft_ms_per_input_token(c, begun),
        "clock_change_ms": None if plan.clock_change_ns is None else plan.clock_change_ns / 1e6,
        "workers": plan.workers,
        "lost_workers": plan.lost_workers,
        "late_workers": plan.late_workers,
        "missing_records": plan.missing_records,
        "settled": plan.settled,
        "settle_reason": plan.settle_reason,
        "window_reason": plan.window_reason,
        "ended_after_change": ended_after_change(plan, c, begun),
        "steady_state": window_stationarity(c, window),
        "interrupted": plan.interrupted,
        "interrupted_by": plan.interrupted_by or None,
    }
    level["roofline_share"] = roofline_share({**level, "server": plan.server if settings is None else settings})
    level["slo"] = None if slo is None else evaluate(slo, level, bounds)
    reasons, warnings = judge(level)
    return {**level, "valid": not reasons, "reasons": reasons, "warnings": warnings}


def _any_estimated(c: Columns, request: np.ndarray[Any, np.dtype[np.int32]]) -> bool | None:
    return bool((~c.counts_given[request]).any()) if request.size else None


def _users_seen(c: Columns, records: Sequence[RequestRecord], window: tuple[int, int]) -> int:
    busy = (c.dispatched_ns < window[1]) & (c.finished_ns > window[0])
    return len({(records[i].worker, records[i].user) for i in np.flatnonzero(busy).tolist()})


def _count(belonging: Sequence[RequestRecord], status: str) -> int:
    return sum(record.status == status for record in belonging)


def _sources(belonging: Sequence[RequestRecord]) -> dict[str, int]:
    """Where N of the ok requests came from: `usage`, `tokenized` (an estimate), or `none`."""
    return dict(sorted(Counter(r.output_tokens_source or "none" for r in belonging if r.status == OK).items()))


def _error_reasons(belonging: Sequence[RequestRecord]) -> list[dict[str, Any]]:
    counts = Counter((record.status, record.reason) for record in belonging if is_failure(record.status))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [
        {"status": status, "reason": reason, "count": count} for (status, reason), count in ordered[:MOST_ERROR_REASONS]
    ]
