"""The load section's open loop: which keys go together, what they make, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ScenarioError, UsageError
from loadgen.outputs import load_in_words
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario
from loadgen.scenario.schedules import given_window_s, schedules


def loaded(**load: Any) -> Scenario:
    return load_scenario(options={f"load.{key}": value for key, value in load.items()}).with_seed()


def refusal(**load: Any) -> str:
    with pytest.raises(ScenarioError) as error:
        loaded(**load)
    (problem,) = error.value.problems
    assert problem.hint
    return f"{problem.wrong}"


def test_rates_are_a_sweep_and_take_the_place_of_the_default_users() -> None:
    scenario = loaded(request_rate="1,2.5,10")
    assert scenario.load.open_loop and scenario.load.concurrency is None
    assert [(level.request_rate, level.concurrency) for level in scenario.levels()] == [
        (1, None),
        (2.5, None),
        (10, None),
    ]
    made = schedules(scenario)
    assert [made[number].rates for number in range(3)] == [(1,), (2.5,), (10,)]
    assert {schedule.pattern for schedule in made.values()} == {"poisson"}
    # Levels draw their own numbers.
    assert len({schedule.count_between(0, 1000) / schedule.rates[0] for schedule in made.values()}) == 3


def test_without_any_load_the_default_is_a_closed_loop() -> None:
    scenario = loaded()
    assert not scenario.load.open_loop and schedules(scenario) == {}
    assert load_in_words(scenario.load) == "closed loop, no think time"


@pytest.mark.parametrize(
    "load",
    [
        {"request_rate": "1,2", "burstiness": "0.5", "max_in_flight": "8", "overflow": "drop"},
        {"stages": "30s:2,60s:2-10.5,500ms:0"},
        {"request_rate": "2", "burst_size": "5", "burst_period": "2s"},
        {"concurrency": "4", "think_time": "1500ms"},
        {"concurrency": "4", "think_time": "exponential:2s"},
        {"concurrency": "4", "think_time": {"distribution": "exponential", "mean": "2s"}},
        {"rate_file": "day.csv", "arrival": "constant"},
    ],
)
def test_a_scenario_written_out_loads_as_the_same(tmp_path: Path, load: dict[str, Any]) -> None:
    scenario = loaded(**load)
    path = tmp_path / "scenario.yaml"
    path.write_text(scenario.to_yaml())
    assert load_scenario(path) == scenario


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (
            {"load.concurrency": "3"},
            {"concurrency": (3,), "request_rate": None, "burstiness": None, "max_in_flight": None},
        ),
        ({"load.request_rate": "9"}, {"request_rate": (9,), "burstiness": 0.5, "max_in_flight": 7}),
        ({"load.stages": "5s:1"}, {"request_rate": None, "burstiness": 0.5, "concurrency": None}),
    ],
)
def test_a_load_on_the_command_line_replaces_the_kind_that_the_file_has(
    tmp_path: Path, options: dict[str, str], kept: dict[str, Any]
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("load: {request_rate: [1, 2], burstiness: 0.5, max_in_flight: 7, overflow: drop}")
    load = load_scenario(path, options=options).load
    assert {key: getattr(load, key) for key in kept} == kept


def test_a_rate_on_the_command_line_replaces_users_that_think(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("load: {concurrency: [1, 2], think_time: 2s}")
    load = load_scenario(path, options={"load.request_rate": "4"}).load
    assert (load.concurrency, load.think_time, load.request_rate) == (None, None, (4,))


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"request_rate": "1", "concurrency": "2"}, "load.concurrency and load.request_rate are given"),
        ({"request_rate": "1", "concurrency": "2"}, "; arrivals are limited by load.max_in_flight."),
        ({"request_rate": "1", "stages": "1s:1"}, "load.request_rate and load.stages are given"),
        ({"concurrency": "none"}, "give load.concurrency or load.request_rate"),
        ({"burstiness": "2"}, "load.burstiness has no meaning in a closed loop"),
        ({"concurrency": "1", "overflow": "drop"}, "load.overflow has no meaning in a closed loop"),
        ({"request_rate": "1", "think_time": "1s"}, "load.think_time is for users"),
        ({"request_rate": "1", "arrival": "constant", "burstiness": "2"}, "load.arrival is constant"),
        ({"request_rate": "1", "burst_size": "2"}, "load.burst_size and load.burst_period are given together"),
        ({"request_rate": "1", "overflow": "drop"}, "load.max_in_flight says from when on"),
        ({"request_rate": "0"}, "above zero"),
        ({"request_rate": "-1"}, "at least 0"),
        ({"request_rate": "inf"}, "finite"),
        ({"request_rate": "1,fast"}, "must be a number"),
        ({"request_rate": "1", "burstiness": "0"}, "above zero"),
        ({"request_rate": "1", "arrival": "uniform"}, "'poisson', 'constant' or 'gamma'"),
        ({"request_rate": "1", "max_in_flight": "0"}, "at least 1"),
        ({"stages": "30s"}, "'30s' is not a stage"),
        ({"stages": "30s:2,60x:3"}, "'60x:3' is not a stage"),
        ({"stages": "0s:2"}, "takes no time"),
        ({"stages": "30s:0,10s:0-0"}, "No stage asks for a request"),
        ({"stages": [3602]}, "3602 is not a stage"),
        ({"think_time": "0s"}, "longer than zero"),
        ({"think_time": {"mean": "2s"}}, "takes distribution"),
        ({"think_time": "soon"}, "not a duration"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(load: dict[str, Any], words: str) -> None:
    assert words in refusal(**load)


def test_burstiness_alone_means_gamma_as_in_vllm() -> None:
    assert loaded(request_rate="1", burstiness="0.5").load.pattern == "gamma"
    assert loaded(request_rate="1").load.pattern == "poisson"
    assert loaded(request_rate="1", arrival="gamma").load.pattern == "gamma"


def test_stages_are_a_course_and_set_warm_up_and_window() -> None:
    scenario = loaded(stages="30s:2,60s:2-10,10s:5")
    (schedule,) = schedules(scenario).values()
    assert (schedule.times_s, schedule.rates) == ((0.0, 30.0, 90.0, 90.0, 100.0), (2, 2, 10, 5, 5))
    assert scenario.load.given_warmup_s == 0.0
    assert given_window_s(scenario.load, schedule) == 100.0
    warmed = loaded(stages="30s:2,60s:2-10,10s:5", warmup="20s")
    assert given_window_s(warmed.load, schedule) == 80.0
    assert given_window_s(loaded(stages="30s:2", duration="7s").load, schedule) == 7.0


def test_a_warm_up_that_eats_the_whole_course_is_refused() -> None:
    with pytest.raises(UsageError, match="leaves nothing of the 30 s"):
        schedules(loaded(stages="30s:2", warmup="30s"))


def test_ten_bursts_are_measured() -> None:
    scenario = loaded(request_rate="1", burst_size="5", burst_period="4s")
    (schedule,) = schedules(scenario).values()
    assert given_window_s(scenario.load, schedule) == 40.0
    assert scenario.load.given_warmup_s == 0.0


def test_a_steady_rate_settles_and_is_measured_as_long_as_its_work_needs() -> None:
    scenario = loaded(request_rate="4")
    assert scenario.load.given_warmup_s is None
    assert given_window_s(scenario.load, schedules(scenario)[0]) is None


def test_a_rate_file_is_read_when_the_schedule_is_made(tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text("seconds,rate\n0,1\n60,5\n")
    (schedule,) = schedules(loaded(rate_file=str(tmp_path / "day.csv"))).values()
    assert schedule.asked_rate() == 3
    with pytest.raises(UsageError, match="cannot be read"):
        schedules(loaded(rate_file=str(tmp_path / "night.csv")))


def test_the_load_is_told_in_words() -> None:
    told = load_in_words(loaded(request_rate="1,2", burstiness="0.5", max_in_flight="64").load)
    assert told == "open loop, gamma arrivals (burstiness 0.5), at most 64 in flight, then queue"
    assert load_in_words(loaded(concurrency="1", think_time="exponential:2s").load) == (
        "closed loop, think time 2 s, exponential"
    )
    assert "stages 30s:2 60s:2-10" in load_in_words(loaded(stages="30s:2,60s:2-10").load)
