"""Open loops in virtual time: below capacity everything is served, above it the level says that it is saturated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadgen.arrivals.schedule import Schedule
from loadgen.record import LevelPlan
from loadgen.stats.answers import answers
from loadgen.stats.level import level_object
from loadgen.virtual import closed_loop, open_loop
from server.simulator.settings import SimulatorSettings
from tests.level_records import health

SECOND = 1_000_000_000
START_NS = SECOND
SETTINGS = SimulatorSettings()
INPUT, OUTPUT = 64, 32
# What sixteen users get out of it, all places taken: the most that it completes.
CAPACITY = level_object(
    LevelPlan(0, 16, 11 * SECOND, 31 * SECOND),
    closed_loop(SETTINGS, concurrency=16, input_tokens=INPUT, output_tokens=OUTPUT, duration_ns=31 * SECOND),
    [],
)["completed_request_rate"]


def steady(rate: float, pattern: Any = "poisson", burstiness: float = 1.0, *, seed: int = 7) -> Schedule:
    return Schedule(pattern, burstiness, (0.0,), (rate,), seed=seed, level=0)


def measured(
    schedule: Schedule,
    *,
    window_s: float = 30,
    drain_s: float = 15,
    max_in_flight: int | None = None,
    slo: dict[str, float] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """The level object of a window after ten seconds of warm-up, from the records of a perfect client."""
    records = open_loop(
        SETTINGS,
        offsets_s=schedule.arrivals().offsets(),
        input_tokens=INPUT,
        output_tokens=OUTPUT,
        duration_ns=round((10 + window_s + drain_s) * SECOND),
        max_in_flight=max_in_flight,
    )
    return level_object(plan(schedule, window_s, max_in_flight, **changes), records, [health(dropped=0)], slo=slo)


def plan(schedule: Schedule, window_s: float, max_in_flight: int | None = None, **changes: Any) -> LevelPlan:
    begin_ns = START_NS + 10 * SECOND
    made = LevelPlan(
        level=0,
        concurrency=None,
        window_start_ns=begin_ns,
        window_end_ns=begin_ns + round(window_s * SECOND),
        drained_ns=begin_ns + round((window_s + 1) * SECOND),
        request_rate=schedule.asked_rate(),
        arrivals=schedule.to_dict(),
        arrivals_start_ns=START_NS,
        max_in_flight=max_in_flight,
        overflow=None if max_in_flight is None else "queue",
    )
    return replace(made, **changes)


def rules(level: dict[str, Any]) -> set[str]:
    return {found["rule"] for found in (*level["reasons"], *level["warnings"])}


def test_the_capacity_is_what_the_settings_imply() -> None:
    # 31 decode steps of 1.6 + 16 · 0.4 + 8 ms for sixteen requests, and a prefill of each.
    assert 18 < CAPACITY < 26


@pytest.mark.parametrize(
    ("pattern", "burstiness"), [("poisson", 1.0), ("constant", 1.0), ("gamma", 0.5), ("gamma", 4.0)]
)
def test_at_half_of_the_capacity_all_three_rates_agree_and_the_level_is_valid(pattern: str, burstiness: float) -> None:
    level = measured(steady(CAPACITY / 2, pattern, burstiness))
    assert level["valid"] and not rules(level) - {"drifting"}
    assert level["offered_request_rate"] == pytest.approx(CAPACITY / 2, rel=0.15)
    assert level["sent_request_rate"] == pytest.approx(level["offered_request_rate"], rel=0.02)
    assert level["completed_request_rate"] == pytest.approx(level["offered_request_rate"], rel=0.05)
    assert not level["open_loop"]["saturated"]
    # A perfect client sends on time: both views are one.
    assert level["p95_ttft_from_schedule_ms"] == level["p95_ttft_ms"]
    assert level["concurrency"] is None and level["users_seen"] is None
    # Little's law over the window.
    in_flight = level["sent_request_rate"] * level["mean_e2el_ms"] / 1000
    assert level["achieved_concurrency"] == pytest.approx(in_flight, rel=0.1)


def test_above_the_capacity_the_level_is_saturated_not_invalid() -> None:
    level = measured(steady(1.5 * CAPACITY), drain_s=40, slo={"e2el_p95": 1e9})
    assert level["valid"], level["reasons"]
    assert rules(level) == {"saturated"}
    assert level["completed_request_rate"] == pytest.approx(CAPACITY, rel=0.1)
    assert level["offered_request_rate"] > 1.3 * level["completed_request_rate"]
    seen = level["open_loop"]
    grown = (level["offered_request_rate"] - level["completed_request_rate"]) * level["window_s"]
    assert seen["under_way_at_end"] - seen["under_way_at_start"] == pytest.approx(grown, abs=5)
    evidence = level["warnings"][0]["evidence"]
    assert f"from {seen['under_way_at_start']} to {seen['under_way_at_end']}" in evidence


def test_a_saturated_level_keeps_no_limit_however_wide() -> None:
    levels = [
        measured(steady(rate), slo={"ttft_p95": 1e9}, drain_s=40) | {"level": number}
        for number, rate in enumerate((CAPACITY / 2, 1.5 * CAPACITY))
    ]
    within = answers(levels)["highest_within_slo"]
    assert within["level"] == 0 and within["request_rate"] == pytest.approx(CAPACITY / 2)
    assert "saturated" in within["text"] and "requests/s" in within["text"]


@pytest.mark.parametrize("seed", range(12))
def test_a_loaded_but_stable_server_is_not_called_saturated(seed: int) -> None:
    level = measured(steady(0.8 * CAPACITY, seed=seed))
    assert not level["open_loop"]["saturated"], level["open_loop"]


def test_t17_the_wait_for_a_place_counts_from_the_schedule_and_not_against_the_client() -> None:
    # 10 prompt and 50 output tokens take 10 + 49 · 10 ms: eight arrivals, 100 ms apart, one in flight.
    records = open_loop(
        SETTINGS,
        offsets_s=[k / 10 for k in range(8)],
        input_tokens=10,
        output_tokens=50,
        duration_ns=10 * SECOND,
        max_in_flight=1,
    )
    eight = Schedule("constant", 1.0, (0.0, 0.8, 0.8), (10.0, 10.0, 0.0), seed=7, level=0)
    window = {"window_start_ns": START_NS, "window_end_ns": START_NS + 8 * SECOND // 10}
    level = level_object(plan(eight, 0.8, 1, **window), records, [health(dropped=0)])
    seen = level["open_loop"]
    assert (seen["mean_dispatch_delay_ms"], seen["max_dispatch_delay_ms"]) == (1400, 2800)
    assert (seen["mean_cap_wait_ms"], seen["max_cap_wait_ms"]) == (1400, 2800)
    assert level["client"]["send_lag_max_ms"] == 0 and seen["late"] == 0
    assert level["p50_e2el_ms"] == level["max_e2el_ms"] == 500
    assert (level["mean_e2el_from_schedule_ms"], level["max_e2el_from_schedule_ms"]) == (1900, 3300)
    assert level["p50_e2el_from_schedule_ms"] == 1700
    assert level["offered_request_rate"] == pytest.approx(10)
    assert level["sent_request_rate"] == pytest.approx(2 / 0.8)
    assert "rate_not_reached" in rules(level)
    evidence = next(found["evidence"] for found in level["reasons"] if found["rule"] == "rate_not_reached")
    assert "7 waited" in evidence and "at most 1 requests" in evidence


def test_a_cap_that_holds_a_few_back_is_told_and_does_not_spoil_the_level() -> None:
    level = measured(steady(CAPACITY / 2, "gamma", 0.5), max_in_flight=10)
    assert level["valid"] and "cap_reached" in rules(level)
    assert level["peak_concurrency"] == 10
    assert level["p95_e2el_from_schedule_ms"] > level["p95_e2el_ms"]


def test_arrivals_that_never_had_a_place_are_censored_and_offered() -> None:
    level = measured(steady(1.5 * CAPACITY), drain_s=1, max_in_flight=8)
    assert level["requests"]["censored"] > 100
    assert sum(level["requests"].values()) == level["open_loop"]["offered"]
    assert level["sent_request_rate"] < 0.9 * level["offered_request_rate"]
    assert not level["valid"] and "rate_not_reached" in rules(level)


def test_dropped_arrivals_are_offered_and_in_no_latency() -> None:
    schedule = steady(CAPACITY / 2, "constant")
    every = list(zip(range(2000), schedule.arrivals().offsets(), strict=False))
    records = open_loop(
        SETTINGS,
        offsets_s=[offset for k, offset in every if k % 10],
        input_tokens=INPUT,
        output_tokens=OUTPUT,
        duration_ns=60 * SECOND,
    )
    begin_s, end_s = 10.0, 40.0
    dropped = sum(begin_s <= offset < end_s for k, offset in every if not k % 10)
    level = level_object(plan(schedule, 30, 16, overflow="drop"), records, [health(dropped=dropped)])
    assert level["open_loop"]["dropped"] == dropped > 10
    assert level["open_loop"]["offered"] == dropped + sum(level["requests"].values())
    assert "rate_not_reached" in rules(level), "a tenth of what was asked for was not sent"
    assert level["n_ttft_from_schedule"] == level["requests"]["ok"]


def test_a_load_that_is_meant_to_change_is_neither_drifting_nor_saturated() -> None:
    ramp = Schedule("poisson", 1.0, (0.0, 40.0), (1.0, 1.4 * CAPACITY), seed=7, level=0)
    level = measured(ramp, drain_s=40)
    assert not rules(level) & {"drifting", "saturated"}
    assert level["request_rate"] == pytest.approx((1 + 1.4 * CAPACITY) / 2)


def test_the_limits_of_an_open_loop_count_from_the_schedule() -> None:
    level = measured(steady(CAPACITY / 2, "gamma", 0.3), max_in_flight=6, slo={"ttft_p95": 60.0})
    one = level["slo"]["ttft_p95"]
    assert one["value"] == level["p95_ttft_from_schedule_ms"] > level["p95_ttft_ms"]
    assert level["open_loop"]["waited"]
