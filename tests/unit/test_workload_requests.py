"""Bodies of a workload's classes: each with its own model, sampling parameters, stream and end, on every worker the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.prompts import LocalCounter
from loadgen.scenario.model import Scenario
from loadgen.workload.carried import carried, to_carry
from loadgen.workload.plan import ServedModel, plan_workload
from loadgen.workload.plan_turns import prompts_of
from loadgen.workload.sessions import SessionWorkload
from loadgen.workload.synthetic import SyntheticWorkload
from server.simulator.tokenizer import folder

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def counter() -> LocalCounter:
    return LocalCounter(folder())


def planned(counter: LocalCounter, workload: dict[str, Any], **target: Any) -> SyntheticWorkload:
    scenario = Scenario.model_validate(
        {"target": {"base_url": "http://h:1", **target}, "workload": workload, "seed": 7}
    )
    others = {"big": ServedModel(counter, 4096)}
    made = plan_workload(scenario, counter, model="m", max_model_len=4096, base_url="http://h:1", others=others)
    again = carried(json.loads(json.dumps(to_carry(made))))
    assert again == made, "a worker gets the same workload"
    assert isinstance(again, SyntheticWorkload)
    return again


def a_class(name: str, share: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "share": share, "input_tokens": 90, "output_tokens": 8, **more}


def bodies(workload: SyntheticWorkload, count: int = 60) -> dict[int, dict[str, Any]]:
    """A body of each class."""
    found = {}
    for k in range(count):
        request = workload.build(0, k)
        found[request.kind] = json.loads(request.body) | {"streamed": request.streamed, "forced": request.output_forced}
    return found


def test_each_class_has_its_own_sampling_parameters_over_those_of_all(counter: LocalCounter) -> None:
    classes = [a_class("chat", "50%"), a_class("code", "50%", extra_body={"temperature": 0, "seed": 1})]
    made = bodies(planned(counter, {"classes": classes, "extra_body": {"temperature": 0.7, "top_p": 0.9}}))
    assert {key: made[0].get(key) for key in ("temperature", "top_p", "seed")} == {
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": None,
    }
    assert {key: made[1].get(key) for key in ("temperature", "top_p", "seed")} == {
        "temperature": 0,
        "top_p": 0.9,
        "seed": 1,
    }


def test_each_class_has_its_own_model_stream_and_end(counter: LocalCounter) -> None:
    classes = [
        a_class("chat", "50%"),
        a_class(
            "jobs",
            "50%",
            model="big",
            stream=False,
            ignore_eos=False,
            extra_body={"response_format": {"type": "json_object"}},
        ),
    ]
    chat, jobs = (body for _, body in sorted(bodies(planned(counter, {"classes": classes})).items()))
    assert (chat["model"], chat["stream"], chat["streamed"], chat["forced"]) == ("m", True, True, True)
    assert (jobs["model"], jobs["stream"], jobs["streamed"], jobs["forced"]) == ("big", False, False, False)
    assert "stream_options" in chat and "stream_options" not in jobs
    assert chat["min_tokens"] == 8 and "min_tokens" not in jobs and "ignore_eos" not in jobs
    assert jobs["response_format"] == {"type": "json_object"}


def test_without_a_stream_no_body_asks_for_one(counter: LocalCounter) -> None:
    made = bodies(planned(counter, {}, stream=False))
    assert (made[0]["stream"], made[0]["streamed"]) == (False, False)


@pytest.mark.parametrize("prefix", [0, 30])
def test_what_tools_cost_comes_off_the_words_of_conversations_too(counter: LocalCounter, prefix: int) -> None:
    asked = {
        "input_tokens": 200,
        "output_tokens": 10,
        "turns": 3,
        "carried_answers": "synthetic",
        "shared_prefix_tokens": prefix,
        "extra_body": {"tools": [TOOL]},
    }
    workload = planned(counter, asked).with_template_tokens(0, 40)
    assert isinstance(workload, SessionWorkload)
    prompts = list(prompts_of(workload.session(0, 5, made_up=True)))
    assert len(prompts) == 3
    for messages, tokens in prompts:
        assert counter.count_messages(messages) + 40 == tokens
