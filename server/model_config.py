"""Reads the figures of a model from its config.json, as transformers writes it; gives a `Model`, opens no weights.

Parameters are counted from the shapes that the config implies, for the decoder-only families whose layers are attention
and a feed-forward network (Llama, Mistral, Qwen, Gemma, Phi, Mixtral and their like, with two matrices GPT-2, GPT-NeoX,
OPT, Falcon). A config that says too little is refused by the key that is missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server.roofline import Model

_TWO_MATRICES = frozenset(
    {"gpt2", "gpt_neox", "gpt_bigcode", "gptj", "opt", "bloom", "falcon", "phi", "starcoder2", "mpt", "stablelm_alpha"}
)
"""Model types whose feed-forward network has an up and a down matrix; all others have a gate as well."""

BYTES_OF_QUANTIZATION: Mapping[str, float] = {
    "fp8": 1.0,
    "int8": 1.0,
    "bitsandbytes": 0.56,
    "awq": 0.56,
    "gptq": 0.56,
    "mxfp4": 0.53,
    "nvfp4": 0.56,
}
"""Bytes of a weight, its share of scales and zero points included (4-bit: a 16-bit scale for each 32 or a group of 128)."""

_BYTES_OF_DTYPE = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "float": 4.0, "half": 2.0}

KNOWN_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama-3.1-8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "torch_dtype": "bfloat16",
    },
    "llama-3.1-70b": {
        "model_type": "llama",
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "torch_dtype": "bfloat16",
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "torch_dtype": "bfloat16",
    },
    "mistral-7b": {
        "model_type": "mistral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32768,
        "torch_dtype": "bfloat16",
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "torch_dtype": "bfloat16",
    },
    "smollm2-135m": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    },
}
"""The configs of some models by a name of ours, for those who have no file at hand."""


def read_model(source: str | Path) -> Model:
    """The model of a config.json, of a folder that holds one, or of a name in `KNOWN_CONFIGS`.

    Raises ValueError, naming what was given and what to give, when there is no such file or it says too little.
    """
    known = KNOWN_CONFIGS.get(str(source).lower())
    if known is not None:
        return model_from_config(known)
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"{source}: no config.json there ({error.strerror}); give a file, its folder, or one of "
            f"{', '.join(KNOWN_CONFIGS)}"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: not a JSON object")
    try:
        return model_from_config(config)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def model_from_config(config: Mapping[str, Any]) -> Model:
    """The figures that a config implies; ValueError names a key that is missing or no number."""
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**config, **text}
    hidden = _number(config, "hidden_size", "n_embd", "d_model")
    layers = _number(config, "num_hidden_layers", "n_layer", "n_layers")
    heads = _number(config, "num_attention_heads", "n_head", "n_heads")
    vocabulary = _number(config, "vocab_size")
    kind = str(config.get("model_type", ""))
    many_queries = bool(config.get("multi_query"))
    kv_heads = _number(config, "num_key_value_heads", "num_kv_heads", default=1 if many_queries else heads)
    head_size = _number(config, "head_dim", default=hidden // heads)
    latent = _number(config, "kv_lora_rank", default=0)
    tied = bool(
        config.get("tie_word_embeddings", kind in {"gpt2", "gemma", "gemma2", "gemma3_text", "bloom", "falcon"})
    )
    width = _number(config, "intermediate_size", "ffn_dim", "n_inner", default=4 * hidden)
    matrices = 2 if kind in _TWO_MATRICES else 3

    embedding = vocabulary * hidden
    dense_layer = matrices * hidden * width
    experts = _number(config, "num_local_experts", "num_experts", "n_routed_experts", default=0)
    expert_layers = 0
    routed = shared = 0
    if experts:
        expert_width = _number(config, "moe_intermediate_size", default=width)
        routed = experts * matrices * hidden * expert_width
        shared = _number(config, "n_shared_experts", default=0) * matrices * hidden * expert_width + experts * hidden
        shared += matrices * hidden * _number(config, "shared_expert_intermediate_size", default=0)
        expert_layers = layers - _number(config, "first_k_dense_replace", default=0)
    attention = _attention(config, hidden, heads, kv_heads, head_size, latent)
    parameters = (
        embedding * (1 if tied else 2)
        + layers * (attention + 2 * hidden)
        + (layers - expert_layers) * dense_layer
        + expert_layers * (routed + shared)
        + hidden
    )
    return Model(
        parameters=parameters,
        layers=layers,
        kv_heads=kv_heads,
        head_size=head_size,
        heads=heads,
        hidden=hidden,
        weight_bytes_per_parameter=_weight_bytes(config),
        kv_bytes_per_value=_BYTES_OF_DTYPE.get(_dtype(config), 2.0),
        lookup_parameters=0 if tied else embedding,
        head_parameters=embedding,
        experts=experts,
        experts_per_token=_number(config, "num_experts_per_tok", default=0) if experts else 0,
        expert_parameters=expert_layers * routed,
        latent_size=latent + _number(config, "qk_rope_head_dim", default=0) if latent else None,
    )


def _attention(config: Mapping[str, Any], hidden: int, heads: int, kv_heads: int, head_size: int, latent: int) -> int:
    """Parameters of the projections of one layer."""
    if latent:
        rope = _number(config, "qk_rope_head_dim", default=0)
        plain = _number(config, "qk_nope_head_dim")
        value = _number(config, "v_head_dim")
        low_rank = _number(config, "q_lora_rank", default=0)
        queries = heads * (plain + rope)
        query = hidden * low_rank + low_rank * queries if low_rank else hidden * queries
        return query + hidden * (latent + rope) + latent * heads * (plain + value) + heads * value * hidden
    query, key_value = heads * head_size, kv_heads * head_size
    # Qwen 2 has biases of queries, keys and values without a key that says so.
    biased = config.get("attention_bias", config.get("model_type") == "qwen2")
    return 2 * hidden * query + 2 * hidden * key_value + (query + 2 * key_value if biased else 0)


def _dtype(config: Mapping[str, Any]) -> str:
    return str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")


def _weight_bytes(config: Mapping[str, Any]) -> float:
    quantization = config.get("quantization_config")
    if isinstance(quantization, Mapping):
        bits = quantization.get("bits", quantization.get("w_bit"))
        if isinstance(bits, int | float):
            # A 16-bit scale, and a zero point of as many bits, for each group of weights.
            group = quantization.get("group_size", 128)
            per_weight = (16 + bits) / group if isinstance(group, int) and group > 0 else 0.0
            return (bits + per_weight) / 8
        method = str(quantization.get("quant_method", ""))
        if method in BYTES_OF_QUANTIZATION:
            return BYTES_OF_QUANTIZATION[method]
    return _BYTES_OF_DTYPE.get(_dtype(config), 2.0)


def _number(config: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} is {value!r}, not a whole number")
        return value
    if default is None:
        raise ValueError(f"{' or '.join(names)} is missing")
    return default
