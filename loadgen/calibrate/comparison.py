"""Takes what a run published, its records and the server's truth; gives the tool's error. Pure: no network, no clock.

Requests are matched by X-Request-Id, token i of the answer with send i. Truth is what the server did: TTFT from the
request's arrival in its kernel to just before the first token's `send`, gaps between such instants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.record import OK, LevelPlan, RequestRecord
from loadgen.stats.percentile import SAMPLES_BEYOND, nearest_rank
from server.metronome.truth import Truth

PERCENTILES = (50, 95, 99)
CLIENT_BOUND = frozenset({"client_late", "client_cpu", "worker_stalled"})
"""Rules of validity that say that the client could not keep up."""

Ints = NDArray[np.int64]
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Matched:
    """Records with the truth of the same request, one entry each; arrays of tokens are concatenated."""

    ttft_ns: Ints
    """True TTFT of the ok requests that were sent in the window."""
    ttft_error_ns: Ints
    """Of the same requests: reported minus true, request by request."""
    sent_early_ns: Ints
    """Of the same requests: how long before its arrival at the server each claims to have been sent."""
    arrival_error_ns: Ints
    """How long after its true send each token that was sent in the window is said to have arrived."""
    coalesced: NDArray[np.bool_]
    """Of the same tokens."""
    unmatched: int
    """Ok requests of the window that the truth does not know, or knows with another number of tokens."""


def compare(
    level: Mapping[str, Any], plan: LevelPlan, records: Sequence[RequestRecord], truth: Truth, nonce: str
) -> Figures:
    """The error of one level, as JSON-able values; None where nothing was measured.

    `level` is the published level object; `plan` and `records` are the run's, in the clock of this machine, which the
    server shares. `nonce` is the run's: request ids are `nonce-level-index`.
    """
    window = (plan.window_start_ns, plan.window_end_ns)
    window_s = (window[1] - window[0]) / 1e9
    matched = _match(plan, records, truth, nonce)
    own = np.fromiter((i.startswith(f"{nonce}-") for i in truth.request_ids), np.bool_, len(truth.request_ids))
    counts = np.diff(truth.starts)
    sends_inside = np.repeat(own, counts) & _within(truth.sends_ns, window)
    true_rate = int(sends_inside.sum()) / window_s
    tokens = int(sends_inside.sum())
    (late_p99_ns,) = nearest_rank(truth.lateness_ns()[sends_inside], (99,))
    cpu = level["client"]["cpu_process"]
    return {
        "streams": plan.concurrency,
        "requests": int(level["requests"][OK]),
        "requests_unmatched": matched.unmatched,
        "tokens": tokens,
        "ttft": _against_truth(level, "ttft", matched.ttft_ns),
        "itl": _against_truth(level, "itl", _true_gaps_ns(truth, sends_inside)),
        "ttft_error_of_a_request": _spread_us(matched.ttft_error_ns),
        "tokens_per_s": _error(level["output_throughput"], true_rate, ""),
        "arrival_error": _spread_us(matched.arrival_error_ns),
        "arrival_error_not_coalesced": _spread_us(matched.arrival_error_ns[~matched.coalesced]),
        "sent_early": _spread_us(matched.sent_early_ns),
        "coalesced_share": float(matched.coalesced.mean()) if matched.coalesced.size else None,
        "cpu_us_per_token": cpu * window_s * 1e6 / tokens if cpu is not None and tokens else None,
        "cpu_loop_thread": level["client"]["cpu_loop_thread"],
        "loop_lag_p99_ms": level["client"]["loop_lag_p99_ms"],
        "read_delay_p99_ms": level["client"]["read_delay_p99_ms"],
        "kernel_stamps": level["client"]["kernel_stamps"],
        "server_late_p99_ms": None if late_p99_ns is None else late_p99_ns / 1e6,
        "valid": level["valid"],
        "reasons": [{"rule": found["rule"], "evidence": found["evidence"]} for found in level["reasons"]],
        "client_bound": any(found["rule"] in CLIENT_BOUND for found in level["reasons"]),
    }


def _match(plan: LevelPlan, records: Sequence[RequestRecord], truth: Truth, nonce: str) -> _Matched:
    window = (plan.window_start_ns, plan.window_end_ns)
    answer_of = {request_id: i for i, request_id in enumerate(truth.request_ids)}
    ttft_ns: list[int] = []
    ttft_error_ns: list[int] = []
    sent_early_ns: list[int] = []
    errors: list[Ints] = []
    coalesced: list[NDArray[np.bool_]] = []
    unmatched = 0
    for record in records:
        if record.status != OK or record.sent_ns is None or record.first_token_ns is None:
            continue
        in_window = window[0] <= record.sent_ns < window[1]
        answer = answer_of.get(f"{nonce}-{record.level}-{record.index}")
        sends_ns = truth.sends_of(answer) if answer is not None else np.empty(0, np.int64)
        if answer is None or len(sends_ns) != len(record.arrivals_ns):
            unmatched += in_window
            continue
        inside = _within(sends_ns, window)
        errors.append((record.arrivals_ns - sends_ns)[inside])
        flags = record.coalesced if record.coalesced.size else np.zeros(len(sends_ns), np.bool_)
        coalesced.append(flags[inside])
        if in_window:
            ttft_ns.append(int(sends_ns[0] - truth.arrived_ns[answer]))
            ttft_error_ns.append(record.first_token_ns - record.sent_ns - ttft_ns[-1])
            sent_early_ns.append(int(truth.arrived_ns[answer] - record.sent_ns))
    return _Matched(
        np.array(ttft_ns, np.int64),
        np.array(ttft_error_ns, np.int64),
        np.array(sent_early_ns, np.int64),
        np.concatenate(errors) if errors else np.empty(0, np.int64),
        np.concatenate(coalesced) if coalesced else np.empty(0, np.bool_),
        unmatched,
    )


def _true_gaps_ns(truth: Truth, chosen: NDArray[np.bool_]) -> Ints:
    """Every gap that ends in a chosen send."""
    ends_gap = chosen.copy()
    ends_gap[truth.starts[:-1][np.diff(truth.starts) > 0]] = False
    return np.diff(truth.sends_ns, prepend=truth.sends_ns[:1])[ends_gap]


def _within(instants_ns: Ints, window: tuple[int, int]) -> NDArray[np.bool_]:
    return (instants_ns >= window[0]) & (instants_ns < window[1])


def _against_truth(level: Mapping[str, Any], name: str, true_ns: Ints) -> Figures:
    """The published percentiles of one latency beside the true ones; `weak` names those with few samples beyond."""
    figures: Figures = {"n_reported": level[f"n_{name}"], "n_true": int(true_ns.size)}
    for percent, true in zip(PERCENTILES, nearest_rank(true_ns, PERCENTILES), strict=True):
        true_ms = None if true is None else true / 1e6
        figures[f"p{percent}"] = _error(level[f"p{percent}_{name}_ms"], true_ms, "_ms")
    figures["weak"] = [f"p{p}" for p in PERCENTILES if true_ns.size * (100 - p) < SAMPLES_BEYOND * 100]
    return figures


def _error(reported: float | None, true: float | None, unit: str) -> Figures:
    error = None if reported is None or true is None else reported - true
    return {
        f"reported{unit}": reported,
        f"true{unit}": true,
        f"error{unit}": error,
        "error_percent": 100 * error / true if error is not None and true else None,
    }


def _spread_us(values_ns: Ints) -> Figures:
    percents = (*PERCENTILES, 99.9, 100)
    found = nearest_rank(values_ns, percents)
    names = (*(f"p{percent}_us" for percent in PERCENTILES), "p99_9_us", "max_us")
    spread = {name: None if value is None else value / 1e3 for name, value in zip(names, found, strict=True)}
    return {"n": int(values_ns.size), **spread}
