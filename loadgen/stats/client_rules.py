"""Takes a level object, gives evidence that the generator itself did not keep up; pure. The rules are in `validity`.

A stamp says how long the server took only if the client was there to take it, and a load is the plan's only if the client
sent when the plan says. Hub lag, read delay and send gap have no rule: nothing passes through the hub that is timed, kernel
stamps do not feel the read delay, and the send gap is mostly the wait for the interpreter lock *after* the bytes had left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.stats.soak_rules import is_shorter_soak

Level = Mapping[str, Any]

MOST_LAG_MS = 10.0
"""What goes straight into a latency may be so much at P99: loop lag without kernel stamps, send lag in every latency from
the schedule. A step of a fast decoder takes as long, so a client that is later hides or invents a token's time."""
STALL_MS = 500.0
"""A worker that stands still so long sends nothing and reads nothing meanwhile: its requests are not the plan's."""
MOST_LOOP_CPU = 0.9
MOST_COALESCED = 0.01


def percent(share: float) -> str:
    return f"{share * 100:.3g} %"


def worker_stalled(level: Level) -> str | None:
    # One stall in a long window lies beyond any percentile.
    lag_ms = level["client"]["loop_lag_max_ms"]
    return f"A worker stood still for {lag_ms / 1e3:.1f} s." if lag_ms is not None and lag_ms > STALL_MS else None


def _token_gap_ms(level: Level) -> float | None:
    # What the client must keep pace with is events; a gap of zero (coalesced) says nothing about the server's pace.
    gaps = (level["p50_chunk_gap_ms"], level["p50_itl_ms"], level["p50_tpot_ms"])
    return next((float(gap) for gap in gaps if gap), None)


def _coalesced_share(level: Level) -> float:
    return level["client"]["coalesced_share"] or 0.0


def _lag_above_gap(level: Level) -> bool:
    lag, gap = level["client"]["loop_lag_p99_ms"], _token_gap_ms(level)
    return lag is not None and gap is not None and lag > gap


def client_late(level: Level) -> str | None:
    lag = level["client"]["loop_lag_p99_ms"]
    if lag is None:
        return None
    stamped = level["client"]["kernel_stamps"] == 1.0
    if stamped:
        # The kernel's stamps do not feel the lag until it merges queued segments and keeps only the last one's time.
        if _lag_above_gap(level) and _coalesced_share(level) > MOST_COALESCED:
            return (
                f"The client's loop was {lag:.3g} ms late at P99, longer than the gap between tokens "
                f"({_token_gap_ms(level):.3g} ms), {percent(_coalesced_share(level))} of a worker's events were read together."
            )
        return None
    if lag > MOST_LAG_MS:
        return (
            f"The client's loop was {lag:.3g} ms late at P99 (limit {MOST_LAG_MS:g} ms); arrivals lack kernel stamps."
        )
    if _lag_above_gap(level):
        return (
            f"The client's loop was {lag:.3g} ms late at P99, longer than the gap between tokens "
            f"({_token_gap_ms(level):.3g} ms), and arrivals lack kernel stamps."
        )
    return None


def client_somewhat_late(level: Level) -> str | None:
    lag = level["client"]["loop_lag_p99_ms"]
    if lag is None or lag <= MOST_LAG_MS or client_late(level):
        return None
    return (
        f"The client's loop was {lag:.3g} ms late at P99; arrivals carry kernel stamps, but sends may have been late."
    )


def sends_late(level: Level) -> str | None:
    # In an open loop only. A closed loop has no schedule to be late for.
    lag = level["client"]["send_lag_p99_ms"]
    if lag is None or lag <= MOST_LAG_MS:
        return None
    return f"Requests were sent {lag:.3g} ms behind their schedule at P99 (limit {MOST_LAG_MS:g} ms)."


def client_collected(level: Level) -> str | None:
    # No collection is meant to happen in a window. A short one is no longer than other lags that are borne.
    longest = level["client"]["gc_pause_max_ms"]
    if longest is None or longest <= MOST_LAG_MS:
        return None
    return f"The garbage collector stopped a worker for {longest:.3g} ms in the window (limit {MOST_LAG_MS:g} ms)."


def client_cpu(level: Level) -> str | None:
    cpu = level["client"]["cpu_loop_thread"]
    return f"A worker's loop thread used {percent(cpu)} of a core." if cpu is not None and cpu > MOST_LOOP_CPU else None


def coalesced(level: Level) -> str | None:
    share = _coalesced_share(level)
    if share <= MOST_COALESCED or client_late(level):
        return None
    return f"{percent(share)} of a worker's token events were read together with another; their gaps are not in ITL."


def not_watched(level: Level) -> str | None:
    watched = sum(worker["loop_lag_p99_ms"] is not None for worker in level["client"]["workers"])
    # One that is gone has a rule of its own, and so has a soak that was cut short.
    if watched + level["lost_workers"] >= level["workers"] or is_shorter_soak(level):
        return None
    return f"{watched} of {level['workers']} workers reported how late they were."
