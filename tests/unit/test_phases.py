"""First wave, warm-up and drain stand beside the window and count for nothing in it."""

from __future__ import annotations

from loadgen.stats.level import level_object
from tests.level_records import normal, plan


def test_first_wave_warm_up_and_drain_are_told_apart() -> None:
    # Two users; the first request of each waits 400 ms, later ones 50 ms; each takes 90 ms more.
    records = []
    for user in range(2):
        sent_ms = float(user)
        for i in range(20):
            first_ms = 400 if i == 0 else 50
            records.append(normal(10, first_ms, 10, sent_ms=sent_ms, user=user, index=20 * user + i))
            sent_ms += first_ms + 90
    phases = level_object(plan(1000, 2000, concurrency=2, drained_ns=2_140_000_000), records, [])["phases"]
    assert phases["first_wave"] == {
        "requests": 2,
        "ok": 2,
        "p50_ttft_ms": 400.0,
        "p95_ttft_ms": 400.0,
        "p50_tpot_ms": 10.0,
        "p95_tpot_ms": 10.0,
        "p50_e2el_ms": 490.0,
        "p95_e2el_ms": 490.0,
        "in_window": 0,
    }
    # Sent at 0, 490, 630, 770, 910 ms before the window, and a millisecond later by the other user.
    assert (phases["warmup"]["requests"], phases["warmup"]["duration_s"]) == (10, 1.0)
    assert (phases["warmup"]["p50_ttft_ms"], phases["warmup"]["p95_ttft_ms"]) == (50.0, 400.0)
    assert (phases["drain"]["duration_s"], phases["drain"]["p50_ttft_ms"]) == (0.14, 50.0)
    assert phases["drain"]["requests"] == sum(
        one.sent_ns >= 2_000_000_000 for one in records if one.sent_ns is not None
    )


def test_without_a_warm_up_the_first_wave_is_in_the_window_and_is_said_to_be() -> None:
    records = [normal(10, 400, 10, sent_ms=float(user), user=user, index=user) for user in range(3)]
    phases = level_object(plan(0, 1000, concurrency=3), records, [])["phases"]
    assert (phases["first_wave"]["requests"], phases["first_wave"]["in_window"]) == (3, 3)
    assert (phases["warmup"]["requests"], phases["warmup"]["output_throughput"]) == (0, None)


def test_an_open_loop_has_no_first_wave_and_an_interrupted_level_no_drain() -> None:
    records = [normal(10, 40, 10, sent_ms=100.0 * i, scheduled_ms=100.0 * i, index=i) for i in range(10)]
    opened = plan(500, 800, concurrency=None, request_rate=10.0, drained_ns=None)
    phases = level_object(opened, records, [])["phases"]
    assert phases["first_wave"] is None
    assert (phases["drain"]["duration_s"], phases["drain"]["output_throughput"]) == (0.0, None)
    assert phases["warmup"]["requests"] == 5


def test_a_neighbouring_levels_requests_are_of_no_phase_of_this_one() -> None:
    before = [normal(10, 40, 10, sent_ms=100.0 * i, index=i, level=0) for i in range(5)]
    mine = [normal(10, 40, 10, sent_ms=500.0 + 100 * i, index=i, level=1) for i in range(10)]
    phases = level_object(plan(700, 1200, level=1), [*before, *mine], [])["phases"]
    assert phases["warmup"]["requests"] == 2
    assert phases["warmup"]["duration_s"] == 0.2


def test_a_level_without_requests_has_phases_without_figures() -> None:
    phases = level_object(plan(), [], [])["phases"]
    assert phases["first_wave"]["requests"] == 0
    assert phases["first_wave"]["p50_ttft_ms"] is None
