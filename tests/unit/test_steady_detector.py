"""When a level has settled: not before every user is through once, not while anything moves, and never never."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from loadgen.record import RequestRecord
from loadgen.stats.progress import BIN_NS, Progress
from loadgen.stats.steady import SettleDetector, mser5_truncation
from loadgen.virtual import closed_loop
from server.simulator.settings import SimulatorSettings
from tests.virtual_fleet import told

SECOND = 1_000_000_000


def level(concurrency: int, *, output_tokens: int = 64, seconds: int = 40, ramp_s: float = 0.0) -> list[RequestRecord]:
    return closed_loop(
        SimulatorSettings(),
        concurrency=concurrency,
        input_tokens=64,
        output_tokens=output_tokens,
        duration_ns=seconds * SECOND,
        start_ns=0,
        ramp_ns=round(ramp_s * SECOND),
    )


def first_settled(records: list[RequestRecord], users: int, *, workers: int = 1, all_there_s: float = 0.0) -> float:
    detector = SettleDetector(workers=workers, users=users, began_ns=0, all_there_ns=round(all_there_s * SECOND))
    until_ns = max(r.finished_ns for r in records)
    return next(
        now / SECOND for now, verdict in told(detector, records, workers=workers, until_ns=until_ns) if verdict.settled
    )


def report(tokens: list[float], *, first_bin: int = 0, requests: Sequence[tuple[int, float, float]] = ()) -> Progress:
    """`requests` are (user, dispatched, finished) in seconds; TTFT is 50 ms."""
    return Progress(
        first_bin=first_bin,
        tokens=tokens,
        user=[user for user, _, _ in requests],
        dispatched_ns=[round(begun * SECOND) for _, begun, _ in requests],
        finished_ns=[round(ended * SECOND) for _, _, ended in requests],
        ttft_ns=[50_000_000 for _ in requests],
    )


def each_second(users: int, seconds: int, begin: int = 0) -> list[tuple[int, float, float]]:
    return [(user, float(s), s + 1.0) for s in range(begin, seconds) for user in range(users)]


def test_the_start_up_is_found_and_left_out() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(100, 5, 400)
    values[:60] -= np.linspace(80, 0, 60)
    kept_from = mser5_truncation(values)
    assert kept_from is not None
    assert 30 <= kept_from <= 75


def test_a_series_without_a_start_up_is_kept_nearly_whole() -> None:
    rng = np.random.default_rng(6)
    lengths = [mser5_truncation(rng.normal(100, 20, 500)) for _ in range(50)]
    assert np.median([200 if kept_from is None else kept_from for kept_from in lengths]) <= 25


@pytest.mark.parametrize("n", [50, 100, 500])
def test_a_series_that_still_rises_has_no_end_of_its_start_up(n: int) -> None:
    assert mser5_truncation(np.linspace(1, 2, n)) is None


def test_too_few_observations_say_nothing_and_a_flat_series_says_settled() -> None:
    assert mser5_truncation(np.full(49, 7.0)) is None
    assert mser5_truncation(np.full(50, 7.0)) == 0
    assert mser5_truncation(np.zeros(60)) == 0


def test_an_approach_without_noise_ends_where_what_is_left_is_flat() -> None:
    values = 100 - 50 * np.exp(-np.arange(600) / 40)
    kept_from = mser5_truncation(values)
    assert kept_from is not None
    assert values[kept_from] > 90


@pytest.mark.parametrize("concurrency", [1, 4, 16, 24, 32])
@pytest.mark.parametrize("ramp_s", [0.0, 1.0])
def test_a_level_of_the_simulator_settles_within_seconds_also_in_lockstep(concurrency: int, ramp_s: float) -> None:
    records = level(concurrency, ramp_s=ramp_s)
    settled_s = first_settled(records, concurrency, all_there_s=ramp_s)
    e2e_s = np.mean([r.finished_ns - r.dispatched_ns for r in records if r.status == "ok"]) / SECOND
    assert settled_s - ramp_s >= max(5, 2 * e2e_s)
    assert settled_s - ramp_s <= max(8, 6 * e2e_s)


def test_it_does_not_matter_over_how_many_workers_the_users_are_spread() -> None:
    records = level(12, ramp_s=1.0)
    times = [first_settled(records, 12, workers=workers, all_there_s=1.0) for workers in (1, 2, 3)]
    assert max(times) - min(times) < 1.5


def test_nothing_has_settled_before_every_user_has_finished_a_request() -> None:
    detector = SettleDetector(workers=1, users=3, began_ns=0, all_there_ns=0)
    detector.update(0, report([10.0] * 100, requests=each_second(2, 10)))
    verdict = detector.settled(10 * SECOND)
    assert not verdict.settled
    assert verdict.reason == "2 of 3 users have finished a request"
    detector.update(0, report([10.0] * 3, first_bin=100, requests=[(2, 0, 10.2)]))
    assert detector.settled(round(10.3 * SECOND)).settled


def test_of_conversations_every_user_must_have_finished_one_as_long_as_most() -> None:
    detector = SettleDetector(workers=1, users=2, began_ns=0, all_there_ns=0, requests_each=8)
    detector.update(0, report([10.0] * 100, requests=[*each_second(1, 10), *((1, s, s + 1.0) for s in range(7))]))
    verdict = detector.settled(10 * SECOND)
    assert not verdict.settled
    assert verdict.reason == "1 of 2 users have finished 8 requests, a conversation's worth"
    detector.update(0, report([10.0] * 3, first_bin=100, requests=[(1, 9.0, 10.2)]))
    assert detector.settled(round(10.3 * SECOND)).settled


def test_requests_of_the_level_before_do_not_count() -> None:
    detector = SettleDetector(workers=1, users=1, began_ns=5 * SECOND, all_there_ns=6 * SECOND)
    detector.update(0, report([10.0] * 200, requests=[(0, 4.9, 10.0)]))
    assert detector.settled(20 * SECOND).reason == "0 of 1 users have finished a request"


def test_what_came_before_all_users_were_there_does_not_count() -> None:
    detector = SettleDetector(workers=1, users=1, began_ns=0, all_there_ns=10 * SECOND)
    detector.update(0, report([10.0] * 140, requests=each_second(1, 14)))
    assert detector.settled(14 * SECOND).reason == "the users have been there for 4.0 s"


def test_a_level_whose_throughput_still_rises_has_not_settled() -> None:
    detector = SettleDetector(workers=1, users=1, began_ns=0, all_there_ns=0)
    detector.update(0, report(np.linspace(50, 100, 200).tolist(), requests=each_second(1, 20)))
    assert detector.settled(20 * SECOND).reason == "throughput is still changing (MSER-5)"


def test_a_swing_within_the_generations_does_not_hide_a_change_between_them() -> None:
    # Each generation of 5 s is silent for a second in its middle; every one brings 8 % more than the one before.
    generation = np.r_[np.full(20, 10.0), np.zeros(10), np.full(20, 10.0)]
    tokens = np.concatenate([generation * 1.08**g for g in range(4)])
    assert mser5_truncation(tokens) is not None, "MSER-5 alone would call it settled"
    detector = SettleDetector(workers=1, users=1, began_ns=0, all_there_ns=0)
    detector.update(0, report(tokens.tolist(), requests=[(0, 5.0 * g, 5.0 * g + 5) for g in range(4)]))
    verdict = detector.settled(20 * SECOND)
    assert not verdict.settled
    assert verdict.reason == "throughput has risen by 15% within 20.0 s"


def test_a_level_that_does_not_settle_is_measured_in_the_end_and_says_so() -> None:
    detector = SettleDetector(workers=1, users=1, began_ns=0, all_there_ns=0, most_s=30)
    detector.update(0, report(np.linspace(50, 100, 300).tolist(), requests=each_second(1, 29)))
    assert not detector.settled(round(29.9 * SECOND)).measure
    verdict = detector.settled(30 * SECOND)
    assert (verdict.settled, verdict.measure, verdict.since_s) == (False, True, None)
    assert verdict.reason == "not settled after 30 s: throughput is still changing (MSER-5)"


def test_a_target_that_fails_every_request_is_not_waited_for() -> None:
    detector = SettleDetector(workers=1, users=2, began_ns=0, all_there_ns=0)
    failed = Progress(0, [0.0] * 60, [0, 1], [0, 0], [SECOND, SECOND], [None, None])
    detector.update(0, failed)
    verdict = detector.settled(6 * SECOND)
    assert verdict.settled
    assert verdict.reason == "every request so far has failed"
    assert detector.pace().completed_rate is None


def test_the_slowest_report_sets_the_horizon() -> None:
    detector = SettleDetector(workers=2, users=2, began_ns=0, all_there_ns=0)
    requests = [(0, float(s), s + 1.0) for s in range(10)]
    detector.update(0, report([10.0] * 100, requests=requests))
    assert detector.settled(10 * SECOND).reason == "the users have been there for 0.0 s"
    detector.update(1, report([10.0] * 40, requests=requests[:4]))
    assert detector.settled(10 * SECOND).reason == "the users have been there for 4.0 s"
    detector.update(1, report([10.0] * 60, first_bin=40, requests=requests[4:]))
    assert detector.settled(10 * SECOND).settled


def test_bins_that_are_told_again_count_once() -> None:
    detector = SettleDetector(workers=1, users=1, began_ns=0, all_there_ns=0)
    detector.update(0, report([10.0] * 60, requests=each_second(1, 6)))
    detector.update(0, report([10.0] * 60, first_bin=20, requests=each_second(1, 8, begin=6)))
    assert detector.settled(8 * SECOND).settled


def test_the_steady_part_begins_where_the_start_up_ends() -> None:
    detector = SettleDetector(workers=1, users=1, began_ns=0, all_there_ns=SECOND)
    tokens = [0.0] * 10 + [2.0] * 30 + [10.0] * 160
    detector.update(0, report(tokens, requests=each_second(1, 20)))
    verdict = detector.settled(20 * SECOND)
    assert verdict.settled
    assert verdict.since_s == pytest.approx(3.0)


def test_the_pace_is_that_of_the_steady_part() -> None:
    detector = SettleDetector(workers=1, users=2, began_ns=0, all_there_ns=0)
    detector.update(0, report([10.0] * 120, requests=each_second(2, 12)))
    pace = detector.pace()
    assert pace.completed_rate == pytest.approx(2, rel=0.1)
    assert pace.e2e_p95_s == pytest.approx(1.0)


def test_every_users_first_request_bounds_the_length_from_below() -> None:
    # One user in four has long requests; most of what has finished is short.
    detector = SettleDetector(workers=1, users=4, began_ns=0, all_there_ns=0)
    requests = [*each_second(3, 30), (3, 0.0, 30.0)]
    detector.update(0, report([10.0] * 300, requests=requests))
    assert detector.pace().e2e_p95_s == pytest.approx(30.0)


def test_without_a_report_there_is_no_pace() -> None:
    pace = SettleDetector(workers=1, users=4, began_ns=0, all_there_ns=BIN_NS).pace()
    assert (pace.completed_rate, pace.e2e_p95_s, pace.n) == (None, None, 0)


def test_two_generations_must_have_been_steady() -> None:
    detector = SettleDetector(workers=1, users=1, began_ns=0, all_there_ns=0)
    detector.update(0, report([10.0] * 190, requests=[(0, 0.0, 10.0)]))
    assert detector.settled(19 * SECOND).reason.startswith("steady for 19.0 s of the 20.0 s")
    detector.update(0, report([10.0] * 10, first_bin=190))
    assert detector.settled(20 * SECOND).settled


def test_a_level_whose_ttft_still_grows_has_not_settled() -> None:
    requests = [(user, s, s + 1.0) for s in range(20) for user in range(4)]
    told_so_far = report([10.0] * 200, requests=requests)
    growing = replace(told_so_far, ttft_ns=[round(finished * 0.05) for finished in told_so_far.finished_ns])
    detector = SettleDetector(workers=1, users=4, began_ns=0, all_there_ns=0)
    detector.update(0, growing)
    assert detector.settled(20 * SECOND).reason == "TTFT is still changing (MSER-5)"


def test_the_pace_falls_back_to_everything_where_nothing_ended_lately() -> None:
    detector = SettleDetector(workers=1, users=1, began_ns=0, all_there_ns=0)
    detector.update(0, report(np.linspace(50, 100, 200).tolist(), requests=each_second(1, 3)))
    pace = detector.pace()
    assert (pace.n, pace.completed_rate) == (3, pytest.approx(3 / 20))
