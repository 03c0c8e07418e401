"""The dataset keys of a scenario, under every name they have, and what does not go with them."""

from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.options import ALIASES, NAMES
from loadgen.errors import ScenarioError
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario


def load(**options: Any) -> Scenario:
    return load_scenario(options={key.replace("__", "."): value for key, value in options.items()})


def problem(**options: Any) -> str:
    with pytest.raises(ScenarioError) as refused:
        load(**options)
    assert all(problem.hint for problem in refused.value.problems)
    return str(refused.value)


def test_vllms_and_aiperfs_options_name_the_file_and_its_format() -> None:
    assert NAMES["workload.dataset.path"] == ("--dataset-path",)
    assert ALIASES["--input-file"] == "workload.dataset.path"
    assert ALIASES["--dataset-name"] == ALIASES["--custom-dataset-type"] == "workload.dataset.format"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("sharegpt", "sharegpt"),
        ("burstgpt", "burstgpt"),
        ("custom", "jsonl"),
        ("single_turn", "jsonl"),
        ("mooncake_trace", "mooncake"),
        ("burst_gpt_trace", "burstgpt"),
        ("openai-batch", "openai-batch"),
    ],
)
def test_a_format_may_have_another_tools_name(theirs: str, ours: str) -> None:
    dataset = load(workload__dataset__path="x", workload__dataset__format=theirs).workload.dataset
    assert dataset.format == ours


def test_vllms_random_dataset_is_no_file() -> None:
    assert load(workload__dataset__format="random").workload.dataset.path is None
    assert "`random` is made up" in problem(workload__dataset__format="random", workload__dataset__path="x")


def test_a_path_in_a_scenario_is_relative_to_the_scenarios_folder(tmp_path: Path) -> None:
    scenario = tmp_path / "deep" / "mine.yaml"
    scenario.parent.mkdir()
    scenario.write_text("workload: {dataset: {path: ../prompts.jsonl}}\n")
    path = load_scenario(scenario).workload.dataset.path
    assert path is not None and Path(path).resolve() == tmp_path / "prompts.jsonl"
    assert load_scenario(scenario, env={"LOADGEN_WORKLOAD_DATASET_PATH": "a.csv"}).workload.dataset.path == str(
        Path.cwd() / "a.csv"
    )


def test_the_scenario_of_a_run_means_the_same_file_elsewhere(tmp_path: Path) -> None:
    scenario = load(workload__dataset__path="prompts.jsonl", workload__dataset__max_tokens=900)
    written = tmp_path / "scenario.yaml"
    written.write_text(scenario.to_yaml())
    assert load_scenario(written) == scenario


def test_a_scenario_without_a_dataset_does_not_mention_one() -> None:
    assert "dataset" not in Scenario().to_yaml()


def test_an_option_replaces_what_the_scenario_says_of_its_prompts(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("workload: {input_tokens: 700, shared_prefix_tokens: 100, output_tokens: 9}\n")
    scenario = load_scenario(path, options={"workload.dataset.path": "x"})
    assert scenario.workload.dataset.path is not None and scenario.workload.output_tokens == 9
    path.write_text("workload: {dataset: {path: x, order: file}}\n")
    assert load_scenario(path, options={"workload.input_tokens": "70"}).workload.dataset.path is None


def test_keys_that_a_dataset_makes_idle_are_refused() -> None:
    assert "workload.input_tokens has no effect" in problem(workload__dataset__path="x", workload__input_tokens=5)
    assert "workload.prefixes has no effect" in problem(
        workload__dataset__path="x", workload__prefixes="{count: 2, tokens: 5}"
    )
    assert "workload.dataset.order has no effect" in problem(workload__dataset__order="file")
    assert "It must be 'auto', 'sharegpt'" in problem(workload__dataset__path="x", workload__dataset__format="parquet")


def test_a_misspelt_key_within_the_dataset_names_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("workload:\n  dataset:\n    path: x\n    fromat: jsonl\n")
    with pytest.raises(ScenarioError) as refused:
        load_scenario(path)
    (only,) = refused.value.problems
    assert only.source == f"{path}:4" and only.hint == "Did you mean workload.dataset.format?"


def test_a_key_that_is_twice_within_the_dataset_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("workload:\n  dataset:\n    path: x\n    path: y\n")
    with pytest.raises(ScenarioError, match=r"workload\.dataset\.path is given twice; the first is in line 3"):
        load_scenario(path)


def test_a_dataset_is_a_section_and_no_value() -> None:
    assert "workload.dataset is a section" in problem(workload__dataset="x")


def test_the_prompts_are_described_by_their_file() -> None:
    assert load(workload__dataset__path="a/b.jsonl").workload.in_words() == (
        "as in b.jsonl",
        "as there, else 128 tokens",
    )
