"""Judgement against the simulator's arithmetic: capacity, knee and recommendation are those that its settings imply."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from loadgen.arrivals.schedule import Schedule
from loadgen.judgement import limits
from loadgen.record import LevelPlan
from loadgen.scenario.load import load_scenario
from loadgen.stats.answers import answers
from loadgen.stats.capacity import capacities
from loadgen.stats.level import level_object
from loadgen.virtual import closed_loop, open_loop
from server.simulator.capacity import LoadShape, capacity, running_limit, steady_state
from server.simulator.settings import SimulatorSettings

SECOND = 1_000_000_000
SHAPE = LoadShape(input_tokens=64, output_tokens=32)


def of_users(
    users: int,
    settings: SimulatorSettings,
    *,
    slo: dict[str, float],
    number: int = 0,
    phase: int = 0,
    shape: LoadShape = SHAPE,
    drain_s: int = 1,
) -> dict[str, Any]:
    """A closed loop of 12 s after 5 s; `phase` changes when each user begins."""
    records = closed_loop(
        settings,
        concurrency=users,
        input_tokens=shape.input_tokens,
        output_tokens=shape.output_tokens,
        duration_ns=(18 + drain_s) * SECOND,
        start_ns=SECOND,
        ramp_ns=2 * SECOND + phase * 77_000_000,
        level=number,
    )
    plan = LevelPlan(
        number,
        users,
        6 * SECOND,
        18 * SECOND,
        server={"max_num_seqs": settings.max_num_seqs},
        drained_ns=(19 + drain_s) * SECOND,
    )
    return level_object(plan, records, [], slo=slo)


@pytest.mark.parametrize("users", [8, 20])
def test_the_most_users_within_a_token_time_are_found_in_9_of_10_seeds(users: int) -> None:
    per_token_s = [steady_state(SimulatorSettings(max_num_seqs=64), SHAPE, users + more).tpot_s for more in (0, 1)]
    limit_ms = 500 * sum(one or 0.0 for one in per_token_s)
    truth = capacity(SimulatorSettings(max_num_seqs=64), SHAPE, tpot_s=limit_ms / 1000).slo
    assert truth is not None
    assert truth.concurrency == users
    found = []
    for seed in range(10):
        settings = SimulatorSettings(max_num_seqs=64, step_noise=0.1, seed=seed)
        levels = [
            of_users(users + more, settings, slo={"tpot_p50": limit_ms}, number=number, phase=seed)
            for number, more in enumerate((-1, 0, 1, 2))
        ]
        found += capacities(levels)
    near = [one for one in found if one["estimate"] and math.isclose(one["estimate"], users + 0.5, rel_tol=0.05)]
    inside = [one for one in found if (one["interval"][0] or 0) <= users < (one["interval"][1] or math.inf)]
    assert len(near) >= 9, found
    assert len(inside) >= 9, found


ARRIVALS = SimulatorSettings(
    max_num_seqs=4, step_overhead_ms=20, decode_base_ms=4, decode_time_per_seq_ms=2, prefill_time_per_token_ms=0.2
)
TTFT_MS = 200.0


def of_arrivals(
    rate: float,
    *,
    seed: int,
    window_s: int = 100,
    number: int = 0,
    burstiness: float = 4.0,
    settings: SimulatorSettings = ARRIVALS,
    input_tokens: int = 16,
    output_tokens: int = 8,
    slo: dict[str, float] | None = None,
) -> dict[str, Any]:
    """An open loop after 15 s, with 8 s of drain."""
    schedule = Schedule("gamma", burstiness, (0.0,), (rate,), seed=seed, level=number)
    records = open_loop(
        settings,
        offsets_s=schedule.arrivals().offsets(),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        duration_ns=(15 + window_s + 8) * SECOND,
        start_ns=SECOND,
        level=number,
    )
    begin_ns = 16 * SECOND
    plan = LevelPlan(
        number,
        None,
        begin_ns,
        begin_ns + window_s * SECOND,
        server={"max_num_seqs": settings.max_num_seqs},
        request_rate=rate,
        arrivals=schedule.to_dict(),
        arrivals_start_ns=SECOND,
        drained_ns=begin_ns + (window_s + 8) * SECOND,
    )
    return level_object(plan, records, [], slo=slo or {"ttft_p95": TTFT_MS})


@cache
def long_run(rate: float) -> dict[str, Any]:
    """The figures of a thousand seconds: no closed form is known of them."""
    return of_arrivals(rate, seed=1000, window_s=1000)


def true_rate() -> float:
    """Where TTFT P95 passes the limit, from long runs on either side of it."""
    below, above = (long_run(rate)["p95_ttft_from_schedule_ms"] for rate in RATES[1:3])
    assert below < TTFT_MS < above
    return float(RATES[1] * (RATES[2] / RATES[1]) ** (math.log(TTFT_MS / below) / math.log(above / below)))


RATES = [11.7, 12.9, 13.545, 14.222, 14.933]


@cache
def rising(seed: int) -> list[dict[str, Any]]:
    """Levels at rising rates, up to the first that misses the SLO."""
    levels: list[dict[str, Any]] = []
    for number, rate in enumerate(RATES):
        levels.append(of_arrivals(rate, seed=seed, number=number))
        if levels[-1]["slo"]["ttft_p95"]["holds"] is False:
            break
    return levels


def test_the_highest_rate_of_arrivals_is_found_within_5_percent_and_its_interval_in_9_of_10_seeds() -> None:
    near = inside = bounded = 0
    for seed in range(10):
        (found,) = capacities(rising(seed))
        low, high = found["interval"]
        near += found["estimate"] is not None and math.isclose(found["estimate"], true_rate(), rel_tol=0.05)
        inside += (low is None or low <= true_rate()) and (high is None or true_rate() <= high)
        bounded += low is not None and high is not None
    assert near >= 9
    assert inside >= 9
    assert bounded >= 9


@pytest.mark.parametrize("field", ["p50_ttft_from_schedule_ms", "p95_ttft_from_schedule_ms", "p95_tpot_ms"])
def test_intervals_of_a_queue_hold_the_long_runs_figure_in_9_of_10_seeds(field: str) -> None:
    truth = long_run(RATES[1])[field]
    bounds = [rising(seed)[1]["intervals"].get(field, (-math.inf, math.inf)) for seed in range(10)]
    assert sum(low <= truth <= high for low, high in bounds) >= 9


def test_the_knee_of_a_sweep_is_where_all_places_are_taken() -> None:
    settings = SimulatorSettings(max_num_seqs=16)
    levels = [of_users(users, settings, slo={}, number=n) for n, users in enumerate((1, 2, 4, 8, 16, 24, 32))]
    (entry,) = answers(levels)["knee"]
    assert (entry["concurrency"], entry["interval"]) == (16, [8, 24])
    assert entry["output_throughput"] == pytest.approx(steady_state(settings, SHAPE, 16).output_throughput, rel=0.03)


@pytest.mark.parametrize("blocks", [200, 400])
def test_the_knee_of_a_full_kv_cache_lies_in_its_interval(blocks: int) -> None:
    """More users than the cache has room for preempt each other; throughput then even falls a little."""
    settings = SimulatorSettings(max_num_seqs=128, num_gpu_blocks_override=blocks, max_model_len=512)
    shape = LoadShape(input_tokens=256, output_tokens=32)
    levels = [
        of_users(users, settings, slo={}, number=n, shape=shape, drain_s=8)
        for n, users in enumerate((2, 4, 8, 16, 32, 64))
    ]
    (entry,) = answers(levels)["knee"]
    low, high = entry["interval"]
    assert low <= running_limit(settings, shape) <= high


def test_the_recommended_max_num_seqs_is_the_computed_one_and_ties_go_to_the_smaller() -> None:
    """Beyond 16 sequences tokens come too slowly; with 8 places requests wait, with 16 or 64 they do not."""
    slo = {"ttft_p95": 300.0, "tpot_p95": 24.0}
    levels = [
        of_users(users, SimulatorSettings(max_num_seqs=places), slo=slo, number=10 * place + n)
        for place, places in enumerate((8, 16, 64))
        for n, users in enumerate((4, 8, 12, 16, 20, 24))
    ]
    told = answers(levels)["recommended"]
    assert told["server"] == {"max_num_seqs": 16}, told["text"]
    assert re.search(r"max_num_seqs 64 \([+-]\d\.\d%\) cannot be told from it", told["text"])
    eight, sixteen, _ = told["by_server"]
    lost = steady_state(SimulatorSettings(max_num_seqs=8), SHAPE, 8).request_throughput
    most = steady_state(SimulatorSettings(max_num_seqs=16), SHAPE, 16).request_throughput
    assert eight["difference"] == pytest.approx(lost / most - 1, abs=0.05)
    assert sixteen["difference"] == 0


def test_arrivals_at_the_closed_loops_rate_stand_beside_it_with_the_reason() -> None:
    settings = SimulatorSettings(max_num_seqs=32)
    slo = {"ttft_p95": 80.0, "tpot_p95": 30.0}
    closed = [of_users(users, settings, slo=slo, number=n) for n, users in enumerate((8, 16))]
    rate = closed[1]["request_throughput"]
    opened = of_arrivals(
        rate,
        seed=7,
        window_s=30,
        number=9,
        burstiness=1.0,
        settings=settings,
        input_tokens=64,
        output_tokens=32,
        slo=slo,
    )
    (entry,) = answers([*closed, opened])["confirmation"]
    assert entry["closed"]["level"] == 1
    assert entry["open"]["ttft_p95"] > entry["closed"]["ttft_p95"]
    assert "Arrivals come in bunches" in entry["text"]


def test_the_scenario_recommends_the_max_num_seqs_that_its_settings_imply() -> None:
    scenario = load_scenario(Path("scenarios/max-num-seqs.yaml"))
    slo = limits(scenario)
    shape = LoadShape(input_tokens=64, output_tokens=64)
    loads = sorted({level.concurrency for level in scenario.levels() if level.concurrency is not None})
    levels, best = [], {}
    for number, level in enumerate(scenario.levels()):
        assert level.concurrency is not None
        settings = SimulatorSettings(**level.server)
        levels.append(of_users(level.concurrency, settings, slo=slo, number=number, shape=shape, drain_s=8))
        within = capacity(settings, shape, ttft_s=slo["ttft_p95"] / 1e3, tpot_s=slo["tpot_p95"] / 1e3).slo
        assert within is not None
        measured = max(load for load in loads if load <= within.concurrency)
        best[settings.max_num_seqs] = steady_state(settings, shape, measured).request_throughput
    most = max(best.values())
    implied = min(seqs for seqs, rate in best.items() if rate > 0.99 * most)
    told = answers(levels)["recommended"]
    assert told["server"] == {"max_num_seqs": implied}
    assert [one["tied"] for one in told["by_server"]] == [rate > 0.99 * most for rate in best.values()]
