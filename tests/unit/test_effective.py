"""What a server really runs with: from a real vLLM's log, from its answers, and against what was asked of it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from server.effective import FIELDS, mismatches, precision_in_words, read_effective, unconfirmed
from server.engine_log import read_log
from server.model_files import find_model, kv_bytes_per_token, read_model

LOG = (Path(__file__).parents[1] / "samples/vllm/start-0.32-cpu.log").read_text()
GPU_LOG = """\
(APIServer pid=1) INFO 07-25 13:42:30 [utils.py:233] non-default args: {'model_tag': 'q/Q', 'model': 'q/Q', 'max_model_len': 1048576, 'speculative_config': {'method': 'ngram', 'num_speculative_tokens': 4}}
(EngineCore_DP0 pid=7) INFO 07-25 13:42:31 [core.py:93] Initializing a V1 LLM engine (v0.18.0) with config: model='q/Q', speculative_config=SpeculativeConfig(method='ngram', model=None, num_spec_tokens=4), tokenizer='q/Q', dtype=torch.bfloat16, max_seq_len=1048576, tensor_parallel_size=4, quantization=fp8, enforce_eager=False, kv_cache_dtype=fp8, device_config=cuda, seed=0, enable_prefix_caching=True, chunked_prefill_enabled=True, compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>, 'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}
(EngineCore_DP0 pid=7) INFO 07-25 13:42:32 [scheduler.py:231] Chunked prefill is enabled with max_num_batched_tokens=8192.
(Worker_TP0 pid=9) INFO 07-25 13:42:33 [cuda.py:315] Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'TRITON_ATTN'].
(Worker_TP0 pid=9) INFO 07-25 13:42:36 [gpu_worker.py:349] Available KV cache memory: 2.30 GiB
(EngineCore_DP0 pid=7) INFO 07-25 13:42:38 [kv_cache_utils.py:2146] GPU KV cache size: 1,823,372 tokens
(EngineCore_DP0 pid=7) INFO 07-25 13:42:38 [kv_cache_utils.py:2147] Maximum concurrency for 1,048,576 tokens per request: 1.74x
"""
METRICS = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.9",kv_cache_size_tokens="None",num_cpu_blocks="None",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="900"} 1.0
"""


def answers(**paths: str) -> Any:
    def get(path: str) -> str:
        try:
            return paths[path.strip("/").replace("/", "_")]
        except KeyError:
            raise OSError("404") from None

    return get


def test_a_real_log_of_vllm_on_a_cpu_is_understood() -> None:
    found = read_log(LOG)
    assert found["version"] == "0.32.0"
    assert (found["dtype"], found["max_model_len"], found["max_num_seqs"]) == ("bfloat16", 2048, 4)
    assert (found["kv_cache_tokens"], found["kv_cache_bytes"]) == (93184, 2 << 30)
    assert (found["max_concurrency_tokens"], found["max_concurrency"]) == (2048, 45.5)
    assert (found["enforce_eager"], found["cuda_graphs"], found["quantization"]) == (True, "NONE", None)
    assert (found["prefix_caching"], found["chunked_prefill"], found["speculative"]) == (True, True, None)
    assert found["flags"]["served_model_name"] == ["smollm2"]
    assert "attention_backend" not in found  # this build does not say


def test_an_older_log_of_several_gpus_is_understood() -> None:
    found = read_log(GPU_LOG)
    assert (found["version"], found["tensor_parallel_size"], found["quantization"]) == ("0.18.0", 4, "fp8")
    assert (found["kv_cache_tokens"], found["max_concurrency"]) == (1823372, 1.74)
    assert found["kv_cache_bytes"] == round(2.3 * 2**30)
    assert (found["attention_backend"], found["cuda_graphs"]) == ("FLASH_ATTN", "FULL_AND_PIECEWISE")
    assert (found["max_num_batched_tokens"], found["chunked_prefill"]) == (8192, True)
    assert found["speculative"] == {"method": "ngram", "model": None, "num_spec_tokens": 4}
    assert "max_num_seqs" not in found  # a default is not logged, and not made up


def test_arguments_that_are_no_plain_values_hide_none_that_are() -> None:
    line = "x non-default args: {'host': '::', 'config': <Mode.A: 3>, 'max_num_seqs': 4, 'enforce_eager': True}\n"
    assert read_log(line)["flags"] == {"host": "::", "max_num_seqs": 4, "enforce_eager": True}


def test_what_the_server_answers_goes_before_its_log_and_says_where_from() -> None:
    get = answers(
        v1_models=json.dumps({"data": [{"id": "m", "root": "/models/m", "max_model_len": 1024}, {"id": "loadgen-1"}]}),
        version='{"version": "0.32.1"}',
        metrics=METRICS,
    )
    found = read_effective(get, log=LOG)
    assert (found["version"], found["max_model_len"], found["model"]) == ("0.32.1", 1024, "/models/m")
    assert (found["kv_cache_blocks"], found["kv_cache_tokens"], found["block_size"]) == (1000, 16000, 16)
    assert found["served_models"] == ["m", "loadgen-1"]
    assert found["sources"]["max_model_len"] == "/v1/models"
    assert found["sources"]["kv_cache_blocks"] == "/metrics"
    assert found["sources"]["dtype"] == "log"
    assert "served_model_name" not in found["flags"]


def test_a_server_that_answers_nothing_has_every_field_and_no_value() -> None:
    found = read_effective(answers())
    assert {found[name] for name in FIELDS} == {None}
    assert (found["served_models"], found["sources"], found["flags"], found["model_files"]) == ([], {}, None, None)
    assert (
        read_effective(answers(v1_models="<html>", version="[]", metrics="vllm:cache_config_info{x"))["model"] is None
    )


@pytest.mark.parametrize(
    ("key", "asked", "there"),
    [
        ("max_num_seqs", 4, 8),
        ("max_model_len", "4k", 4096),
        ("dtype", "half", "bfloat16"),
        ("enforce_eager", True, False),
        ("enable_prefix_caching", False, True),
        ("quantization", "fp8", "awq"),
        ("gpu_memory_utilization", 0.5, 0.9),
        ("tensor_parallel_size", 2, 1),
    ],
)
def test_what_is_not_as_asked_is_told(key: str, asked: object, there: object) -> None:
    name = {"enable_prefix_caching": "prefix_caching"}.get(key, key)
    (told,) = mismatches({key: asked}, {name: there})
    assert told.startswith(f"{key} was asked to be {str(asked).lower() if isinstance(asked, bool) else asked} and is ")


@pytest.mark.parametrize(
    ("key", "asked", "there"),
    [
        ("max_model_len", "4K", 4096),
        ("max_model_len", "auto", 8192),
        ("max_model_len", -1, 8192),
        ("dtype", "half", "float16"),
        ("dtype", "auto", "bfloat16"),
        ("quantization", None, "awq"),
        ("gpu_memory_utilization", "0.90", 0.9),
        ("model", "/models/m/", "/srv/models/m"),
        ("max_num_seqs", 4, None),
    ],
)
def test_what_is_as_asked_or_left_to_the_server_is_no_mismatch(key: str, asked: object, there: object) -> None:
    assert mismatches({key: asked}, {key: there}) == []


def test_a_flag_without_a_field_is_held_against_what_vllm_understood() -> None:
    effective = {"flags": {"async_scheduling": True, "swap_space": 4}}
    assert mismatches({"async_scheduling": False}, effective) == ["async_scheduling was asked to be false and is true"]
    assert unconfirmed({"swap_space": 4, "max_num_seqs": 16, "dtype": "auto"}, effective) == ["max_num_seqs"]


@pytest.mark.parametrize(
    ("effective", "words"),
    [
        ({"dtype": "bfloat16", "kv_cache_dtype": "auto"}, "bfloat16"),
        ({"dtype": "float16", "quantization": "awq", "kv_cache_dtype": "fp8"}, "float16, weights awq, KV cache fp8"),
        ({"dtype": "bfloat16", "model_files": {"quantization": "gptq"}}, "bfloat16, weights gptq"),
        ({"model_files": {"quantization": "gguf"}}, "weights gguf"),
        ({"kv_cache_dtype": "auto", "model_files": None}, None),
        ({}, None),
    ],
)
def test_precision_is_a_phrase(effective: dict[str, Any], words: str | None) -> None:
    assert precision_in_words(effective) == words


def tensors(path: Path, **shapes: tuple[str, list[int], int]) -> None:
    """A safetensors file of headers alone: {name: (dtype, shape, bytes)}."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, size) in shapes.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
}


def test_a_models_size_is_counted_from_the_headers_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    tensors(tmp_path / "model-1.safetensors", a=("BF16", [10, 20], 400))
    tensors(tmp_path / "model-2.safetensors", b=("F32", [5], 20), c=("BF16", [], 2))
    found = read_model(tmp_path)
    assert (found["parameters"], found["weight_bytes"]) == (206, 422)
    assert found["dtypes"] == {"BF16": 402, "F32": 20}
    assert (found["quantized"], found["quantization"]) == (False, None)
    assert (found["layers"], found["kv_heads"], found["head_dim"]) == (30, 3, 64)
    assert kv_bytes_per_token(found, bytes_per_value=2) == 2 * 30 * 3 * 64 * 2


@pytest.mark.parametrize(
    ("files", "config", "method"),
    [
        ({}, {"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
        ({"quantize_config.json": "{}"}, {}, "gptq"),
        ({"hf_quant_config.json": '{"quantization": {"quant_algo": "NVFP4"}}'}, {}, "NVFP4"),
        ({"model-Q4_K_M.gguf": "x"}, {}, "gguf"),
        ({"model-bf16.gguf": "x"}, {}, None),
        ({"adapter_config.json": "{}"}, {}, None),
    ],
)
def test_a_quantized_model_is_told_by_its_files(
    tmp_path: Path, files: dict[str, str], config: dict[str, Any], method: str | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | config))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = read_model(tmp_path)
    assert (found["quantization"], found["quantized"]) == (method, method is not None)
    assert found["quantization_evidence"] or not (files or config)


def test_packed_weights_are_not_counted_as_parameters(tmp_path: Path) -> None:
    tensors(tmp_path / "model.safetensors", qweight=("I32", [100], 400), scales=("F16", [10], 20))
    found = read_model(tmp_path)
    assert (found["parameters"], found["weight_bytes"], found["quantized"]) == (None, 420, True)


def test_a_torn_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    found = read_model(tmp_path)
    assert (found["parameters"], found["layers"], found["dtypes"]) == (None, None, None)


def test_a_model_of_the_hub_is_found_in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--org--name/snapshots/abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--org--name/refs").mkdir()
    (tmp_path / "models--org--name/refs/main").write_text("abc\n")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert find_model("org/name") == snapshot
    assert find_model(str(snapshot)) == snapshot
    assert find_model("org/other") is None
    assert find_model("nonsense of a name") is None


def test_the_kv_caches_bytes_are_computed_where_the_log_does_not_tell(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    get = answers(v1_models=json.dumps({"data": [{"id": "m", "root": str(tmp_path)}]}), metrics=METRICS)
    found = read_effective(get, log=LOG.replace("Explicitly set", "Set"), local=True)
    assert found["kv_cache_bytes"] == 23040 * 16000
    assert found["sources"]["kv_cache_bytes"] == "computed from config.json"
    assert found["model_files"]["architecture"] == "LlamaForCausalLM"
    assert read_effective(get, local=False)["model_files"] is None
