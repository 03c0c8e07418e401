"""A level's share of the roofline: known for a simulated GPU, for a server that tells, absent for any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.judgement import judge
from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from loadgen.scenario.model import Scenario
from loadgen.stats.level import level_object
from loadgen.stats.roofline import gpu_of_driver_name, roofline_share
from loadgen.virtual import closed_loop
from server.roofline import GPUS, decode_ceiling
from server.simulator.settings import SimulatorSettings
from tests.level_records import plan
from tests.virtual_run import VirtualRun


def level(**fields: Any) -> dict[str, Any]:
    return {
        "server": {},
        "effective": None,
        "server_metrics": None,
        "achieved_concurrency": 8.0,
        "mean_input_tokens": 1000.0,
        "mean_output_tokens": 200.0,
        "output_throughput": 500.0,
        **fields,
    }


@pytest.mark.parametrize("share", [0.5, 0.8])
@pytest.mark.parametrize("users", [1, 8])
def test_simulated_gpu_that_attains_a_share_of_its_bandwidth_shows_that_share(share: float, users: int) -> None:
    values = {
        "simulated_model": "llama-3.1-8b",
        "gpu": "H100",
        "bandwidth_share": share,
        "engine_overhead_ms": 0.0,
        "max_num_seqs": 16,
    }
    records = closed_loop(
        SimulatorSettings(**values),
        concurrency=users,
        input_tokens=64,
        output_tokens=400,
        duration_ns=12_000_000_000,
        start_ns=0,
    )
    made = level_object(plan(4000, 10_000, concurrency=users, server=values), records, [])
    # Prompts are short beside the answers, so that little but their time is missing.
    assert share * 0.9 < made["roofline_share"] <= share * 1.001


def test_server_that_tells_its_model_and_gpu_has_a_share() -> None:
    files = {
        "architecture": "LlamaForCausalLM",
        "layers": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "attention_heads": 32,
        "parameters": 8_030_000_000,
        "weight_bytes": 16_060_000_000,
    }
    known = level(
        effective={"model_files": files, "dtype": "bfloat16", "tensor_parallel_size": 1},
        server_metrics={"gpus": [{"name": "NVIDIA H100 80GB HBM3"}]},
    )
    share = roofline_share(known)
    assert share is not None and 0.2 < share < 0.4  # 8 streams: about 1650 tokens/s at best
    halves = roofline_share({**known, "effective": {**known["effective"], "tensor_parallel_size": 2}})
    assert halves == pytest.approx(share / 2, rel=0.01)
    twice = roofline_share({**known, "effective": {**known["effective"], "data_parallel_size": 2}})
    assert twice is not None and share / 2 < twice < share, "two replicas read the weights twice as often"
    for changed in (
        {"effective": {**known["effective"], "speculative": {"num_speculative_tokens": 3}}},
        {"effective": {**known["effective"], "model_files": {**files, "architecture": "Qwen3MoeForCausalLM"}}},
        {"effective": {**known["effective"], "model_files": None}},
        {"server_metrics": {"gpus": [{"name": "NVIDIA GeForce RTX 9090"}]}},
        {"server_metrics": None},
        {"mean_output_tokens": None},
        {"output_throughput": 0.0},
    ):
        assert roofline_share({**known, **changed}) is None, changed


def test_packed_weights_count_by_their_bytes() -> None:
    files = {
        "architecture": "LlamaForCausalLM",
        "layers": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "attention_heads": 32,
        "parameters": None,
        "weight_bytes": 5_000_000_000,
    }
    told = level(
        effective={"model_files": files, "dtype": "float16"},
        server_metrics={"gpus": [{"name": "NVIDIA L4"}]},
        achieved_concurrency=1.0,
        output_throughput=30.0,
    )
    share = roofline_share(told)
    assert share == pytest.approx(30 * (5e9 + 1101 * 131_072) / 300e9, rel=0.01)


@pytest.mark.parametrize(
    ("told", "preset"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
    ],
)
def test_gpu_is_known_by_the_name_that_its_driver_gives(told: str, preset: str) -> None:
    assert gpu_of_driver_name(told) is GPUS[preset]


def test_ceiling_is_that_of_decoding() -> None:
    values = {"simulated_model": "llama-3.1-8b", "gpu": "H100"}
    settings = SimulatorSettings(**values)
    assert settings.roofline is not None
    ceiling = decode_ceiling(*settings.roofline, batch=8, length=1100)
    assert roofline_share(level(server=values)) == pytest.approx(500 / ceiling)
    assert roofline_share(level()) is None


def test_settings_that_no_level_is_named_by_count_for_the_ceiling(tmp_path: Path) -> None:
    """Of a sweep over models a level is named by the model, and the GPU stands in the scenario alone."""
    run = VirtualRun(concurrency=(4,), window_s=10)
    data = next(iter(RunReader(RunFolder.open(run.write(tmp_path / "run"))).all()))
    of_one_gpu = {"max_num_seqs": 16, "gpu": "H100", "simulated_model": ["llama-3.1-8b", "qwen2.5-7b"]}
    values = {**run.scenario().model_dump(mode="json", exclude_unset=True), "server": of_one_gpu}
    scenario = Scenario.model_validate({**values, "target": {"server": "sim"}})
    named = {"max_num_seqs": 16, "simulated_model": "qwen2.5-7b"}
    (level,) = judge([replace(data, plan=replace(data.plan, server=named))], scenario)
    assert level["server"] == named
    whole = scenario.server_combinations()[1]
    assert whole["simulated_model"] == "qwen2.5-7b"
    assert level["roofline_share"] == roofline_share({**level, "server": whole}) is not None
