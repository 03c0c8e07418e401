"""The vectorised level object against the same definitions written out one request at a time, in exact fractions."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.record import RequestRecord, is_failure
from loadgen.stats.level import level_object
from tests.level_records import plan

START, END = 1000, 2000  # nanoseconds: short enough that window edges and ties are hit often
Weighted = list[tuple[Fraction, Fraction]]


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    status = draw(st.sampled_from(["ok", "ok", "ok", "censored", "cancelled", "http_503", "truncated"]))
    scheduled = draw(st.none() | st.integers(0, 2500))
    dispatched = draw(st.integers(scheduled or 0, 2600))
    sent = dispatched + draw(st.integers(0, 40))
    gaps = draw(st.lists(st.integers(0, 300), min_size=1 if status == "ok" else 0, max_size=6))
    arrivals = np.cumsum([sent, *gaps])[1:].astype(np.int64)
    counts = draw(st.none() | st.lists(st.integers(0, 4), min_size=len(gaps), max_size=len(gaps)))
    n = draw(st.none() | st.integers(1, 20)) if counts is None else sum(counts)
    first = int(arrivals[0]) if gaps else None
    return RequestRecord(
        level=0,
        index=0,
        user=draw(st.integers(0, 3)),
        worker=draw(st.integers(0, 1)),
        status=status,
        reason="because",
        dispatched_ns=dispatched,
        scheduled_ns=scheduled,
        sent_ns=None if not gaps and draw(st.booleans()) else sent,
        finished_ns=int(arrivals[-1] if gaps else sent) + draw(st.integers(0, 50)),
        first_token_ns=first,
        first_visible_ns=draw(st.sampled_from([first, None])),
        last_token_ns=int(arrivals[-1]) if gaps else None,
        input_tokens=draw(st.none() | st.integers(1, 50)),
        input_tokens_requested=draw(st.none() | st.integers(1, 50)),
        output_tokens=n,
        output_tokens_source=None if n is None else "usage",
        arrivals_ns=arrivals,
        event_tokens=None if counts is None else np.array(counts, np.int32),
        coalesced=np.array(draw(st.lists(st.booleans(), min_size=len(gaps), max_size=len(gaps))), np.bool_),
    )


def inside(instant: int | None) -> bool:
    return instant is not None and START <= instant < END


def event_tokens(r: RequestRecord, a_mean_event: Fraction = Fraction(1)) -> list[Fraction]:
    if r.event_tokens is not None:
        return [Fraction(int(k)) for k in r.event_tokens]
    if r.output_tokens is not None and len(r.arrivals_ns):
        return [Fraction(r.output_tokens, len(r.arrivals_ns))] * len(r.arrivals_ns)
    return [a_mean_event] * len(r.arrivals_ns)


def token_gaps(r: RequestRecord) -> Weighted:
    """(g / k, k) of one request, for gaps that end in the window."""
    if r.output_tokens is None and r.event_tokens is None:
        return []
    events = [(int(at), k) for at, k in zip(r.arrivals_ns, event_tokens(r), strict=True) if k > 0]
    return [(Fraction(at - before) / k, k) for (before, _), (at, k) in pairwise(events) if inside(at) and at > before]


def tpot(r: RequestRecord) -> Fraction | None:
    if r.output_tokens is None or r.first_token_ns is None or r.last_token_ns is None:
        return None
    first = 1
    if r.event_tokens is not None:
        first = int(r.event_tokens[0])
    elif len(r.arrivals_ns) == 1:
        first = r.output_tokens
    if r.output_tokens <= first or r.last_token_ns == r.first_token_ns:
        return None
    return Fraction(r.last_token_ns - r.first_token_ns, r.output_tokens - first)


def nearest_rank(samples: Weighted, percent: int) -> Fraction | None:
    total = sum(weight for _, weight in samples)
    target = total * Fraction(percent, 100)
    if all(weight.denominator == 1 for _, weight in samples):
        target = Fraction(ceil(target))
    reached = Fraction(0)
    for value, weight in sorted(samples):
        reached += weight
        if reached >= target:
            return value
    return None


def expected_latencies(given_records: Sequence[RequestRecord]) -> dict[str, Weighted]:
    ok = [r for r in given_records if r.status == "ok"]
    begun = [r for r in ok if inside(r.scheduled_ns if r.scheduled_ns is not None else r.sent_ns)]

    def between(earlier: str, later: str) -> Weighted:
        pairs = [(getattr(r, earlier), getattr(r, later)) for r in begun]
        return [(Fraction(b - a), Fraction(1)) for a, b in pairs if a is not None and b is not None]

    return {
        "ttft": between("sent_ns", "first_token_ns"),
        "ttft_from_schedule": between("scheduled_ns", "first_token_ns"),
        "ttfo": between("sent_ns", "first_visible_ns"),
        "e2el": between("sent_ns", "last_token_ns"),
        "e2el_from_schedule": between("scheduled_ns", "last_token_ns"),
        "tpot": [(value, Fraction(1)) for r in begun if (value := tpot(r)) is not None],
        "itl": [sample for r in ok for sample in token_gaps(r)],
        "chunk_gap": [
            (Fraction(int(b - a)), Fraction(1)) for r in ok for a, b in pairwise(r.arrivals_ns) if inside(int(b))
        ],
    }


def same(found: float | None, true: Fraction | None) -> bool:
    return found is None if true is None else found == pytest.approx(float(true), rel=1e-9, abs=1e-12)


@settings(max_examples=300, deadline=None)
@given(st.lists(records(), max_size=8))
def test_every_latency_equals_its_definition(given_records: list[RequestRecord]) -> None:
    level = level_object(plan(START / 1e6, END / 1e6), given_records, [])
    for name, samples in expected_latencies(given_records).items():
        total = sum((weight for _, weight in samples), Fraction(0))
        assert abs(level[f"n_{name}"] - total) <= 0.5 + 1e-9, name  # of a half, either way
        for percent in (50, 90, 95, 99):
            true = nearest_rank(samples, percent)
            assert same(level[f"p{percent}_{name}_ms"], None if true is None else true / 10**6), (name, percent)
        mean = sum(value * weight for value, weight in samples) / total / 10**6 if total else None
        assert same(level[f"mean_{name}_ms"], mean), name
        assert same(level[f"max_{name}_ms"], max(samples)[0] / 10**6 if samples else None), name


def in_flight(given_records: Sequence[RequestRecord], at: int) -> int:
    """Requests in flight during the nanosecond [at, at + 1)."""
    return sum((r.sent_ns if r.sent_ns is not None else r.dispatched_ns) <= at < r.finished_ns for r in given_records)


@settings(max_examples=200, deadline=None)
@given(st.lists(records(), max_size=8), st.integers(10, 400))
def test_every_rate_equals_its_definition(given_records: list[RequestRecord], threshold_ns: int) -> None:
    window_s = Fraction(END - START, 10**9)
    slo = {"ttft_p95": threshold_ns / 1e6, "e2el_p50": 2 * threshold_ns / 1e6}
    level = level_object(plan(START / 1e6, END / 1e6), given_records, [], slo=slo)

    counted = [r for r in given_records if r.output_tokens is not None and len(r.arrivals_ns)]
    events = sum(len(r.arrivals_ns) for r in counted)
    a_mean_event = Fraction(sum(r.output_tokens or 0 for r in counted), events) if events else Fraction(1)

    def tokens(failed: bool) -> Fraction:
        chosen = [r for r in given_records if is_failure(r.status) == failed]
        credited = (zip(r.arrivals_ns, event_tokens(r, a_mean_event), strict=True) for r in chosen)
        return sum((k for events in credited for at, k in events if inside(int(at))), Fraction(0))

    assert same(level["output_throughput"], tokens(failed=False) / window_s)
    assert same(level["failed_output_tokens"], tokens(failed=True))

    prompts = [
        r.input_tokens if r.input_tokens is not None else r.input_tokens_requested
        for r in given_records
        if inside(r.first_token_ns)
    ]
    known = [tokens for tokens in prompts if tokens is not None]
    assert same(level["input_throughput"], None if prompts and not known else Fraction(sum(known)) / window_s)

    flight = [in_flight(given_records, at) for at in range(START, END)]
    assert same(level["achieved_concurrency"], Fraction(sum(flight), END - START))
    assert level["peak_concurrency"] == max(flight)

    def begun(r: RequestRecord) -> bool:
        return inside(next(at for at in (r.scheduled_ns, r.sent_ns, r.dispatched_ns) if at is not None))

    def good(r: RequestRecord) -> bool:
        if r.status != "ok" or r.sent_ns is None or r.first_token_ns is None or r.last_token_ns is None:
            return False
        return r.first_token_ns - r.sent_ns <= threshold_ns and r.last_token_ns - r.sent_ns <= 2 * threshold_ns

    assert same(level["request_goodput"], sum(begun(r) and good(r) for r in given_records) / window_s)
    completed = sum(r.status == "ok" and inside(r.finished_ns) for r in given_records)
    assert same(level["completed_request_rate"], completed / window_s)
    assert same(level["sent_request_rate"], sum(inside(r.dispatched_ns) for r in given_records) / window_s)
    statuses: dict[str, Any] = {"ok": 0}
    for r in filter(begun, given_records):
        statuses[r.status] = statuses.get(r.status, 0) + 1
    assert level["requests"] == statuses


@settings(max_examples=50, deadline=None)
@given(st.lists(records(), max_size=8), st.randoms())
def test_order_in_which_workers_deliver_records_does_not_matter(
    given_records: list[RequestRecord], random: Any
) -> None:
    shuffled = list(given_records)
    random.shuffle(shuffled)
    first, second = (level_object(plan(START / 1e6, END / 1e6), order, []) for order in (given_records, shuffled))
    exact = [key for key, value in first.items() if not isinstance(value, float)]
    assert {key: first[key] for key in exact if key not in ("full_run", "finish_reasons")} == {
        key: second[key] for key in exact if key not in ("full_run", "finish_reasons")
    }
    for key, value in first.items():
        if isinstance(value, float):
            assert second[key] == pytest.approx(value, rel=1e-12), key
