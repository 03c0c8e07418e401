"""The `server` section: any flag of vLLM as a key, sweeps that are linked or left out, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ScenarioError
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario
from loadgen.scenario.server import from_command_line


def of_vllm(text: str, tmp_path: Path, **kwargs: Any) -> Scenario:
    path = tmp_path / "x.yaml"
    path.write_text(f"target: {{server: vllm, model: m}}\nserver:\n{text}")
    return load_scenario(path, **kwargs)


def swept(scenario: Scenario) -> list[tuple[Any, ...]]:
    return [tuple(one.values()) for one in scenario.server.combinations()]


def test_any_flag_of_vllm_is_a_key_and_a_list_is_swept_in_the_order_of_the_file(tmp_path: Path) -> None:
    scenario = of_vllm("  dtype: [half, auto]\n  max-num-seqs: [2, 4]\n  enforce_eager: true\n", tmp_path)
    assert scenario.server.combinations() == [
        {"dtype": dtype, "max_num_seqs": seqs, "enforce_eager": True} for dtype in ("half", "auto") for seqs in (2, 4)
    ]


def test_a_setting_that_is_not_given_is_no_flag(tmp_path: Path) -> None:
    assert of_vllm("  max_num_seqs: 4\n", tmp_path).levels()[0].server == {"max_num_seqs": 4}


def test_a_list_in_a_list_is_one_value(tmp_path: Path) -> None:
    assert swept(of_vllm("  cudagraph_capture_sizes: [[1, 2], [4]]\n", tmp_path)) == [([1, 2],), ([4],)]


def test_null_in_a_sweep_leaves_the_flag_out(tmp_path: Path) -> None:
    assert swept(of_vllm("  quantization: [null, fp8]\n", tmp_path)) == [(None,), ("fp8",)]


def test_linked_settings_are_swept_together(tmp_path: Path) -> None:
    text = "  max_num_seqs: [2, 4]\n  dtype: [a, b]\n  max_num_batched_tokens: [20, 40]\n"
    text += "  linked: [[max_num_seqs, max_num_batched_tokens]]\n"
    assert swept(of_vllm(text, tmp_path)) == [(2, "a", 20), (2, "b", 20), (4, "a", 40), (4, "b", 40)]


def test_excluded_combinations_are_not_run(tmp_path: Path) -> None:
    text = (
        "  max_num_seqs: [2, 4, 8]\n  dtype: [a, b]\n  exclude: [{max_num_seqs: [4, 8], dtype: b}, {max_num_seqs: 2}]\n"
    )
    assert swept(of_vllm(text, tmp_path)) == [(4, "a"), (8, "a")]


def test_the_simulators_settings_are_linked_and_excluded_too() -> None:
    server = {"max_num_seqs": [2, 4], "max_num_batched_tokens": [64, 128]}
    linked = Scenario.model_validate({"server": {**server, "linked": [["max_num_seqs", "max_num_batched_tokens"]]}})
    assert [(one["max_num_seqs"], one["max_num_batched_tokens"]) for one in linked.server.combinations()] == [
        (2, 64),
        (4, 128),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("  linked: [[max_num_seqs, dtype]]\n  max_num_seqs: [1, 2]\n  dtype: [a, b, c]\n", "lists of one length"),
        ("  linked: [[max_num_seqs, dtype]]\n  max_num_seqs: [1, 2]\n", "names dtype, which is no setting"),
        ("  exclude: [{a: 1}]\n", "names a, which is no setting"),
        ("  max_num_seqs: 4\n  exclude: [{max_num_seqs: 4}]\n", "leaves out every combination"),
        ("  max_num_seqs: []\n", "needs at least one value"),
        ("  port: [1, 2]\n", "cannot be swept"),
        ("  max-num-seqs: 1\n  max_num_seqs: 2\n", "given twice"),
        ("  max_model_len: 100\n", "more than server.max_model_len, 100"),
        ("  step_overhead_ms: 1\n", "setting of the simulator"),
        ("  api_key: sk-12345678\n", "looks like a secret"),
        ("  hf_token: hf_12345678\n", "looks like a secret"),
        ("  env: {HF_TOKEN: hf_12345678}\n", "looks like a secret"),
        ("  command: docker run -e HF_TOKEN=hf_12345678 x\n", "looks like a secret"),
    ],
)
def test_what_cannot_be_run_is_refused(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        of_vllm(text, tmp_path)
    assert why in caught.value.report()
    assert "12345678" not in caught.value.report()


def test_vllm_needs_a_model_or_a_command_that_knows_one() -> None:
    with pytest.raises(ScenarioError, match="no model to load"):
        load_scenario(None, sets=["target.server=vllm"])
    for given in ("server.model=/m", "target.model=m", "server.command=docker run x"):
        load_scenario(None, sets=["target.server=vllm", given])


def test_a_vllm_has_ten_minutes_to_get_ready_unless_told_otherwise() -> None:
    base = ["target.server=vllm", "server.model=m"]
    assert load_scenario(None, sets=base).target.ready_timeout == 600
    assert load_scenario(None, sets=[*base, "target.ready_timeout=5s"]).target.ready_timeout == 5
    assert load_scenario(None).target.ready_timeout == 60


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2,4,8", [2, 4, 8]),
        ("8", 8),
        ("true", True),
        ("none", None),
        ("none,fp8", [None, "fp8"]),
        ("/models/a,/models/b", ["/models/a", "/models/b"]),
        ('{"a": 1, "b": [2]}', {"a": 1, "b": [2]}),
        ("[[1, 2], [3]]", [[1, 2], [3]]),
        ('"a,b"', "a,b"),
        ("0.9", 0.9),
        ("on", "on"),
    ],
)
def test_values_of_the_command_line_are_read_as_people_mean_them(text: str, value: object) -> None:
    assert from_command_line(text) == value


def test_the_command_line_the_environment_and_the_file_agree(tmp_path: Path) -> None:
    of_file = of_vllm("  max_num_seqs: [2, 4]\n  enforce_eager: true\n", tmp_path)
    base = ["target.server=vllm", "target.model=m"]
    sets = load_scenario(None, sets=[*base, "server.max_num_seqs=2,4", "server.enforce_eager=true"])
    env: Mapping[str, str] = {"LOADGEN_SERVER_MAX_NUM_SEQS": "2,4", "LOADGEN_SERVER_ENFORCE_EAGER": "true"}
    assert of_file.server.combinations() == sets.server.combinations()
    assert of_file.server.combinations() == load_scenario(None, sets=base, env=env).server.combinations()


def test_a_written_scenario_reads_back_as_the_same(tmp_path: Path) -> None:
    text = "  max_num_seqs: [2, 4]\n  hf_overrides: {a: [1]}\n  quantization: [null, fp8]\n  env: {A: 1}\n"
    scenario = of_vllm(text, tmp_path)
    again = tmp_path / "again.yaml"
    again.write_text(scenario.to_yaml())
    assert load_scenario(again) == scenario


def test_a_scenario_for_the_simulator_runs_on_vllm_without_what_only_the_simulator_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("target: {server: sim}\nserver: {max_num_seqs: [2, 4], step_overhead_ms: 3}\n")
    with caplog.at_level(logging.WARNING):
        scenario = load_scenario(path, sets=["server.model=/m"], options={"target.server": "vllm"})
    assert scenario.server.combinations() == [{"max_num_seqs": n, "model": "/m"} for n in (2, 4)]
    assert "server.step_overhead_ms is left out" in caplog.text


def test_a_flag_of_vllm_is_unknown_where_the_simulator_is_started() -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(None, sets=["server.max_num_seq=4", "server.enforce_eager=true"])
    first, second = caught.value.problems
    assert (first.hint or "").startswith("Did you mean server.max_num_seqs? With target.server: vllm, any flag")
    assert second.wrong == "server.enforce_eager is not a key of a scenario."


def test_the_simulator_has_no_command_and_no_environment() -> None:
    with pytest.raises(ScenarioError, match=r"server\.env has no effect without target\.server: vllm"):
        load_scenario(None, sets=["server.env={A: 1}"])
