"""Turns what the settings say of model and GPU into the figures of the roofline; takes values, gives `Model` and `Gpu`."""

from __future__ import annotations

from dataclasses import replace

from server.model_config import BYTES_OF_QUANTIZATION, read_model
from server.roofline import GB, GIB, TERA, Gpu, Model, gpu


def chosen_model(
    source: str | None, *, quantization: str | None, weight_bytes_per_parameter: float | None, kv_cache_dtype: str
) -> Model | None:
    """The model of `source`, its weights and cache as chosen; None without one. ValueError says what is wrong."""
    if source is None:
        return None
    model = read_model(source)
    if quantization is not None:
        if quantization.lower() not in BYTES_OF_QUANTIZATION:
            raise ValueError(f"quantization {quantization!r} is none of {', '.join(BYTES_OF_QUANTIZATION)}")
        model = replace(model, weight_bytes_per_parameter=BYTES_OF_QUANTIZATION[quantization.lower()])
    if weight_bytes_per_parameter is not None:
        model = replace(model, weight_bytes_per_parameter=weight_bytes_per_parameter)
    if kv_cache_dtype == "fp8":
        model = replace(model, kv_bytes_per_value=1.0)
    return model


def chosen_gpu(
    name: str | None, *, bandwidth_gb_s: float | None, tflops: float | None, memory_gib: float | None, count: int
) -> Gpu | None:
    """The named GPU with the given figures in place of its own, `count` of them; None when nothing is given.

    Raises ValueError for an unknown name, and for some of the figures without a name.
    """
    figures = (bandwidth_gb_s, tflops, memory_gib)
    if name is not None:
        known = gpu(name)
        return Gpu(
            known.name,
            known.bandwidth_bytes_s if bandwidth_gb_s is None else bandwidth_gb_s * GB,
            known.flops_s if tflops is None else tflops * TERA,
            known.memory_bytes if memory_gib is None else memory_gib * GIB,
        ).times(count)
    if bandwidth_gb_s is None or tflops is None or memory_gib is None:
        if any(figure is not None for figure in figures):
            raise ValueError("a GPU without a name needs gpu_bandwidth_gb_s, gpu_tflops and gpu_memory_gib")
        return None
    return Gpu("custom", bandwidth_gb_s * GB, tflops * TERA, memory_gib * GIB).times(count)
