"""What a scenario's requests ask for: streams or whole answers, models, tools and structures, and what does not go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.options import scenario_from
from loadgen.errors import ScenarioError
from loadgen.judgement import kinds_of
from loadgen.outputs import conditions
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CHAT = {"name": "chat", "share": "80%", "input_tokens": 300, "output_tokens": 150}
JOBS = {"name": "jobs", "share": "20%", "input_tokens": 600, "output_tokens": 40}
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}}


def read(text: str, tmp_path: Path, **options: Any) -> Scenario:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    return load_scenario(path, options=options)


def of(**sections: Any) -> Scenario:
    settings = {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
    return load_scenario(None, options=settings)


def refusal(**sections: Any) -> str:
    with pytest.raises(ScenarioError) as refused:
        of(**sections)
    return refused.value.report()


# --- streams and whole answers


def test_answers_are_streams_unless_the_target_or_a_class_says_otherwise() -> None:
    assert of().streams() and not of(target={"stream": False}).streams()
    assert scenario_from({"stream": False}).target.stream is False
    mixed = of(target={"stream": False}, workload={"classes": [CHAT | {"stream": True}, JOBS]})
    assert mixed.streams()
    assert [kind.streamed for kind in kinds_of(mixed)] == [True, False]
    assert [kind.streamed for kind in kinds_of(of(target={"stream": False}))] == [False]


@pytest.mark.parametrize("limit", ["ttft_p95", "ttfo_p50", "itl_p99", "tpot_p90"])
def test_a_limit_on_what_only_a_stream_has_is_refused_without_one(limit: str) -> None:
    sentence = refusal(target={"stream": False}, slo={limit: "500ms"})
    assert f"slo.{limit} cannot be judged" in sentence and "limit e2el instead" in sentence


def test_without_a_stream_end_to_end_latency_and_errors_may_be_limited() -> None:
    asked = of(target={"stream": False}, slo={"e2el_p95": "2s", "error_rate": "1%"})
    assert [one.name for one in asked.slo.objectives()] == ["e2el_p95", "error_rate"]


def test_a_limit_on_ttft_holds_for_the_classes_that_stream() -> None:
    asked = of(workload={"classes": [CHAT, JOBS | {"stream": False}]}, slo={"ttft_p95": "500ms"})
    assert asked.slo.ttft_p95 == 0.5


def test_the_conditions_say_that_nothing_streams() -> None:
    assert conditions(of(target={"stream": False}), {})["target"] == "simulator (chat, not streaming)"
    assert conditions(of(), {})["target"] == "simulator (chat)"


# --- structures


@pytest.mark.parametrize(
    ("extra_body", "key"),
    [
        (SCHEMA, "response_format"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "structured_outputs"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"guided_regex": "[0-9]+"}, "guided_regex"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice"),
    ],
)
def test_an_answer_with_a_form_cannot_be_forced_to_a_length(extra_body: dict[str, Any], key: str) -> None:
    sentence = refusal(workload={"extra_body": extra_body})
    assert f"workload.extra_body has {key}" in sentence and "Set ignore_eos to false" in sentence
    assert of(workload={"extra_body": extra_body, "ignore_eos": False}).workload.extra_body == extra_body


@pytest.mark.parametrize(
    "extra_body",
    [
        {"response_format": {"type": "text"}},
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"stop": ["a"]},
    ],
)
def test_an_answer_without_a_form_may_be_forced(extra_body: dict[str, Any]) -> None:
    assert of(workload={"extra_body": extra_body}).workload.ignore_eos


def test_one_class_may_have_a_form_while_the_others_are_forced() -> None:
    structured = JOBS | {"extra_body": SCHEMA}
    assert "workload.classes.jobs.extra_body has response_format" in refusal(workload={"classes": [CHAT, structured]})
    asked = of(workload={"classes": [CHAT, structured | {"ignore_eos": False}]})
    assert [one.ignore_eos for one in asked.workload.classes] == [None, False]
    assert conditions(asked, {})["output"].endswith("forced, but at most for jobs")
    assert conditions(of(workload={"ignore_eos": False}), {})["output"].endswith("at most")


# --- tools


@pytest.mark.parametrize(
    ("extra_body", "sentence"),
    [
        ({"tools": {}}, "tools is a list of tools"),
        ({"tools": []}, "tools is a list of tools"),
        ({"tools": [TOOL, {"type": "function"}]}, "Tool 2 is not written"),
        ({"tools": [{"function": {"name": "f"}}]}, "Tool 1 is not written"),
        ({"tool_choice": "auto"}, "tool_choice, and no tools to choose from"),
        ({"tools": [TOOL], "tool_choice": "always"}, "none, auto, required"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "time"}}},
            "names the function 'time', and the tools are weather",
        ),
    ],
)
def test_tools_that_no_server_takes_are_refused(extra_body: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(workload={"extra_body": extra_body, "ignore_eos": False})


def test_a_class_may_choose_among_the_tools_of_the_workload() -> None:
    classes = [CHAT, JOBS | {"extra_body": {"tool_choice": "required"}}]
    assert of(workload={"classes": classes, "extra_body": {"tools": [TOOL]}, "ignore_eos": False})


def test_completions_take_no_tools() -> None:
    sentence = refusal(target={"endpoint": "completions"}, workload={"extra_body": {"tools": [TOOL]}})
    assert "/v1/completions does not take" in sentence


# --- models


def test_several_models_by_share_are_a_class_each_with_the_lengths_of_the_workload(tmp_path: Path) -> None:
    text = "workload: {models: {org/base: 70%, adapter: 30%}, input_tokens: 200, input_stddev: 20, output_tokens: 5}\n"
    asked = read(text, tmp_path)
    base, adapter = asked.workload.kinds()
    assert base.lengths() == adapter.lengths() == asked.workload.lengths()
    assert [(kind.name, kind.model, kind.share) for kind in kinds_of(asked)] == [
        ("org/base", "org/base", 0.7),
        ("adapter", "adapter", pytest.approx(0.3)),
    ]
    assert conditions(asked, {})["model"] == "org/base 70%, adapter 30%"
    assert read(asked.to_yaml(), tmp_path) == asked


def test_a_class_may_name_its_model() -> None:
    asked = of(workload={"classes": [CHAT | {"model": "big"}, JOBS]})
    assert [kind.model for kind in kinds_of(asked)] == ["big", None]
    assert conditions(asked, {"target": {"model": "small"}})["model"] == "big 80%, small 20%"
    assert conditions(of(), {"target": {"model": "small"}})["model"] == "small"
    assert conditions(of(), {})["model"] is None


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"workload": {"models": {"a": "70%", "b": "20%"}}}, "sum to 90%, and must sum to 100%"),
        ({"workload": {"models": {"a": "100%", "b": "0%"}}}, "a share above 0%"),
        ({"workload": {"models": {"a": "100%"}, "classes": [CHAT, JOBS]}}, "give each class its model"),
        ({"workload": {"models": {"a": "100%"}}, "target": {"model": "a"}}, "target.model has no effect"),
        ({"workload": {"models": {"a": "100%"}, "dataset.path": "x.jsonl"}}, "workload.models has no effect"),
        ({"workload": {"models": ["a", "b"]}}, "a mapping"),
    ],
)
def test_models_that_are_no_whole_are_refused(sections: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(**sections)


# --- options and paths


def test_further_keys_of_the_body_are_an_option() -> None:
    asked = scenario_from({"extra_body": '{"temperature": 0.7, "chat_template_kwargs": {"enable_thinking": false}}'})
    assert asked.workload.extra_body == {"temperature": 0.7, "chat_template_kwargs": {"enable_thinking": False}}


@pytest.mark.parametrize(
    ("text", "of"),
    [
        ("workload: {dataset: {path: d.jsonl}}\n", lambda asked: asked.workload.dataset.path),
        ("workload: {lengths_file: d.jsonl}\n", lambda asked: asked.workload.lengths_file),
        ("load: {rate_file: d.jsonl}\n", lambda asked: asked.load.rate_file),
    ],
    ids=["dataset.path", "lengths_file", "rate_file"],
)
def test_a_file_is_meant_from_the_folder_of_the_scenario_and_named_absolutely_in_the_run(
    text: str, of: Any, tmp_path: Path
) -> None:
    asked = read(text, tmp_path)
    assert of(asked) == str(tmp_path / "d.jsonl")
    assert str(tmp_path / "d.jsonl") in asked.to_yaml().replace("\n", "")
    (tmp_path / "elsewhere").mkdir()
    assert read(asked.to_yaml(), tmp_path / "elsewhere") == asked
