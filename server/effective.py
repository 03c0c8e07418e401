"""What a server really runs with: asks it, reads its log and its model's files; gives one dictionary, says where from.

A setting that nobody told is None, never a default; nothing here raises because a server lacks something.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from server.engine_log import read_log
from server.model_files import find_model, kv_bytes_per_token, read_model

FIELDS = (
    "version",
    "model",
    "device",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "block_size",
    "kv_cache_tokens",
    "kv_cache_blocks",
    "kv_cache_bytes",
    "max_concurrency",
    "max_concurrency_tokens",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefix_caching",
    "chunked_prefill",
    "speculative",
    "enforce_eager",
    "cuda_graphs",
    "attention_backend",
    "seed",
)
"""Every setting that is looked for, by its name in the dictionary."""

_ANSWER_S = 5.0
_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
_FLAGS = {"enable_prefix_caching": "prefix_caching", "enable_chunked_prefill": "chunked_prefill"}
"""Flags of vLLM that are called otherwise here."""
_OF_THIS_START = ("host", "port", "served_model_name")
"""Flags that differ from start to start and settle nothing."""
_SAME_DTYPE = {"half": "float16", "float": "float32"}

Get = Callable[[str], str]
"""Gives the body that a path of the server answers; raises OSError."""


def getter(
    base_url: str, *, opener: urllib.request.OpenerDirector | None = None, headers: Mapping[str, str] | None = None
) -> Get:
    """Asks a server over HTTP; `opener` without one goes straight to it, whatever proxy the environment names."""
    opener = opener or urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(path: str) -> str:
        request = urllib.request.Request(base_url + path, headers=dict(headers or {}))
        with opener.open(request, timeout=_ANSWER_S) as answer:
            return str(answer.read().decode("utf-8", "replace"))

    return get


def read_effective(get: Get, *, log: str | None = None, local: bool = False) -> dict[str, Any]:
    """A value for each of `FIELDS`, and `served_models`, `model_files`, `sources` (field: where it was found) and `flags`
    (those that vLLM was given, as it understood them).

    `log`: what the server has written, where it is ours. `local`: whether its files may be looked for on this host.
    What the running server answers goes before what it logged when it started.
    """
    found: dict[str, Any] = dict.fromkeys(FIELDS)
    sources: dict[str, str] = {}

    def take(values: Mapping[str, Any], source: str) -> None:
        for name, value in values.items():
            if name in found and (value is not None or found[name] is None):
                found[name] = value
                sources[name] = source

    of_log = read_log(log) if log is not None else {}
    take(of_log, "log")
    models, served = _models(get)
    take(models, "/v1/models")
    take(_version(get), "/version")
    take(_metrics(get), "/metrics")
    files = None
    if local and found["model"] is not None and (path := find_model(str(found["model"]))) is not None:
        files = read_model(path)
        if found["kv_cache_bytes"] is None and (size := _kv_bytes(found, files)) is not None:
            take({"kv_cache_bytes": size}, "computed from config.json")
    # A field that everybody left open has no source.
    sources = {name: source for name, source in sources.items() if found[name] is not None or source == "log"}
    flags = of_log.get("flags")
    if flags is not None:
        flags = {key: value for key, value in flags.items() if key not in _OF_THIS_START}
    return {**found, "served_models": served, "model_files": files, "sources": sources, "flags": flags}


def _models(get: Get) -> tuple[dict[str, Any], list[str]]:
    listed = _json(get, "/v1/models")
    entries = [one for one in listed.get("data") or () if isinstance(one, dict)]
    served = [str(one.get("id")) for one in entries]
    first = entries[0] if entries else {}
    found: dict[str, Any] = {"model": first.get("root") or first.get("id")}
    if isinstance(first.get("max_model_len"), int):
        found["max_model_len"] = first["max_model_len"]
    return (found, served) if entries else ({}, [])


def _version(get: Get) -> dict[str, Any]:
    version = _json(get, "/version").get("version")
    return {"version": str(version)} if version else {}


def _metrics(get: Get) -> dict[str, Any]:
    """From the labels of vllm:cache_config_info, of the first engine."""
    try:
        text = get("/metrics")
        lines = [line for line in text.splitlines() if line.startswith("vllm:cache_config_info{")]
        families = text_string_to_metric_families("\n".join([*lines[:1], ""]))
        labels = next((sample.labels for family in families for sample in family.samples), {})
    except (OSError, ValueError):
        return {}
    found: dict[str, Any] = {}
    for theirs, ours, kind in (
        ("num_gpu_blocks", "kv_cache_blocks", int),
        ("block_size", "block_size", int),
        ("kv_cache_size_tokens", "kv_cache_tokens", int),
        ("kv_cache_max_concurrency", "max_concurrency", float),
        ("gpu_memory_utilization", "gpu_memory_utilization", float),
        ("cache_dtype", "kv_cache_dtype", str),
        ("enable_prefix_caching", "prefix_caching", lambda text: text == "True"),
    ):
        value = labels.get(theirs)
        if value not in (None, "", "None"):
            try:
                found[ours] = kind(value)
            except ValueError:
                continue
    if "kv_cache_blocks" in found and "block_size" in found:
        found.setdefault("kv_cache_tokens", found["kv_cache_blocks"] * found["block_size"])
    return found


def _json(get: Get, path: str) -> dict[str, Any]:
    try:
        found = json.loads(get(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _kv_bytes(found: Mapping[str, Any], files: dict[str, Any]) -> int | None:
    kind = found["kv_cache_dtype"]
    dtype = str(found["dtype"] if kind in (None, "auto") else kind)
    each = kv_bytes_per_token(files, bytes_per_value=_BYTES[dtype]) if dtype in _BYTES else None
    return None if each is None or found["kv_cache_tokens"] is None else int(each * found["kv_cache_tokens"])


def precision_in_words(effective: Mapping[str, Any]) -> str | None:
    """The number formats in a phrase, such as `bfloat16, weights awq, KV cache fp8`; None where the server does not tell."""
    files = effective.get("model_files") or {}
    quantization = effective.get("quantization") or files.get("quantization")
    cache = effective.get("kv_cache_dtype")
    parts = [effective.get("dtype") or ("" if quantization else None)]
    if parts[0] is None:
        return None
    parts += [f"weights {quantization}"] if quantization else []
    parts += [f"KV cache {cache}"] if cache not in (None, "auto") else []
    return ", ".join(part for part in parts if part)


def mismatches(asked: Mapping[str, Any], effective: Mapping[str, Any]) -> list[str]:
    """What the server runs with although something else was asked of it, a phrase each; empty when all is as asked."""
    wrong = []
    for key, wanted in asked.items():
        there = _there(key, effective)
        if there is not None and not _open(wanted) and not _same(key, wanted, there):
            wrong.append(f"{key} was asked to be {_shown(wanted)} and is {_shown(there)}")
    return wrong


def unconfirmed(asked: Mapping[str, Any], effective: Mapping[str, Any]) -> list[str]:
    """Keys that were asked for and of which the server says nothing."""
    return [key for key, wanted in asked.items() if not _open(wanted) and _there(key, effective) is None]


def _there(key: str, effective: Mapping[str, Any]) -> Any:
    value = effective.get(_FLAGS.get(key, key)) if _FLAGS.get(key, key) in FIELDS else None
    understood = effective.get("flags") or {}
    return value if value is not None else understood.get(key)


def _open(wanted: Any) -> bool:
    """Whether the server was left to choose."""
    return wanted is None or wanted == "auto" or wanted == -1


def _same(key: str, wanted: Any, there: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(there, bool):
        return bool(wanted) == bool(there)
    if key == "model":  # a folder may be named in more than one way
        return str(wanted).rstrip("/").rpartition("/")[2] == str(there).rstrip("/").rpartition("/")[2]
    if isinstance(wanted, Mapping | list | tuple) or isinstance(there, Mapping | list | tuple):
        return True  # defaults are filled in there: no two prints are alike
    first, second = _number(wanted), _number(there)
    if first is not None and second is not None:
        return abs(first - second) <= 1e-9 * max(abs(first), abs(second))
    one, other = (_SAME_DTYPE.get(str(value), str(value)) for value in (wanted, there))
    return one == other or one.replace("_", "-").lower() == other.replace("_", "-").lower()


def _number(value: Any) -> float | None:
    """A number, also as vLLM lets people write one: 32k is 32,000, 32K is 32,768."""
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmMgG]?)", str(value).strip())
    if match is None:
        return None
    scale = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]]
    return float(match[1]) * scale


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
