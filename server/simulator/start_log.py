"""What vLLM logs when it starts, of the simulator: takes settings, gives lines in vLLM's form. Writes nothing itself.

Whoever reads effective settings out of a vLLM's log reads them here: version, arguments that are not defaults, the
engine's configuration, the size of the KV cache and how many of the longest requests fit into it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from server.simulator.settings import SimulatorSettings

VERSION = "0.32.0+simulator"
"""What /version says: the vLLM whose behaviour is imitated, and that it is not vLLM."""

_ALWAYS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching")
"""Arguments whose default is not vLLM's."""

_WHERE_CHOSEN = (
    "enable_chunked_prefill",
    "stream_interval",
    "block_size",
    "num_gpu_blocks_override",
    "tensor_parallel_size",
    "gpu_memory_utilization",
    "quantization",
    "kv_cache_dtype",
    "seed",
)


def beginning(settings: SimulatorSettings, host: str, port: int) -> Iterator[str]:
    """The lines of a start, up to where the model would be loaded."""
    yield _line("APIServer", "api_utils.py:347", f"version {VERSION}")
    yield _line("APIServer", "api_utils.py:286", f"non-default args: {not_defaults(settings, host, port)}")
    yield _line("APIServer", "model.py:2152", f"Using max model len {settings.max_model_len}")
    if settings.enable_chunked_prefill:
        text = f"Chunked prefill is enabled with max_num_batched_tokens={settings.max_num_batched_tokens}."
        yield _line("APIServer", "scheduler.py:253", text)
    yield _line(
        "EngineCore", "core.py:133", f"Initializing a V1 LLM engine (v{VERSION}) with config: {engine_config(settings)}"
    )


def end(settings: SimulatorSettings, *, took_s: float, url: str) -> Iterator[str]:
    """The lines once the model is loaded."""
    tokens = settings.num_gpu_blocks * settings.block_size
    blocks_of_longest = -(-settings.max_model_len // settings.block_size)
    yield _line(
        "EngineCore",
        "kv_cache_utils.py:2327",
        f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for {settings.max_model_len:,} tokens per request: "
        f"{settings.num_gpu_blocks / blocks_of_longest:.2f}x",
    )
    yield _line(
        "EngineCore", "core.py:402", f"init engine (profile, create kv cache, warmup model) took {took_s:.2f} s"
    )
    yield _line("APIServer", "entry.py:140", f"Starting vLLM server on {url}")


def not_defaults(settings: SimulatorSettings, host: str, port: int) -> dict[str, Any]:
    """The arguments that vLLM would list: those it has, where they are not its own defaults."""
    chosen: dict[str, Any] = {"host": host, "port": port, "model": settings.simulated_model or "simulator"}
    chosen["served_model_name"] = [settings.served_model_name]
    chosen |= {name: getattr(settings, name) for name in _ALWAYS}
    for name in _WHERE_CHOSEN:
        value = getattr(settings, name)
        if value != SimulatorSettings.model_fields[name].default:
            chosen[name] = value
    if settings.num_speculative_tokens:
        chosen["speculative_config"] = _speculative(settings)
    return chosen


def engine_config(settings: SimulatorSettings) -> str:
    """The engine's configuration as vLLM prints it, of what the simulator has."""
    model = settings.simulated_model or "simulator"
    values = {
        "model": repr(model),
        "speculative_config": _speculative(settings) if settings.num_speculative_tokens else None,
        "tokenizer": repr(model),
        "dtype": "torch.bfloat16",
        "max_seq_len": settings.max_model_len,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "quantization": settings.quantization,
        "enforce_eager": False,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "device_config": "simulator",
        "seed": settings.seed,
        "served_model_name": settings.served_model_name,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "enable_chunked_prefill": settings.enable_chunked_prefill,
    }
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _speculative(settings: SimulatorSettings) -> dict[str, Any]:
    return {"method": "simulated", "num_speculative_tokens": settings.num_speculative_tokens}


def _line(process: str, place: str, text: str) -> str:
    return f"({process} pid={os.getpid()}) INFO {datetime.now():%m-%d %H:%M:%S} [{place}] {text}"
