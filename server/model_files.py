"""What a model's own files say of it: size, number formats, whether it is quantized. Reads headers, never weights."""

from __future__ import annotations

import json
import os
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any

_LONGEST_HEADER = 100 << 20
"""Of a safetensors file; the format's own limit."""
_PACKED = frozenset({"I32", "U32", "U8"})
"""Formats in which one element may hold several weights, so that elements are not parameters."""
_TELL_TALES = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
    "recipe.yaml": "llm-compressor",
    "adapter_config.json": None,
}
"""Files whose presence says how a model was made; None for one that says something else."""
_GGUF_KIND = re.compile(r"[-_.](I?Q\d\w*|BF16|F16|F32)\.gguf$", re.IGNORECASE)


def find_model(name: str) -> Path | None:
    """The folder of a model that is named by its path or by its name on the hub; None where it is not on this host."""
    path = Path(name).expanduser()
    if path.is_dir() or path.suffix == ".gguf":
        return path if path.exists() else None
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return None
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    kept = hub / f"models--{name.replace('/', '--')}"
    try:
        snapshot = kept / "snapshots" / (kept / "refs" / "main").read_text().strip()
    except OSError:
        return None
    return snapshot if snapshot.is_dir() else None


def read_model(path: Path) -> dict[str, Any]:
    """Facts about a model's folder (or GGUF file); a fact that its files do not tell is None.

    `parameters` counts elements of tensors, None where a format packs several weights into one; `weight_bytes` is what
    they take in the files; `dtypes` are bytes by number format of safetensors.
    """
    folder, names = (path, sorted(one.name for one in path.iterdir())) if path.is_dir() else (path.parent, [path.name])
    config = _json(folder / "config.json") if path.is_dir() else {}
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else None
    body = {**config, **text} if text else config
    dtypes, elements = _tensors([folder / name for name in names if name.endswith(".safetensors")])
    ggufs = [name for name in names if name.endswith(".gguf")]
    others = [name for name in names if name.endswith((".bin", ".pt", ".pth")) and "training" not in name]
    weight_bytes = sum(dtypes.values()) or sum((folder / name).stat().st_size for name in (*ggufs, *others)) or None
    method, evidence = _quantization(config, folder, names, dtypes)
    return {
        "architecture": next(iter(config.get("architectures") or ()), None),
        "dtype": config.get("dtype") or config.get("torch_dtype"),
        "layers": body.get("num_hidden_layers"),
        "hidden_size": body.get("hidden_size"),
        "attention_heads": body.get("num_attention_heads"),
        "kv_heads": body.get("num_key_value_heads") or body.get("num_attention_heads"),
        "head_dim": _head_dim(body),
        "max_position_embeddings": body.get("max_position_embeddings"),
        "parameters": None if not elements or _PACKED & set(dtypes) else elements,
        "weight_bytes": weight_bytes,
        "dtypes": dict(dtypes) or None,
        "quantized": None if not names else method is not None,
        "quantization": method,
        "quantization_evidence": evidence,
    }


def kv_bytes_per_token(model: dict[str, Any], *, bytes_per_value: int) -> int | None:
    """Keys and values of one token over all layers, for attention that keeps every head (not MLA or a sliding window)."""
    sizes = [model[key] for key in ("layers", "kv_heads", "head_dim")]
    if any(size is None for size in sizes):
        return None
    layers, heads, dim = sizes
    return int(2 * layers * heads * dim * bytes_per_value)


def _head_dim(config: dict[str, Any]) -> int | None:
    if config.get("head_dim"):
        return int(config["head_dim"])
    if config.get("hidden_size") and config.get("num_attention_heads"):
        return int(config["hidden_size"]) // int(config["num_attention_heads"])
    return None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _tensors(files: list[Path]) -> tuple[Counter[str], int]:
    """(bytes by format, elements) of safetensors files, from the JSON that each begins with."""
    held: Counter[str] = Counter()
    elements = 0
    for path in files:
        for name, tensor in _header(path).items():
            if name == "__metadata__" or not isinstance(tensor, dict):
                continue
            begin, end = tensor["data_offsets"]
            held[str(tensor["dtype"])] += end - begin
            count = 1
            for size in tensor["shape"]:
                count *= size
            elements += count
    return held, elements


def _header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _LONGEST_HEADER:
                return {}
            found = json.loads(file.read(length))
    except (OSError, ValueError, struct.error):
        return {}
    return found if isinstance(found, dict) else {}


def _quantization(
    config: dict[str, Any], folder: Path, names: list[str], dtypes: Counter[str]
) -> tuple[str | None, list[str]]:
    """(the method or None, where it shows)."""
    method: str | None = None
    evidence: list[str] = []
    asked = config.get("quantization_config") or config.get("compression_config")
    if isinstance(asked, dict):
        method = str(asked.get("quant_method") or "unknown")
        bits = asked.get("bits") or asked.get("w_bit")
        evidence.append(f"config.json: quant_method {method}" + (f", {bits} bits" if bits else ""))
    for name, kind in _TELL_TALES.items():
        if name in names:
            evidence.append(name)
            if name == "hf_quant_config.json":
                inner = _json(folder / name).get("quantization", {})
                kind = str(inner.get("quant_algo") or kind) if isinstance(inner, dict) else kind
            if kind is not None and name != "recipe.yaml":  # a recipe may also have pruned
                method = method or kind
    for name in names:
        if name.endswith(".gguf"):
            found = _GGUF_KIND.search(name)
            evidence.append(name)
            if found is None or not found[1].upper().endswith(("F16", "F32")):
                method = method or "gguf"
    packed = sorted({one for one in dtypes if one in _PACKED or one.startswith(("F8", "I8"))})
    if packed:
        evidence.append(f"safetensors: {', '.join(packed)}")
        method = method or "unknown"
    return method, evidence
