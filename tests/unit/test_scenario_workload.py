"""The workload section: how lengths, mixes and prefixes are written, what they mean, and every refusal."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from loadgen.errors import ScenarioError
from loadgen.prompts.recipe import SET_BITS
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario
from loadgen.scenario.workload import Workload
from loadgen.workload.lengths import Fixed, LogNormal, Normal, Uniform

LOGNORMAL = {"distribution": "lognormal", "mean": 512, "stddev": 128, "min": 16, "max": 4096}
CHAT = {"name": "chat", "share": "80%", "input_tokens": 300, "output_tokens": 150}
RAG = {"name": "rag", "share": 0.2, "input_tokens": 6000, "output_tokens": 400, "prefixes": {"count": 9, "tokens": 64}}


def workload(**keys: Any) -> Workload:
    return Scenario.model_validate({"workload": keys}).workload


@pytest.mark.parametrize("text", ["{distribution: lognormal, mean: 512, stddev: 128, min: 16, max: 4096}", LOGNORMAL])
def test_a_length_is_a_number_or_a_distribution_in_a_file_or_as_text(text: Any) -> None:
    assert workload(input_tokens=text).lengths() == (LogNormal(512, 128, 16, 4096), Fixed(128))
    assert workload(input_tokens="77").input_tokens == 77
    assert workload(output_tokens={"distribution": "fixed", "tokens": 77}).output_tokens == 77


def test_a_standard_deviation_makes_a_plain_length_normal() -> None:
    scenario = load_scenario(options={"workload.input_tokens": "500", "workload.input_stddev": "50"})
    assert scenario.workload.lengths() == (Normal(500, 50), Fixed(128))


@pytest.mark.parametrize(
    ("ratio", "input_tokens", "output_tokens"),
    [(0.0, (1000, 1000), (5, 5)), (0.5, (500, 1500), (2, 8)), (0.9, (99, 1900), (1, 10))],
)
def test_the_range_ratio_is_that_of_vllms_benchmark(
    ratio: float, input_tokens: tuple[int, int], output_tokens: tuple[int, int]
) -> None:
    # floor(length * (1 - r)) to ceil(length * (1 + r)), of both lengths, outputs at least 1
    made = workload(input_tokens=1000, output_tokens=5, range_ratio=ratio)
    assert made.lengths() == (Uniform(*input_tokens), Uniform(*output_tokens))


def test_classes_are_the_kinds_in_their_order_and_a_workload_without_any_is_its_own() -> None:
    mixed = workload(classes=[CHAT, RAG])
    assert [(one.name, one.share, one.prefix_tokens()) for one in mixed.classes] == [("chat", 0.8, 0), ("rag", 0.2, 64)]
    assert mixed.kinds() == mixed.classes
    plain = workload(shared_prefix_tokens=32)
    assert plain.kinds() == (plain,)
    assert plain.prefix_tokens() == 32


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"input_tokens": LOGNORMAL, "output_tokens": {"distribution": "uniform", "min": 2, "max": 9}},
        {"input_tokens": 900, "input_stddev": 5.5, "extra_body": {"temperature": 0.5, "stop": ["a"]}},
        {"lengths_file": "/data/a.csv", "prefixes": {"count": 3, "tokens": 99, "zipf": 1.5}},
        {"classes": [CHAT, RAG]},
        {"classes": [{**CHAT, "share": "33.4%"}, {**RAG, "share": "66.6%", "extra_body": {"top_p": 0.5}}]},
    ],
)
def test_what_is_written_out_loads_as_the_same(keys: dict[str, Any]) -> None:
    scenario = Scenario.model_validate({"workload": keys, "server": {"max_model_len": 32768}})
    assert Scenario.model_validate(yaml.safe_load(scenario.to_yaml())) == scenario


def test_a_file_of_lengths_is_written_with_its_whole_path() -> None:
    assert workload(lengths_file="a.csv").lengths_file == str(Path("a.csv").absolute())


def test_every_prompt_set_of_a_recipe_can_be_asked_for_and_no_other() -> None:
    assert workload(prompt_set=(1 << SET_BITS) - 1).prompt_set == (1 << SET_BITS) - 1
    with pytest.raises(ValidationError, match="less than"):
        workload(prompt_set=1 << SET_BITS)


def test_what_the_run_was_is_said_in_words() -> None:
    assert workload(input_tokens=500).in_words() == ("500 tokens", "128 tokens")
    assert workload(input_tokens=LOGNORMAL, shared_prefix_tokens=64).in_words()[0] == (
        "lognormal, mean 512, stddev 128, 16 to 4096 tokens, 64 of them shared"
    )
    assert workload(classes=[CHAT, RAG]).in_words() == (
        "chat 80% 300 tokens; rag 20% 6000 tokens, 64 of them one of 9 prefixes",
        "chat 80% 150 tokens; rag 20% 400 tokens",
    )


def classes(*entries: str) -> str:
    return "workload:\n  classes:\n" + "".join(f"    - {{{entry}}}\n" for entry in entries)


@pytest.mark.parametrize(
    ("text", "source", "key", "wrong"),
    [
        (
            classes(
                "name: a, share: 80%, input_tokens: 90, output_tokens: 9",
                "name: b, share: 10%, input_tokens: 90, output_tokens: 9",
            ),
            "x.yaml:2",
            None,
            "The shares of workload.classes sum to 90% (a 80%, b 10%), and must sum to 100%.",
        ),
        (
            classes(
                "name: a, share: 50%, input_tokens: 90, output_tokens: 9",
                "name: a, share: 50%, input_tokens: 90, output_tokens: 9",
            ),
            "x.yaml:2",
            None,
            "two classes of the name 'a'",
        ),
        (
            classes("name: a, share: 100%, input_tokens: 90"),
            "x.yaml:2",
            "workload.classes",
            "Class 'a' has no output_tokens.",
        ),
        (
            classes("share: 100%, input_tokens: 90, output_tokens: 9"),
            "x.yaml:2",
            None,
            "workload.classes[0].name is missing.",
        ),
        (
            classes("name: a, share: 80, input_tokens: 90, output_tokens: 9"),
            "x.yaml:2",
            "workload.classes[0].share",
            "write it with a % sign",
        ),
        (
            classes("name: a, share: 0%, input_tokens: 90, output_tokens: 9"),
            "x.yaml:2",
            "workload.classes[0].share",
            "above 0%",
        ),
        (
            classes("name: a, share: 100%, input_tokens: 90, output_tokens: 9, temprature: 1"),
            "x.yaml:2",
            None,
            "workload.classes[0].temprature is not a key there.",
        ),
        (
            classes("name: a b, share: 100%, input_tokens: 90, output_tokens: 9"),
            "x.yaml:2",
            "workload.classes[0].name",
            "letters",
        ),
        ("workload: {classes: chat}\n", "x.yaml:1", "workload.classes", "It must be a list."),
        (
            "workload:\n  input_tokens: 9\n" + classes("name: a, share: 100%, input_tokens: 90, output_tokens: 9")[10:],
            "x.yaml:2, x.yaml:3",
            None,
            "so workload.input_tokens has no effect: give it to a class",
        ),
        (
            "workload: {input_tokens: {distribution: zeta}}\n",
            "x.yaml:1",
            "workload.input_tokens",
            "it must be fixed, uniform",
        ),
        ("workload: {input_tokens: 5.5}\n", "x.yaml:1", "workload.input_tokens", "a whole number, or a distribution"),
        (
            "workload: {input_tokens: '{distribution: ['}\n",
            "x.yaml:1",
            "workload.input_tokens",
            "neither YAML nor JSON",
        ),
        ("workload: {prefixes: {count: 0, tokens: 9}}\n", "x.yaml:1", "workload.prefixes.count", "at least 1"),
        ("workload: {prefixes: {count: 2}}\n", "x.yaml:1", None, "workload.prefixes.tokens is missing."),
        ("workload: {prefixes: 5}\n", "x.yaml:1", "workload.prefixes", "a mapping"),
        (
            "workload: {shared_prefix_tokens: 9, prefixes: {count: 2, tokens: 9}}\n",
            "x.yaml:1",
            "workload.prefixes",
            "keep one",
        ),
        ("workload: {extra_body: {stream: false}}\n", "x.yaml:1", "workload.extra_body", "stream cannot be set here"),
        ("workload: {extra_body: 5}\n", "x.yaml:1", "workload.extra_body", "a mapping"),
        ("workload: {lengths_file: a.csv, output_tokens: 5}\n", "x.yaml:1", None, "so output_tokens has no effect"),
        (
            "workload: {lengths_file: a.csv, range_ratio: 0.5}\n",
            "x.yaml:1",
            None,
            "so workload.range_ratio has no effect",
        ),
        ("workload: {input_stddev: 5, range_ratio: 0.5}\n", "x.yaml:1", None, "two kinds of spread"),
        ("workload: {range_ratio: 1}\n", "x.yaml:1", "workload.range_ratio", "below 1"),
        (
            "workload: {input_stddev: 5, input_tokens: {distribution: uniform, min: 20, max: 30}}\n",
            "x.yaml:1",
            None,
            "is a distribution already",
        ),
        (
            "workload: {input_tokens: {distribution: uniform, min: 20, max: 8100}}\n",
            "x.yaml:1",
            None,
            "up to 8100 + 128 = 8228, more than server.max_model_len, 8192",
        ),
        (
            classes("name: a, share: 100%, input_tokens: 9000, output_tokens: 9"),
            "x.yaml:2",
            None,
            "workload.classes.a.input_tokens + workload.classes.a.output_tokens is up to 9000 + 9 = 9009",
        ),
    ],
)
def test_a_wrong_workload_is_refused_with_file_line_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, source: str, key: str | None, wrong: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as refusal:
        load_scenario("x.yaml")
    (problem,) = refusal.value.problems
    assert (problem.source, problem.key) == (source, key)
    assert wrong in problem.wrong
    assert problem.hint
