"""The JSON Schema that editors check scenarios by says what the loader takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from loadgen.cli.reference import ROOT
from loadgen.errors import ScenarioError
from loadgen.scenario.json_schema import SCHEMA_FILE, scenario_schema
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario

SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = scenario_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def problems(validator: Any, text: str) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(yaml.safe_load(text) or {})]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_keeps_it_as_written_and_with_every_default(path: Path, validator: Any) -> None:
    assert problems(validator, path.read_text()) == []
    assert problems(validator, load_scenario(path).to_yaml()) == []


def test_the_defaults_alone_keep_it(validator: Any) -> None:
    assert problems(validator, Scenario().to_yaml()) == []
    assert problems(validator, "{}") == []


CLASSES = (
    "workload: {classes: [{name: a, share: 80%, input_tokens: 99, output_tokens: 3},"
    "{name: b, share: 0.2, input_tokens: 99, output_tokens: {distribution: fixed, tokens: 3}}]}"
)
GOOD = [
    "load: {warmup: 500ms, duration: 2m, drain_timeout: 1.5h, ramp: 3, max_warmup: 1e2s}",
    "load: {duration: 5m30s, warmup: 1h2m3s, ramp: 1h5s}",
    "slo: {e2el_p95: 1m30s}",
    "load: {concurrency: 4}",
    "load: {concurrency: [1, 2, 4]}",
    "load: {concurrency: '1,2,4'}",
    "load: {request_rate: [0.5, 2], burstiness: 0.5, max_in_flight: 8, overflow: drop}",
    "load: {stages: ['30s:2', '60s:2-10']}",
    "load: {stages: '30s:2,60s:2-10'}",
    "load: {think_time: 2s}",
    "load: {think_time: {distribution: exponential, mean: 3s}}",
    "slo: {ttft_p95: 500ms, tpot_p99: 0.05s, error_rate: 0.5%}",
    "slo: {error_rate: 0.01}",
    "workload: {input_tokens: {distribution: lognormal, mean: 512, stddev: 128, min: 16, max: 4096}}",
    "workload: {output_tokens: {distribution: uniform, min: 1, max: 9}}",
    CLASSES,
    "workload: {prefixes: {count: 20, tokens: 256, zipf: 1.0}, extra_body: {temperature: 0.7}}",
    "metrics: {port: off}",
    "metrics: {port: null, linger: 30s}",
    "server: {max_num_seqs: [8, 16]}",
    "target: {base_url: 'http://127.0.0.1:8000', model: null}\nseed: 7",
    "target: {server: vllm, model: some-model}\nserver: {gpu_memory_utilization: [0.8, 0.9]}",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_the_loader_takes_it_takes(text: str, validator: Any, tmp_path: Path) -> None:
    assert problems(validator, text) == []
    path = tmp_path / "good.yaml"
    path.write_text(text)
    load_scenario(path)  # or the schema would be looser than what it is for


@pytest.mark.parametrize(
    "text",
    [
        "load: {concurency: 4}",
        "load: {concurrency: yes}",
        "load: {concurrency: 0}",
        "load: {concurrency: []}",
        "load: {duration: soon}",
        "load: {warmup: -1s}",
        "load: {stages: [soon]}",
        "load: {think_time: {mean: 3s}}",
        "slo: {ttft_p95: 500}",
        "slo: {ttft_p95: '500'}",
        "slo: {error_rate: 1}",
        "slo: {ttft_p42: 500ms}",
        "workload: {input_tokens: {distribution: zipf, mean: 3}}",
        "workload: {input_tokens: {distribution: normal, mean: 300}}",
        "workload: {input_tokens: {distribution: uniform, min: 1, max: 9, mean: 3}}",
        "workload: {classes: [{name: a, input_tokens: 99, output_tokens: 3}]}",
        "workload: {prefixes: {count: 20}}",
        "metrics: {port: 70000}",
        "server: {max_num_sequences: 3}",
        "target: {server: tgi}",
        "seed: -1",
        "scenario: {}",
    ],
)
def test_what_the_loader_refuses_in_one_key_it_refuses(text: str, validator: Any, tmp_path: Path) -> None:
    assert problems(validator, text) != []
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError):
        load_scenario(path)


def test_every_key_says_what_it_means_and_has_its_default_as_people_write_it(validator: Any) -> None:
    schema = validator.schema
    for name in ("Load", "Target", "Workload", "Timeouts", "Metrics", "ServerSettings"):
        for key, one in schema["$defs"][name]["properties"].items():
            assert "$ref" in one or one.get("description"), f"{name}.{key}"
    assert schema["$defs"]["Load"]["properties"]["drain_timeout"]["default"] == "30s"
    assert schema["$defs"]["Timeouts"]["properties"]["first_token"]["default"] == "120s"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_names_the_schema_for_editors(path: Path) -> None:
    line = f"# yaml-language-server: $schema={SCHEMA_FILE}"
    opening = path.read_text().splitlines()[:12]
    assert line in opening, f"put `{line}` behind the comment that {path.name} opens with"
