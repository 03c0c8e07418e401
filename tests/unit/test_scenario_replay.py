"""A trace's instants as the schedule of a level."""

from typing import Any

import pytest
from pydantic import ValidationError

from loadgen.datasets.plan import in_file_order
from loadgen.errors import UsageError
from loadgen.scenario.load_section import Load
from loadgen.scenario.model import Scenario
from loadgen.scenario.replay import replay_length_s, replayed
from loadgen.scenario.schedules import given_window_s, schedules

INSTANTS = (0.0, 0.5, 0.5, 2.0, 6.0)


def scenario(**load: Any) -> Scenario:
    return Scenario.model_validate({"seed": 7, "load": load, "workload": {"dataset": {"path": "trace.jsonl"}}})


def test_each_speed_is_a_level_with_the_traces_own_gaps() -> None:
    made = schedules(scenario(replay_speed=[1, 2]), INSTANTS)
    assert list(made[0].arrivals().offsets()) == [0.0, 0.5, 0.5, 2.0, 6.0]
    assert list(made[1].arrivals().offsets()) == [0.0, 0.25, 0.25, 1.0, 3.0]
    assert (made[0].asked_rate(), made[1].asked_rate()) == (pytest.approx(4 / 6), pytest.approx(4 / 3))


def test_workers_take_turns_with_the_rows() -> None:
    schedule = replayed(Load(replay_speed=1), INSTANTS, 1.0, seed=7, level=0)
    assert [list(schedule.share(position, 2)) for position in (0, 1)] == [[0.0, 0.5, 6.0], [0.5, 2.0]]


def test_the_window_holds_the_whole_trace_and_the_last_arrival_too() -> None:
    load = Load(replay_speed=2)
    schedule = replayed(load, INSTANTS, 2.0, seed=7, level=0)
    length_s = given_window_s(load, schedule)
    assert length_s == replay_length_s(schedule) == pytest.approx(3.75)
    assert schedule.count_between(0.0, length_s) == 5
    assert 5 / length_s == pytest.approx(schedule.asked_rate())


def test_with_a_duration_arrivals_go_on_through_the_drain_and_no_longer() -> None:
    load = Load(replay_speed=1, duration=1, drain_timeout=1.5)
    schedule = replayed(load, INSTANTS, 1.0, seed=7, level=0)
    assert list(schedule.arrivals().offsets()) == [0.0, 0.5, 0.5, 2.0]
    assert given_window_s(load, schedule) == 1


def test_a_trace_of_one_instant_is_replayed_too() -> None:
    schedule = replayed(Load(replay_speed=1), (0.0, 0.0), 1.0, seed=7, level=0)
    assert list(schedule.arrivals().offsets()) == [0.0, 0.0] and replay_length_s(schedule) == 1.0
    assert schedule.rates == (2.0,)


def test_requests_are_built_ahead_for_the_busiest_second() -> None:
    assert replayed(Load(replay_speed=1), INSTANTS, 1.0, seed=7, level=0).rates == (3.0,)
    assert replayed(Load(replay_speed=4), INSTANTS, 4.0, seed=7, level=0).rates == (4.0,)


def test_rows_of_a_replay_stand_as_in_the_file_unless_asked_otherwise() -> None:
    assert in_file_order(scenario(replay_speed=1))
    assert not in_file_order(scenario(concurrency=1))
    shuffled = {"path": "trace.jsonl", "order": "shuffled"}
    asked = {"load": {"replay_speed": 1}, "workload": {"dataset": shuffled}}
    assert not in_file_order(Scenario.model_validate(asked))


@pytest.mark.parametrize(
    ("load", "wrong"),
    [
        ({"replay_speed": 0}, "above zero"),
        ({"replay_speed": 1, "request_rate": 2}, "a level has one of them"),
        ({"replay_speed": 1, "arrival": "constant"}, "takes the trace's own instants, so load.arrival has no effect"),
        ({"replay_speed": 1, "burst_size": 2, "burst_period": "1s"}, "so load.burst_size has no effect"),
    ],
)
def test_what_a_replay_cannot_be_is_refused(load: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        scenario(**load)


def test_a_replay_without_a_trace_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"workload\.dataset\.path names none"):
        Scenario.model_validate({"load": {"replay_speed": 1}})


def test_a_warm_up_as_long_as_the_trace_is_refused() -> None:
    with pytest.raises(UsageError, match=r"leaves nothing of the 7\.5 s that the trace lasts"):
        schedules(scenario(replay_speed=1, warmup=10), INSTANTS)
