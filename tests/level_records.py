"""Records, plans and health reports of levels, written down in milliseconds for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadgen.record import LevelPlan, RequestRecord, WorkerHealth

MS = 1_000_000


def request(
    sent_ms: float = 0,
    arrivals_ms: Sequence[float] = (),
    *,
    status: str = "ok",
    n: int | None = -1,
    event_tokens: Sequence[int] | None = None,
    coalesced: Sequence[bool] = (),
    finished_ms: float | None = None,
    scheduled_ms: float | None = None,
    dispatched_ms: float | None = None,
    **fields: Any,
) -> RequestRecord:
    """One request; its events arrive at the instants `arrivals_ms`; it has as many tokens unless `n` says else."""
    arrivals = np.array([round(at * MS) for at in arrivals_ms], np.int64)
    first, last = (int(arrivals[0]), int(arrivals[-1])) if arrivals.size else (None, None)
    tokens = arrivals.size if n == -1 else n
    if status != "ok" and n == -1:
        tokens = None
    ended = finished_ms if finished_ms is not None else (arrivals_ms[-1] if arrivals.size else sent_ms)
    return RequestRecord(
        **{
            "level": 0,
            "index": 0,
            "user": 0,
            "worker": 0,
            "status": status,
            "reason": "" if status == "ok" else "it failed",
            "dispatched_ns": round((sent_ms if dispatched_ms is None else dispatched_ms) * MS),
            "sent_ns": round(sent_ms * MS),
            "scheduled_ns": None if scheduled_ms is None else round(scheduled_ms * MS),
            "finished_ns": round(ended * MS),
            "first_token_ns": first,
            "first_visible_ns": first,
            "last_token_ns": last,
            "output_tokens": tokens,
            "output_tokens_source": None if tokens is None else "usage",
            "finish_reason": "length" if status == "ok" else None,
            "arrivals_ns": arrivals,
            "event_tokens": None if event_tokens is None else np.array(event_tokens, np.int32),
            "coalesced": np.array(coalesced, np.bool_),
            **fields,
        }
    )


def normal(tokens: int, first_ms: float, gap_ms: float, *, sent_ms: float = 0, **fields: Any) -> RequestRecord:
    """NORMAL(n, first, gap) of the cases, sent at `sent_ms`."""
    return request(sent_ms, [sent_ms + first_ms + gap_ms * i for i in range(tokens)], **fields)


def closed_loop(
    users: int, requests_each: int, *, tokens: int = 5, first_ms: float = 50, gap_ms: float = 10, **fields: Any
) -> list[RequestRecord]:
    """Every user sends its next request the moment the last one ended; users begin 1 ms apart, at or before 0."""
    length = first_ms + gap_ms * (tokens - 1)
    return [
        normal(
            tokens,
            first_ms,
            gap_ms,
            sent_ms=length * i - user,
            user=user,
            index=user * requests_each + i,
            input_tokens=100,
            input_tokens_requested=100,
            output_tokens_requested=tokens,
            **fields,
        )
        for user in range(users)
        for i in range(requests_each)
    ]


def plan(start_ms: float = 0, end_ms: float = 1000, *, concurrency: int = 1, **fields: Any) -> LevelPlan:
    return LevelPlan(
        **{
            "level": 0,
            "concurrency": concurrency,
            "window_start_ns": round(start_ms * MS),
            "window_end_ns": round(end_ms * MS),
            "drained_ns": round(end_ms * MS),
            **fields,
        }
    )


def health(worker: int = 0, **fields: Any) -> WorkerHealth:
    return WorkerHealth(
        **{
            "worker": worker,
            "level": 0,
            "loop_lag_p50_ms": 0.05,
            "loop_lag_p99_ms": 0.4,
            "loop_lag_max_ms": 1.5,
            "hub_lag_p50_ms": 0.1,
            "hub_lag_p99_ms": 2.0,
            "hub_lag_max_ms": 6.0,
            "read_delay_p50_ms": 0.05,
            "read_delay_p99_ms": 0.2,
            "read_delay_max_ms": 0.3,
            "cpu_loop_thread": 0.31,
            "cpu_process": 0.35,
            "gc_pauses": 0,
            "gc_pause_total_ms": 0.0,
            "gc_pause_max_ms": None,
            "resident_bytes": 90_000_000,
            "refused_stamps": 0,
            "clock_offset_ns": 0,
            "clock_error_ns": 40_000,
            **fields,
        }
    )
