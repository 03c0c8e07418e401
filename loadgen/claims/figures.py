"""Turns what the command line says of a model and a GPU into the roofline's figures; ValueError says what is wrong or missing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from loadgen.claims.quantities import dtype_bytes, parse_bandwidth, parse_bytes, parse_count
from server.model_config import BYTES_OF_QUANTIZATION, read_model
from server.roofline import Gpu, Model, gpu

_SHARES = 10_000
"""Into so many parts a model with active parameters is cut, as if all of it were experts."""


def model_figures(
    *,
    params: str | None,
    active_params: str | None = None,
    config: str | None = None,
    layers: int | None = None,
    kv_heads: int | None = None,
    head_size: int | None = None,
    dtype: str | None = None,
    quantization: str | None = None,
    kv_dtype: str | None = None,
    weights: bool = True,
) -> tuple[Model, bool]:
    """(the model, whether its KV cache is known). A config gives what is not given otherwise.

    `weights`: whether they must be known; else a model without parameters counts as one that takes no memory.
    """
    shape = (layers, kv_heads, head_size)
    if config is not None:
        model = read_model(config)
        if params is not None:
            model = replace(model, parameters=round(_read("--params", parse_count, params)))
    elif params is None and weights:
        raise ValueError("nothing says how many parameters there are: give --params 70B, or --config config.json")
    else:
        parameters = 0 if params is None else round(_read("--params", parse_count, params))
        model = Model(parameters=parameters, layers=0, kv_heads=0, head_size=0)
    if any(shape) and not all(shape) and config is None:
        raise ValueError("the KV cache needs all three of --layers, --kv-heads and --head-size, or --config")
    model = replace(
        model,
        layers=layers or model.layers,
        kv_heads=kv_heads or model.kv_heads,
        head_size=head_size or model.head_size,
        latent_size=None if any(shape) else model.latent_size,
    )
    if active_params is not None:
        model = _with_active(model, _read("--active-params", parse_count, active_params))
    if dtype is not None:
        model = replace(model, weight_bytes_per_parameter=dtype_bytes(dtype), kv_bytes_per_value=dtype_bytes(dtype))
    if quantization is not None and quantization.lower() != "none":
        model = replace(model, weight_bytes_per_parameter=_quantized(quantization))
    if kv_dtype is not None:
        model = replace(model, kv_bytes_per_value=dtype_bytes(kv_dtype))
    return model, bool(model.kv_values_per_token)


def _with_active(model: Model, active: float) -> Model:
    """A mixture of experts of which only the totals are known: as if every weight belonged to an expert."""
    if not 0 < active <= model.parameters:
        raise ValueError(f"--active-params is {active:.3g}, more than all {model.parameters:.3g} parameters")
    return replace(
        model,
        lookup_parameters=0,
        head_parameters=0,
        experts=_SHARES,
        experts_per_token=max(1, round(active / model.parameters * _SHARES)),
        expert_parameters=model.parameters,
    )


def _quantized(name: str) -> float:
    known = {**BYTES_OF_QUANTIZATION, "int4": 0.5, "fp4": 0.5}
    size = known.get(name.lower())
    if size is None:
        raise ValueError(f"--quantization {name!r} is none of none, {', '.join(known)}")
    return size


def gpu_figures(*, name: str | None, bandwidth: str | None, memory: str | None = None, count: int = 1) -> Gpu:
    """`count` GPUs as one: a preset's figures, or a bandwidth alone, with what is given in place of them."""
    if name is None and bandwidth is None:
        raise ValueError("nothing says how fast the memory is: give --gpu H100, or --bandwidth 3.35TB/s")
    known = Gpu("the GPU", math.inf, math.inf, math.inf) if name is None else gpu(name)
    known = replace(
        known,
        bandwidth_bytes_s=known.bandwidth_bytes_s
        if bandwidth is None
        else _read("--bandwidth", parse_bandwidth, bandwidth),
        memory_bytes=known.memory_bytes if memory is None else _read("--memory", parse_bytes, memory),
    )
    return known.times(count)


def _read(option: str, parse: Callable[[str], float], text: str) -> float:
    """The value of an option, whose name begins the ValueError of one that cannot be."""
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{option} {error}") from None
