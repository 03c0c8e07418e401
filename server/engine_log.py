"""What vLLM's log says of its settings: takes the text, gives a dictionary of what was found; pure.

The lines are those of vLLM 0.8 to 0.32 (V1 engine). What a version does not say is absent, never a default.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

_GIB = 1 << 30


def read_log(text: str) -> dict[str, Any]:
    """Settings by their name in `server.effective`, and `flags`: those it was given, as it understood them."""
    found: dict[str, Any] = {}
    for name, pattern, read in _LINES:
        if (match := pattern.search(text)) is not None:
            found[name] = read(match[1])
    if (config := _CONFIG.search(text)) is not None:
        found["version"] = config["version"]
        found |= _of_config(config["config"])
    if (capacity := _CAPACITY.search(text)) is not None:
        found["max_concurrency_tokens"] = _count(capacity[1])
        found["max_concurrency"] = float(capacity[2])
    if (arguments := _ARGUMENTS.search(text)) is not None:
        found["flags"] = flags = _mapping(arguments[1])
        found |= {name: flags[name] for name in _ONLY_ASKED if name in flags}
    return found


def _count(text: str) -> int:
    return int(text.replace(",", ""))


def _gib(text: str) -> int:
    return round(float(text) * _GIB)


_ARGUMENTS = re.compile(r"non-default args: (\{.*\})$", re.MULTILINE)
_CONFIG = re.compile(
    r"Initializing an? (?:V1 )?LLM engine \(v(?P<version>[^)]+)\) with config: (?P<config>.*)$", re.MULTILINE
)
_CAPACITY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
_LINES: tuple[tuple[str, re.Pattern[str], Callable[[str], Any]], ...] = (
    ("version", re.compile(r"(?:API server version|▄▄?  ?version|█  version) (\S+)"), str),
    ("max_model_len", re.compile(r"Using max model len (\d+)"), int),
    ("kv_cache_tokens", re.compile(r"KV cache size: ([\d,]+) tokens"), _count),
    ("kv_cache_blocks", re.compile(r"# GPU blocks: (\d+)"), int),
    ("kv_cache_bytes", re.compile(r"Available KV cache memory: ([\d.]+) GiB"), _gib),
    ("kv_cache_bytes", re.compile(r"(?:Explicitly|Auto) set \(([\d.]+)/[\d.]+\) GiB for KV cache"), _gib),
    ("max_num_batched_tokens", re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)"), int),
    ("max_num_seqs", re.compile(r"Defaulting max_num_seqs to (\d+)"), int),
    ("attention_backend", re.compile(r"Using (?:AttentionBackendEnum\.)?(\w+) attention backend"), str),
    ("attention_backend", re.compile(r"Using ([\w ]+?) backend on V1 engine"), str),
    ("attention_backend", re.compile(r"Using AttentionBackendEnum\.(\w+) backend"), str),
    ("loaded_bytes", re.compile(r"Model loading took ([\d.]+) GiB"), _gib),
)
"""A later line for a name that was found already replaces it."""

_ONLY_ASKED = ("max_num_seqs", "max_num_batched_tokens", "block_size", "gpu_memory_utilization", "model")
"""Settings that the line of the engine's configuration leaves out."""

_PLAIN = (
    ("dtype", "dtype", str),
    ("max_seq_len", "max_model_len", int),
    ("tensor_parallel_size", "tensor_parallel_size", int),
    ("pipeline_parallel_size", "pipeline_parallel_size", int),
    ("data_parallel_size", "data_parallel_size", int),
    ("quantization", "quantization", str),
    ("kv_cache_dtype", "kv_cache_dtype", str),
    ("device_config", "device", str),
    ("seed", "seed", int),
    ("enforce_eager", "enforce_eager", bool),
    ("enable_prefix_caching", "prefix_caching", bool),
    ("enable_chunked_prefill", "chunked_prefill", bool),
    ("chunked_prefill_enabled", "chunked_prefill", bool),
)
"""(its name in the line, its name here, what it is)."""


def _of_config(line: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for theirs, ours, kind in _PLAIN:
        match = re.search(rf"(?:^|[ (]){theirs}=('[^']*'|[^,)]*)", line)
        if match is None:
            continue
        text = match[1].strip("'").removeprefix("torch.")
        if text == "None":
            found[ours] = None
        elif kind is bool:
            found[ours] = text == "True"
        else:
            found[ours] = kind(text)
    if (model := re.search(r"(?:^| )model='([^']*)'", line)) is not None:
        found["model"] = model[1]
    found["speculative"] = _speculative(line)
    found["cuda_graphs"] = _cuda_graphs(line, found)
    return found


def _speculative(line: str) -> dict[str, Any] | None:
    """`SpeculativeConfig(method='ngram', model=None, num_spec_tokens=4)` as a dictionary."""
    printed = re.search(r"speculative_config=(\{[^}]*\})", line)
    if printed is not None:
        return _mapping(printed[1])
    match = re.search(r"speculative_config=SpeculativeConfig\(([^)]*)\)", line)
    if match is None:
        return None
    pairs = re.findall(r"(\w+)=('[^']*'|[^,]+)", match[1])
    return {name: _literal(value) for name, value in pairs}


def _cuda_graphs(line: str, found: dict[str, Any]) -> str | None:
    """The mode of CUDA graphs, such as FULL_AND_PIECEWISE; NONE for eager; None where nothing is said (no GPU, older)."""
    match = re.search(r"'?cudagraph_mode'?: <CUDAGraphMode\.(\w+)", line)
    if match is not None:
        return match[1]
    return "NONE" if found.get("enforce_eager") else None


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _mapping(text: str) -> dict[str, Any]:
    """A printed dictionary; of one that holds more than plain values, its plain ones."""
    whole = _literal(text)
    if isinstance(whole, dict):
        return {str(key): value for key, value in whole.items()}
    pairs = re.findall(r"'(\w+)': ('[^']*'|True|False|None|-?[\d.]+)(?=[,}])", text)
    return {key: _literal(value) for key, value in pairs}
