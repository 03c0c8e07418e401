"""What a script told, as figures with their conditions: each says whose speed it is. Pure; measures nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from loadgen.errors import LoadgenError

SCHEMA_VERSION = 1


def result(
    engine: str,
    asked: Mapping[str, Any],
    loaded: Mapping[str, Any],
    passes: Sequence[Mapping[str, Any]],
    *,
    files: Mapping[str, Any] | None,
    host: Mapping[str, Any],
) -> dict[str, Any]:
    """A baseline as it is written to a file.

    `asked`: model, input_tokens, output_tokens, batch, warmup, seed. `passes` include the warm-up, which is left out of the
    figures. `files`: what the model's own files say. Raises LoadgenError when a pass has other tokens than were asked for.
    """
    batch, wanted = asked["batch"], asked["output_tokens"]
    for one in passes:
        if one["output_tokens"] != batch * wanted:
            raise LoadgenError(
                f"{engine} made {one['output_tokens']} tokens where {batch} x {wanted} were asked for.",
                hint="the input and the output together must fit into the model's length",
            )
    effective = dict(loaded["effective"])
    quantization = effective.get("quantization") or (files or {}).get("quantization")
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "baseline",
        "engine": engine,
        "speed_of": "single-stream" if batch == 1 else "aggregate",
        "conditions": {
            "model": asked["model"],
            "precision": _precision(effective, quantization),
            **effective,
            "quantization": quantization,
            "input_tokens": asked["input_tokens"],
            "output_tokens": wanted,
            "batch": batch,
            "prompts": "random token ids, no two alike",
            "decoding": "greedy, as many tokens as asked",
            "seed": asked["seed"],
            "warmup_passes": asked["warmup"],
            "passes": len(passes) - asked["warmup"],
            "model_files": files,
            "versions": dict(loaded["versions"]),
            "host": dict(host),
        },
        "load_s": loaded["load_s"],
        "figures": _figures(passes[asked["warmup"] :], asked),
    }


def _precision(effective: Mapping[str, Any], quantization: str | None) -> str | None:
    parts = [effective.get("dtype"), f"weights {quantization}" if quantization else None]
    cache = effective.get("kv_cache_dtype")
    parts.append(f"KV cache {cache}" if cache not in (None, "auto", effective.get("dtype")) else None)
    return ", ".join(part for part in parts if part) or None


def _figures(passes: Sequence[Mapping[str, Any]], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Each with median, low, high and every pass; None where one token is all that was made, so that nothing was decoded."""
    batch, more = asked["batch"], asked["output_tokens"] - 1
    prompt, output = batch * asked["input_tokens"], batch * asked["output_tokens"]
    decoded_s = [one["total_s"] - one["prefill_s"] for one in passes]
    # Where prefill is a pass of its own, noise may make it the longer one: then nothing is known of decoding.
    known = more > 0 and all(seconds > 0 for seconds in decoded_s)
    return {
        "ttft_ms": _spread(one["prefill_s"] * 1e3 for one in passes),
        "prefill_tok_s": _spread(prompt / one["prefill_s"] for one in passes),
        "tpot_ms": _spread(seconds * 1e3 / more for seconds in decoded_s) if known else None,
        "decode_tok_s_per_request": _spread(more / seconds for seconds in decoded_s) if known else None,
        "decode_tok_s": _spread(batch * more / seconds for seconds in decoded_s) if known else None,
        "output_tok_s": _spread(output / one["total_s"] for one in passes),
        "total_s": _spread(one["total_s"] for one in passes),
    }


def _spread(values: Iterable[float]) -> dict[str, Any]:
    every = list(values)
    return {"median": median(every), "low": min(every), "high": max(every), "passes": every}
