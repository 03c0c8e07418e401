"""Takes what a level measured and what is known of its server, gives its share of what the hardware could do at best; pure.

The ceiling is of decoding alone (`server.roofline.decode_ceiling`), so the time that prompts take is part of what is
missing to 1. Where the server tells of a model's files, embeddings that a token only looks a row up in count as read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from server.roofline import GPUS, Gpu, Model, accepted_tokens, decode_ceiling
from server.simulator.settings import SimulatorSettings

_OF_EXPERTS = re.compile(r"moe|mixtral|deepseek|dbrx|jamba|gptoss", re.IGNORECASE)
_BYTES = {"float32": 4.0, "float": 4.0, "float16": 2.0, "half": 2.0, "bfloat16": 2.0}


def roofline_share(level: Mapping[str, Any]) -> float | None:
    """Output throughput over the decode ceiling at the level's achieved concurrency and mean lengths.

    None where model or GPU is not known, of experts or speculation whose tokens a step nobody told, or without a token.
    """
    known = _of_simulator(level["server"]) or _of_server(level)
    users, prompt, answer = level["achieved_concurrency"], level["mean_input_tokens"], level["mean_output_tokens"]
    if known is None or not users or prompt is None or answer is None or not level["output_throughput"]:
        return None
    model, gpu, tokens_per_step, replicas = known
    ceiling = decode_ceiling(
        model, gpu, batch=users / replicas, length=prompt + answer / 2, tokens_per_step=tokens_per_step
    )
    return float(level["output_throughput"] / (replicas * ceiling))


Known = tuple[Model, Gpu, float, int]
"""(model, GPUs of one replica, tokens that a sequence gets of a step, replicas)."""


def _of_simulator(settings: Mapping[str, Any]) -> Known | None:
    if settings.get("simulated_model") is None:
        return None
    names = SimulatorSettings.model_fields
    simulator = SimulatorSettings(**{name: value for name, value in settings.items() if name in names})
    if simulator.roofline is None:
        return None
    tokens = accepted_tokens(simulator.num_speculative_tokens, simulator.speculative_acceptance_rate)
    return *simulator.roofline, tokens, 1


def _of_server(level: Mapping[str, Any]) -> Known | None:
    told = level.get("effective") or {}
    gpus = (level.get("server_metrics") or {}).get("gpus") or []
    files = told.get("model_files") or {}
    gpu = gpu_of_driver_name(str(gpus[0]["name"])) if gpus else None
    model = _model(told, files)
    if gpu is None or model is None or told.get("speculative"):
        return None
    each = int(told.get("tensor_parallel_size") or 1) * int(told.get("pipeline_parallel_size") or 1)
    return model, gpu.times(each), 1.0, int(told.get("data_parallel_size") or 1)


def _model(told: Mapping[str, Any], files: Mapping[str, Any]) -> Model | None:
    shape = [files.get(name) for name in ("layers", "kv_heads", "head_dim", "weight_bytes")]
    if None in shape or _OF_EXPERTS.search(str(files.get("architecture"))):
        return None
    layers, kv_heads, head_size, weight_bytes = (int(size or 0) for size in shape)
    parameters = files.get("parameters")
    cache = str(told.get("kv_cache_dtype") or "auto")
    return Model(
        # Where several weights are packed into one element nobody counted them: as many as there are half bytes.
        parameters=parameters or 2 * weight_bytes,
        layers=layers,
        kv_heads=kv_heads,
        head_size=head_size,
        heads=files.get("attention_heads"),
        weight_bytes_per_parameter=weight_bytes / (parameters or 2 * weight_bytes),
        kv_bytes_per_value=1.0 if cache.startswith("fp8") else _BYTES.get(str(told.get("dtype")), 2.0),
    )


def gpu_of_driver_name(name: str) -> Gpu | None:
    """The preset of a GPU as NVML names it (`NVIDIA H100 80GB HBM3`); None for one that is not known."""
    words = name.upper().replace("-", " ").split()
    found = next((key for key in ("A100", "H100", "H200", "L40S", "L4") if key in words), None)
    if found is None:
        return None
    preset = found if found != "A100" else "A100-40GB" if "40GB" in words else "A100-80GB"
    on_a_card = f"{preset}-PCIe"
    return GPUS.get(on_a_card if "PCIE" in words and on_a_card in GPUS else preset)
