"""The turns of a scenario's workload: what goes together, what is refused, what a conversation is on average."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from loadgen.scenario.model import Scenario
from loadgen.scenario.schedules import schedules

OPEN = {"request_rate": 8, "warmup": "5s"}


def scenario(workload: dict[str, Any], load: dict[str, Any] | None = None) -> Scenario:
    return Scenario.model_validate({"seed": 1, "target": {"server": "sim"}, "workload": workload, "load": load or {}})


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no effect": ({"turn_input_tokens": 9}, {}, "workload.turns is 1, so workload.turn_input_tokens has no effect"),
    "think alone": ({"turn_think_time": "2s"}, {}, "workload.turns is 1, so workload.turn_think_time has no effect"),
    "too many": ({"turns": 1025}, {}, "workload.turns is up to 1025, and a conversation has at most 1024 turns"),
    "file": ({"turns": 2, "lengths_file": "x.csv"}, {}, "workload.lengths_file has single requests"),
    "dataset": ({"turns": 2, "dataset": {"path": "x"}}, {}, "so workload.turns has no effect"),
    "too long": (
        {"turns": 60, "input_tokens": 100, "output_tokens": 80},
        {},
        "output_tokens is up to 100 + 59 × (80 + 64) + 80 = 8676, more than server.max_model_len, 8192",
    ),
    "unbounded": (
        {"turns": {"distribution": "lognormal", "mean": 8, "stddev": 8}, "output_tokens": 100},
        {},
        "512 + 55 × (100 + 64) + 100 = 9632, more than server.max_model_len, 8192: the server would refuse such a request.",
    ),
    "in a class": (
        {"classes": [{"name": "a", "share": "100%", "input_tokens": 9, "output_tokens": 9, "turns": 1000}]},
        {},
        "workload.classes.a.turns is up to 1000",
    ),
    "open without warm-up": ({"turns": 3}, {"request_rate": 8}, "in an open loop, give load.warmup"),
    "cap": ({"turns": 3}, {**OPEN, "max_in_flight": 4}, "load.max_in_flight has no meaning"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_turns_that_make_no_sense_are_refused(case: str) -> None:
    workload, load, says = REFUSED[case]
    with pytest.raises(ValidationError) as refusal:
        scenario(workload, load)
    assert says in str(refusal.value)


def test_a_scenario_of_turns_written_out_is_the_same_again() -> None:
    asked = scenario(
        {
            "turns": {"distribution": "uniform", "min": 2, "max": 8},
            "turn_input_tokens": {"distribution": "normal", "mean": 40, "stddev": 5},
            "turn_think_time": {"distribution": "exponential", "mean": "4s"},
            "carried_answers": "synthetic",
        },
        OPEN,
    )
    assert Scenario.model_validate(yaml.safe_load(asked.to_yaml())) == asked
    words = "512 tokens; turns uniform, 2 to 8, each later one adding a made-up answer and normal, mean 40, stddev 5, 1 to 70"
    assert asked.workload.in_words() == (f"{words} tokens", "128 tokens")


def test_an_open_loops_rate_is_of_requests_and_its_arrivals_are_conversations() -> None:
    (schedule,) = schedules(scenario({"turns": 4}, OPEN)).values()
    assert schedule.asked_rate() == 8
    assert schedule.count_between(0, 1000) == pytest.approx(2000, rel=0.1)
    (alone,) = schedules(scenario({}, OPEN)).values()
    assert alone.count_between(0, 1000) == pytest.approx(8000, rel=0.1)


def test_a_mix_has_the_mean_of_its_classes_turns_and_waits() -> None:
    lengths = {"input_tokens": 50, "output_tokens": 9}
    classes = [
        {"name": "a", "share": "25%", **lengths},
        {"name": "b", "share": "75%", **lengths, "turns": 5, "turn_think_time": "3s"},
    ]
    workload = scenario({"classes": classes}).workload
    assert workload.mean_turns() == pytest.approx(0.25 + 0.75 * 5)
    # Of a: 1 s after its only answer. Of b: 3 s after each of four, 1 s after the last.
    assert workload.mean_think_s(1.0) == pytest.approx((0.25 * 1 + 0.75 * (4 * 3 + 1)) / 4)
    assert scenario({}).workload.mean_think_s(1.5) == 1.5
    by_model = scenario({"models": {"a": "70%", "b": "30%"}, "turns": 3, "turn_think_time": "3s"}).workload
    assert (by_model.mean_turns(), by_model.mean_think_s(0.0)) == pytest.approx((3, 2))
