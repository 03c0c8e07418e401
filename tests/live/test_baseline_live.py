"""`loadgen baseline` on a real model: one request by transformers, a batch by vLLM offline."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.live.environment import Environment
from tests.live.launch import on_cores, split_cores
from tests.live.sweep import LOADGEN

pytestmark = [pytest.mark.live, pytest.mark.timeout(3600)]  # the first test also builds the environment

PARAMETERS = 134_515_008


def measured(environment: Environment, folder: Path, *words: str) -> dict[str, Any]:
    core, _ = split_cores()
    variables = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
    }
    command = [str(LOADGEN), "baseline", words[0], str(environment.model_dir), "--python", str(environment.python)]
    command += ["--input-tokens", "32", "--repeats", "2", "--timeout", "300s", "-o", str(folder / "made.json")]
    with on_cores(frozenset({core})):
        ended = subprocess.run(
            [*command, *words[1:]], env={**os.environ, **variables}, capture_output=True, text=True, timeout=400
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return dict(json.loads((folder / "made.json").read_text()))


def test_transformers_is_measured_one_request_at_a_time(environment: Environment, tmp_path: Path) -> None:
    made = measured(environment, tmp_path, "transformers", "--output-tokens", "6")
    stated, figures = made["conditions"], made["figures"]
    assert made["speed_of"] == "single-stream" and stated["batch"] == 1
    assert (stated["dtype"], stated["parameters"], stated["device"]) == ("bfloat16", PARAMETERS, "cpu")
    assert len(figures["total_s"]["passes"]) == 2
    assert figures["decode_tok_s"] == figures["decode_tok_s_per_request"]
    assert 0.1 < figures["decode_tok_s"]["median"] < 1000
    assert figures["ttft_ms"]["median"] < 1000 * figures["total_s"]["median"]


def test_vllm_offline_is_measured_as_a_batch(environment: Environment, tmp_path: Path) -> None:
    options = ["--batch", "4", "--output-tokens", "24", "--enforce-eager", "--max-model-len", "128"]
    made = measured(environment, tmp_path, "vllm-offline", *options)
    stated, figures = made["conditions"], made["figures"]
    assert made["speed_of"] == "aggregate" and stated["batch"] == 4
    assert (stated["dtype"], stated["max_num_seqs"], stated["max_model_len"]) == ("bfloat16", 4, 128)
    assert stated["prefix_caching"] is False and stated["enforce_eager"] is True
    assert stated["model_files"]["parameters"] == PARAMETERS
    assert stated["versions"]["vllm"]
    assert 1 < figures["output_tok_s"]["median"] < 10_000
