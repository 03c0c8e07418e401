"""Whether a finished window was stationary: what is judged, what is not, and what is said of it."""

import random

import orjson
import pytest

from loadgen.record import RequestRecord
from loadgen.stats.stationarity import FIGURES, stationarity
from tests.level_records import closed_loop, normal, plan, request


def slowing(users: int, requests_each: int, *, growth: float = 0.0) -> list[RequestRecord]:
    """Lockstep users; request i takes 1 + growth · i times as long as the first, all of it."""
    records, begin_ms = [], 0.0
    for i in range(requests_each):
        scale = 1 + growth * i
        records += [normal(5, 50 * scale, 10 * scale, sent_ms=begin_ms, user=user) for user in range(users)]
        begin_ms += 90 * scale
    return records


def test_nothing_measured_is_not_judged() -> None:
    for records in ([], [request(10, status="connect")], [normal(5, 50, 10, sent_ms=5000)]):
        found = stationarity(plan(0, 1000), records)
        assert (found["judged"], found["drifting"], found["figure"]) == (False, False, None)
        assert (found["drift_per_window"], found["p_value"]) == (None, None)


@pytest.mark.parametrize("generations", [1, 2])
def test_a_window_below_three_generations_is_not_judged_even_when_it_drifts(generations: int) -> None:
    found = stationarity(plan(0, 90 * generations * 1.3), slowing(8, 6, growth=0.5))
    assert found["generations"] < 3
    assert (found["judged"], found["drifting"]) == (False, False)


def test_lockstep_users_do_not_drift() -> None:
    found = stationarity(plan(0, 90 * 9), closed_loop(7, 12))
    assert (found["judged"], found["drifting"]) == (True, False)
    assert found["generations"] == pytest.approx(9)
    for figure in FIGURES:
        assert found["figures"][figure] == {"drift_per_window": pytest.approx(0), "p_value": 1.0}, figure


def test_a_window_a_moment_short_of_its_third_generation_is_judged() -> None:
    assert stationarity(plan(0, 90 * 3 - 1), closed_loop(7, 12))["judged"]


def test_requests_that_take_longer_and_longer_are_a_drift() -> None:
    records = slowing(6, 40, growth=0.01)
    found = stationarity(plan(0, 3500), records)
    assert (found["judged"], found["drifting"]) == (True, True)
    assert found["p_value"] < 0.001
    figures = found["figures"]
    assert figures["achieved_concurrency"]["drift_per_window"] == pytest.approx(0)
    assert figures["output_throughput"]["drift_per_window"] < -0.2
    # From 1.00 to 1.31 over the window.
    assert figures["ttft"]["drift_per_window"] == pytest.approx(0.31 / 1.15, rel=0.1)
    assert figures["tpot"]["drift_per_window"] == pytest.approx(0.31 / 1.15, rel=0.1)


def test_users_that_come_late_are_a_drift_of_concurrency() -> None:
    # The server is as fast as ever; one user in two arrives while the window is open.
    records = [r for r in closed_loop(20, 60) if r.sent_ns is not None and r.sent_ns >= r.user * 100e6 - 1000e6]
    found = stationarity(plan(0, 1000), records)
    assert found["drifting"]
    assert found["figures"]["achieved_concurrency"]["drift_per_window"] == pytest.approx(10 / 15, rel=0.15)
    assert found["figures"]["ttft"]["p_value"] == 1.0


def test_failed_requests_are_in_no_figure() -> None:
    records = closed_loop(7, 12)
    failed = [request(r.sent_ns / 1e6, [r.sent_ns / 1e6 + 80], status="truncated", user=99) for r in records]  # type: ignore[operator]
    with_failed = stationarity(plan(0, 90 * 9), [*records, *failed])
    assert not with_failed["drifting"]
    assert stationarity(plan(0, 90 * 9), failed)["judged"] is False


def test_the_order_of_the_records_does_not_matter_and_the_result_is_strict_json() -> None:
    records = slowing(6, 40, growth=0.01)
    expected = stationarity(plan(0, 3500), records)
    shuffled = list(records)
    random.Random(4).shuffle(shuffled)
    assert stationarity(plan(0, 3500), shuffled) == expected
    assert orjson.loads(orjson.dumps(expected)) == expected


def test_a_generation_is_the_time_of_failed_requests_too() -> None:
    records = [normal(5, 50, 10, sent_ms=90 * i) for i in range(10)]
    records += [request(180 * i, [180 * i + 50], status="truncated", finished_ms=180 * i + 180) for i in range(10)]
    assert stationarity(plan(0, 900), records)["generations"] == pytest.approx(900 / ((10 * 90 + 5 * 180) / 15))


def test_what_too_few_requests_cannot_tell_from_chance_has_no_p_value() -> None:
    found = stationarity(plan(0, 270), closed_loop(1, 5))
    assert found["judged"], "throughput is cut by time, and three generations of it are enough"
    assert found["figures"]["ttft"] == {"drift_per_window": pytest.approx(0), "p_value": None}
