"""Takes SLO thresholds and the samples of a level, gives whether each holds and which requests meet them; pure.

A key is `<latency>_<statistic>`, such as `ttft_p95` or `e2el_max`, its threshold in milliseconds; or `error_rate`, a
share of 0 … 1. An SLO is met when the value is at or below the threshold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.stats.asked import is_open
from loadgen.stats.columns import Columns, Flags, Floats
from loadgen.stats.digits import digits
from loadgen.stats.intervals import Bounds
from loadgen.stats.latencies import FROM_SCHEDULE, LATENCIES, Gaps
from loadgen.stats.percentile import Samples

ERROR_RATE = "error_rate"
STATISTICS = ("p50", "p90", "p95", "p99", "mean", "max")


@dataclass(frozen=True, slots=True)
class LatencySlo:
    """One latency SLO."""

    key: str
    latency: str
    """Of an open loop from the schedule, where there is such a latency."""
    statistic: str
    threshold_ms: float


def latency_slos(slo: Mapping[str, float], *, open_loop: bool = False) -> list[LatencySlo]:
    """The latency SLOs among `slo`; in an open loop those of TTFT and E2E latency count from the schedule.

    Raises ValueError for a key that names no latency and is not `error_rate`.
    """
    found = []
    for key, threshold in slo.items():
        if key == ERROR_RATE:
            continue
        latency, _, statistic = key.rpartition("_")
        if latency not in LATENCIES or statistic not in STATISTICS:
            raise ValueError(
                f"slo.{key}: not an SLO; use {ERROR_RATE}, or one of {', '.join(LATENCIES)} "
                f"followed by one of _{', _'.join(STATISTICS)}"
            )
        if open_loop:
            latency = FROM_SCHEDULE.get(latency, latency)
        found.append(LatencySlo(key, latency, statistic, float(threshold)))
    return found


def evaluate(
    slo: Mapping[str, float], level: Mapping[str, Any], bounds: Mapping[str, Bounds]
) -> dict[str, dict[str, Any]]:
    """{key: {threshold, value, met, interval, holds}} of a level object's figures; None where nothing was measured.

    `bounds` are the figures' 95 % intervals. `holds` is True when the upper bound is within the threshold, False when the
    lower one is beyond it, else None: these samples do not decide. A level without a single failure holds its error rate:
    to bound a share of 1 % from above takes 400 requests even then.
    """
    fields = {one.key: f"{one.statistic}_{one.latency}_ms" for one in latency_slos(slo, open_loop=is_open(level))}
    found = {}
    for key, threshold in slo.items():
        field = fields.get(key, ERROR_RATE)
        value, (low, high) = level[field], bounds.get(field, (None, None))
        holds = None
        if value is not None:
            spotless = key == ERROR_RATE and value == 0
            if spotless or (high is not None and high <= threshold):
                holds = True
            elif low is not None and low > threshold:
                holds = False
        found[key] = {
            "threshold": float(threshold),
            "value": value,
            "met": None if value is None else value <= threshold,
            "interval": None if low is None and high is None else [low, high],
            "holds": holds,
        }
    return found


def slo_text(key: str, value: float) -> str:
    """`500 ms`, or `1 %` for the error rate."""
    return f"{value * 100:.3g} %" if key == ERROR_RATE else f"{digits(value)} ms"


def good_requests(
    slos: Sequence[LatencySlo], c: Columns, durations: Mapping[str, Floats], itl: Gaps, every: Gaps
) -> Flags:
    """Which requests, shape (n,), are ok and meet every latency threshold themselves.

    A latency that a request cannot have (TPOT of one token) does not count against it. For ITL and chunk gaps the SLO's
    statistic is taken over the request's own gaps, all of them.
    """
    good = c.ok.copy()
    for one in slos:
        if one.latency == "itl":
            good &= _within(one, itl.request[itl.ends_gap], itl.token_samples(itl.ends_gap), c.n)
        elif one.latency == "chunk_gap":
            good &= _within(one, every.request[every.ends_gap], every.chunk_samples(every.ends_gap), c.n)
        else:
            duration = durations[one.latency]
            good &= np.isnan(duration) | (duration <= one.threshold_ms * 1e6)
    return good


def _within(one: LatencySlo, request: NDArray[np.int32], gaps: Samples, n: int) -> Flags:
    threshold_ns = one.threshold_ms * 1e6
    weights = np.ones(gaps.values_ns.size) if gaps.weights is None else gaps.weights
    total = np.bincount(request, weights, n)
    if one.statistic == "mean":
        spent = np.bincount(request, gaps.values_ns * weights, n)
        return np.asarray(spent <= threshold_ns * total, np.bool_)
    share = 1.0 if one.statistic == "max" else int(one.statistic[1:]) / 100
    # P_p ≤ threshold exactly when at least the share p of the samples lies at or below the threshold.
    reached = np.bincount(request, weights * (gaps.values_ns <= threshold_ns), n)
    return np.asarray(reached >= share * total * (1 - 1e-9), np.bool_)
