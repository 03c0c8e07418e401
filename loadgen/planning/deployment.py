"""Takes the settings that a level was measured with, gives the `vllm serve` command line and the YAML file that set them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from loadgen.scenario.server import SIMULATOR_ONLY
from server.simulator.settings import SimulatorSettings
from server.vllm.command import flag_words

_ALWAYS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
"""Of the simulator: told also where they have their defaults."""
_TOLD = {
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "kv_cache_dtype",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "block_size": "block_size",
    "prefix_caching": "enable_prefix_caching",
    "chunked_prefill": "enable_chunked_prefill",
    "enforce_eager": "enforce_eager",
}
"""What a server tells of itself (`server.effective`) that a flag of vLLM sets, and that flag."""
_OF_THE_MODEL = ("model", "host", "port", "served_model_name")


def settings_of(server: str | None, asked: Mapping[str, Any], effective: Mapping[str, Any] | None) -> dict[str, Any]:
    """The flags of vLLM that give what was measured; empty where nobody told.

    `server`: as `target.server`: `sim`, `vllm`, or None for one that was there, whose own words (`effective`) count then.
    """
    told = effective or {}
    if server == "sim":
        defaults = SimulatorSettings.model_fields
        known = {name: told[name] for name in _ALWAYS if told.get(name) is not None}
        return {
            name: value
            for name, value in {**known, **asked}.items()
            if name not in SIMULATOR_ONLY
            and (name in _ALWAYS or name not in defaults or value != defaults[name].default)
        }
    flags = dict(asked) if server is not None else dict(told.get("flags") or {})
    if not flags:
        flags = {flag: told[name] for name, flag in _TOLD.items() if told.get(name) is not None}
    return {name: value for name, value in flags.items() if name not in _OF_THE_MODEL}


def deployment(model: str | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """{settings, command, yaml}; the YAML file is what `vllm serve --config FILE` reads. Flags without a value are left out."""
    chosen = {name: value for name, value in flags.items() if value not in (None, {}, [], "")}
    file = {"model": model or "MODEL", **{name.replace("_", "-"): value for name, value in chosen.items()}}
    return {
        "settings": chosen,
        "command": shlex.join(["vllm", "serve", model or "MODEL", *flag_words(chosen)]),
        "yaml": yaml.safe_dump(file, sort_keys=False, default_flow_style=False),
    }


def gpus_of(settings: Mapping[str, Any]) -> int | None:
    """GPUs that a replica with these settings occupies; None where no setting says."""
    sizes = [settings.get(name) for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")]
    if all(size is None for size in sizes):
        return None
    count = 1
    for size in sizes:
        count *= int(size or 1)
    return count
