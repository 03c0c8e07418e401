"""Takes a model's shape and a GPU's memory, gives the bytes of a KV cache and how many sequences fit; pure."""

from __future__ import annotations

import math
from typing import Any

from server.roofline import Gpu, Model, kv_bytes, kv_capacity_tokens


def sequences_that_fit(model: Model, gpu: Gpu, *, length: float, memory_utilization: float) -> int | None:
    """Sequences of `length` tokens beside the weights; None where the KV cache or the memory is not known."""
    if not length or not model.kv_bytes_per_token or math.isinf(gpu.memory_bytes):
        return None
    return int(kv_capacity_tokens(model, gpu, memory_utilization=memory_utilization) // length)


def kv_cache(model: Model, *, length: int, batch: int, gpu: Gpu | None, memory_utilization: float) -> dict[str, Any]:
    """{bytes_per_token, bytes_per_sequence, bytes, tokens_that_fit, sequences_that_fit}; the last two None without a memory.

    What fits is what `memory_utilization` of the memory leaves beside the weights. Activations and CUDA graphs take some
    of it: a real server holds fewer.
    """
    fit = sequences = None
    if gpu is not None and not math.isinf(gpu.memory_bytes):
        fit = kv_capacity_tokens(model, gpu, memory_utilization=memory_utilization)
        sequences = sequences_that_fit(model, gpu, length=length, memory_utilization=memory_utilization)
    return {
        "bytes_per_token": round(kv_bytes(model, length=1)),
        "bytes_per_sequence": round(kv_bytes(model, length=length)),
        "bytes": round(kv_bytes(model, length=length, batch=batch)),
        "length": length,
        "batch": batch,
        "weight_bytes": round(model.weight_bytes) or None,
        "tokens_that_fit": fit,
        "sequences_that_fit": sequences,
    }
