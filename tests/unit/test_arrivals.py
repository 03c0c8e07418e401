"""Arrival processes against what their names promise: rate, gaps, shares of workers, courses, bursts, traces."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadgen.arrivals.gaps import gaps_of
from loadgen.arrivals.processes import BurstArrivals, ReplayedArrivals
from loadgen.arrivals.rate import Rate
from loadgen.arrivals.rate_file import read_rate
from loadgen.arrivals.schedule import Schedule
from loadgen.arrivals.think_time import ThinkTime
from loadgen.errors import UsageError

POISSON = Schedule("poisson", 1.0, (0.0,), (50.0,), seed=7, level=3)
CONSTANT = replace(POISSON, pattern="constant")
CLUMPED = replace(POISSON, pattern="gamma", burstiness=0.5)
REGULAR = replace(POISSON, pattern="gamma", burstiness=4.0)
PATTERNS = [POISSON, CONSTANT, CLUMPED, REGULAR]
MANY = 100_000


def first(schedule: Schedule, n: int) -> np.ndarray:
    return np.fromiter(itertools.islice(schedule.arrivals().offsets(), n), np.float64, n)


@pytest.mark.parametrize("schedule", PATTERNS, ids=lambda s: f"{s.pattern}-{s.burstiness:g}")
def test_the_offered_rate_is_right_within_one_percent(schedule: Schedule) -> None:
    assert schedule.count_between(0, MANY / 50) == pytest.approx(MANY, rel=0.01)
    assert np.all(np.diff(first(schedule, MANY)) >= 0)


@pytest.mark.parametrize(
    ("schedule", "variation"), [(POISSON, 1.0), (CONSTANT, 0.0), (CLUMPED, math.sqrt(2)), (REGULAR, 0.5)]
)
def test_gaps_vary_as_the_burstiness_says(schedule: Schedule, variation: float) -> None:
    gaps = np.diff(first(schedule, MANY))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.01)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.02, abs=1e-9)
    assert schedule.gap_variation == pytest.approx(variation)
    # Independent of each other: no gap tells of the next one.
    if variation:
        assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 4 / math.sqrt(MANY)


@pytest.mark.parametrize(
    ("schedule", "cumulative"),
    [
        (POISSON, lambda x: 1 - np.exp(-x)),
        # Gamma of shape 1/2 is a squared normal's half, of shape 4 the fourth arrival of a Poisson process.
        (CLUMPED, lambda x: np.vectorize(math.erf)(np.sqrt(x / 2))),
        (REGULAR, lambda x: 1 - np.exp(-4 * x) * (1 + 4 * x + (4 * x) ** 2 / 2 + (4 * x) ** 3 / 6)),
    ],
    ids=["poisson", "gamma-0.5", "gamma-4"],
)
def test_gaps_have_their_distribution_by_kolmogorov_and_smirnov(
    schedule: Schedule, cumulative: Callable[[np.ndarray], np.ndarray]
) -> None:
    n = 20_000
    expected = cumulative(np.sort(np.diff(first(schedule, n + 1)) * 50))
    distance = max(np.max(np.arange(1, n + 1) / n - expected), np.max(expected - np.arange(n) / n))
    assert distance < 1.63 / math.sqrt(n)  # the 1 % point
    # A test that could not tell an exponential from a regular process would say nothing.
    other = CONSTANT if schedule is POISSON else POISSON
    wrong = cumulative(np.sort(np.diff(first(other, n + 1)) * 50))
    assert max(np.max(np.arange(1, n + 1) / n - wrong), np.max(wrong - np.arange(n) / n)) > 5 * 1.63 / math.sqrt(n)


def test_counts_of_a_poisson_process_scatter_as_their_mean() -> None:
    counts = np.histogram(first(POISSON, MANY), bins=np.arange(0, 1900))[0]
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("schedule", [*PATTERNS, replace(POISSON, burst_size=7, burst_period_s=1.5)])
@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_makes_the_same_process(schedule: Schedule, workers: int) -> None:
    shares = [list(itertools.islice(schedule.share(w, workers), 2000)) for w in range(workers)]
    together = [offset for round_ in zip(*shares, strict=True) for offset in round_]
    assert together == first(schedule, 2000 * workers).tolist()


@pytest.mark.parametrize("schedule", PATTERNS, ids=lambda s: f"{s.pattern}-{s.burstiness:g}")
def test_no_two_workers_are_in_step(schedule: Schedule) -> None:
    shares = [np.array(list(itertools.islice(schedule.share(w, 3), 3000))) for w in range(3)]
    for one, other in itertools.combinations(shares, 2):
        apart = np.abs(one[:, None] - other[None, :]).min(axis=1)
        assert not (apart == 0).any()
        # In step they would be together nearly always: within a twentieth of a mean gap it is chance alone.
        assert np.mean(apart < 0.05 / 50) < 0.2


def test_a_schedule_is_a_function_of_seed_and_level_and_the_same_with_any_numpy() -> None:
    assert first(POISSON, 100).tolist() == first(replace(POISSON), 100).tolist()
    for other in (replace(POISSON, seed=8), replace(POISSON, level=4)):
        assert not set(first(other, 100)) & set(first(POISSON, 100))
    assert first(POISSON, 3) == pytest.approx(FROZEN_POISSON, abs=1e-9)
    assert first(CLUMPED, 3) == pytest.approx(FROZEN_CLUMPED, abs=1e-9)


FROZEN_POISSON = [0.038924834802, 0.142327006016, 0.174742589268]
FROZEN_CLUMPED = [0.050764350941, 0.087922001524, 0.10208031688]


def test_a_schedule_survives_json() -> None:
    course = replace(POISSON, times_s=(0.0, 5.0), rates=(1.0, 9.5), burst_size=3, burst_period_s=2.0)
    assert Schedule.from_dict(json.loads(json.dumps(course.to_dict()))) == course


def test_a_ramp_has_as_many_requests_as_the_area_under_it() -> None:
    ramp = replace(CONSTANT, times_s=(0.0, 10.0, 20.0, 20.0, 30.0), rates=(0.0, 10.0, 10.0, 2.0, 2.0))
    assert [ramp.count_between(s, s + 10) for s in (0, 10, 20, 30, 1000)] == [50, 100, 20, 20, 20]
    assert ramp.count_between(0, 5) in (12, 13)  # a quarter of the ramp's fifty
    assert ramp.asked_rate() == pytest.approx(170 / 30)
    assert not ramp.stationary and ramp.length_s == 30


def test_a_changing_poisson_process_keeps_its_rate_in_every_part() -> None:
    ramp = replace(POISSON, times_s=(0.0, 100.0), rates=(0.0, 200.0))
    for start in range(0, 100, 20):
        expected = ramp.rate.mean(start, start + 20) * 20
        assert ramp.count_between(start, start + 20) == pytest.approx(expected, abs=4 * math.sqrt(expected))


def test_a_rate_that_falls_to_zero_ends_the_schedule() -> None:
    ended = replace(CONSTANT, times_s=(0.0, 0.8, 0.8), rates=(10.0, 10.0, 0.0))
    assert list(ended.arrivals().offsets()) == pytest.approx([0.05 + k / 10 for k in range(8)])


def test_a_pause_sends_nothing_and_is_no_end() -> None:
    paused = replace(CONSTANT, times_s=(0.0, 1.0, 1.0, 5.0, 5.0), rates=(4.0, 4.0, 0.0, 0.0, 4.0))
    assert [paused.count_between(s, s + 1) for s in range(7)] == [4, 0, 0, 0, 0, 4, 4]


@pytest.mark.parametrize(
    ("times", "rates"), [((), ()), ((1.0,), (2.0,)), ((0.0, 2.0, 1.0), (1, 1, 1)), ((0.0,), (-1,))]
)
def test_a_rate_that_makes_no_sense_is_refused(times: tuple[float, ...], rates: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rate"):
        Rate(times, rates)


def test_bursts_come_all_at_once_and_beside_the_base_rate() -> None:
    assert list(itertools.islice(BurstArrivals(3, 2.0).offsets(), 7)) == [2, 2, 2, 4, 4, 4, 6]
    both = replace(CONSTANT, rates=(10.0,), burst_size=20, burst_period_s=5.0)
    assert both.count_between(0, 20.5) == 205 + 4 * 20
    assert [both.count_between(4.99, 5.01), both.count_between(9.99, 10.01)] == [20, 20]
    assert not both.stationary


def test_a_trace_is_replayed_from_its_first_instant_and_faster() -> None:
    assert list(ReplayedArrivals([100.0, 100.5, 103.0], speed=2).offsets()) == [0, 0.25, 1.5]
    replayed = replace(POISSON, timestamps_s=(5.0, 6.0, 9.0))
    assert list(replayed.share(1, 2)) == [1.0] and replayed.length_s == 4.0


def test_a_trace_out_of_order_is_refused_with_its_entry() -> None:
    with pytest.raises(ValueError, match="entry 3 of the trace is at 1 s"):
        list(ReplayedArrivals(iter([0.0, 2.0, 1.0])).offsets())


def test_a_rate_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    path.write_text("time,rate\n3600,1\n7200,5.5\n\n10800,2\n")
    assert read_rate(path) == Rate((0.0, 3600.0, 7200.0), (1.0, 5.5, 2.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1\n5\n", r"day.csv:2: '5' is not a time and a rate"),
        ("0,1\n5,x\n", r"day.csv:2: '5,x' is not a time and a rate"),
        ("t,r\n0,1\n5,-1\n", r"day.csv:3: the rate -1 is negative"),
        ("0,1\n5,1\n4,1\n", r"day.csv:3: the time 4 s lies before 5 s"),
        ("0,nan\n", r"day.csv:1: '0,nan' is not a time and a rate"),
        ("", "asks for no request"),
        ("0,0\n1,0\n", "asks for no request"),
    ],
)
def test_a_malformed_rate_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "day.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_rate(path)


def test_a_rate_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_rate(tmp_path / "none.csv")


def test_think_times_are_fixed_or_exponential() -> None:
    rng = random.Random(1)
    assert ThinkTime(2.0).next_s(rng) == 2.0
    drawn = [ThinkTime(2.0, "exponential").next_s(rng) for _ in range(20_000)]
    assert np.mean(drawn) == pytest.approx(2, rel=0.03) and np.std(drawn) == pytest.approx(2, rel=0.05)


def test_burstiness_counts_for_gamma_alone() -> None:
    one, other = (next(gaps_of("poisson", burstiness, seed=1, level=0).blocks()) for burstiness in (0.2, 5.0))
    assert one.tolist() == other.tolist()
