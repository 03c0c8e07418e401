"""Takes a judged claim, gives the lines that people read, the arithmetic among them; computes nothing new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loadgen.claims.claim import Claim
from loadgen.claims.quantities import bytes_text, count_text
from loadgen.claims.stated import CONDITIONS, Condition
from loadgen.stats.digits import digits
from server.roofline import MEMORY_UTILIZATION, kv_bytes


def claim_lines(claim: Claim, judged: dict[str, Any], missing: Sequence[Condition]) -> list[str]:
    """The verdict first, then why, then what is missing."""
    nature = "" if judged["nature"] is None else f", as {_nature(judged['nature'])}"
    return [
        f"{digits(claim.tok_s)} tokens/s: {judged['verdict'].upper()}{nature}.",
        *(f"  {reason}" for reason in judged["reasons"]),
        "",
        *_arithmetic(claim, judged),
        "",
        *_missing(missing),
    ]


def _nature(nature: str) -> str:
    return "the speed of one request" if nature == "single stream" else "the sum of many requests"


def _arithmetic(claim: Claim, judged: dict[str, Any]) -> Iterator[str]:
    model, batch = claim.model, claim.running
    read, size = model.parameters_read(1), model.weight_bytes_per_parameter
    yield f"weights that one token reads   {count_text(read)} parameters x {size:g} bytes = {bytes_text(read * size)}"
    if not claim.kv_known:
        yield "KV cache                       left out: give --layers, --kv-heads and --head-size, or --config"
    elif not claim.length:
        each = kv_bytes(model, length=1)
        yield f"KV cache                       {bytes_text(each)} a token; left out: give --input-len and --output-len"
    else:
        one = kv_bytes(model, length=1) * claim.length
        yield (
            f"KV cache of one request        2 x {model.layers} layers x {model.kv_heads} heads x {model.head_size} x "
            f"{claim.length:g} tokens x {model.kv_bytes_per_value:g} bytes = {bytes_text(one)}"
            if model.latent_size is None
            else f"KV cache of one request        {bytes_text(one)} at {claim.length:g} tokens (latent attention)"
        )
    if claim.tokens_per_step > 1:
        yield f"speculative decoding           at most {claim.tokens_per_step:.3g} tokens a step"
    step = claim.tokens_per_step * claim.gpu.bandwidth_bytes_s / judged["single_stream_ceiling"]
    more = "" if claim.tokens_per_step == 1 else f" x {claim.tokens_per_step:.3g} tokens"
    yield (
        f"ceiling of one request         {bytes_text(claim.gpu.bandwidth_bytes_s)}/s / {bytes_text(step)}{more} "
        f"= {digits(judged['single_stream_ceiling'])} tokens/s"
    )
    if batch > 1:
        yield (
            f"{f'ceiling of {batch} requests':<30} one step reads {bytes_text(judged['bytes_per_step'])} and gives {batch} "
            f"tokens: {digits(judged['ceiling'])} tokens/s together"
        )
    yield f"claimed over the ceiling       {digits(judged['share'], 3)}"
    if judged["least_batch"] is not None and judged["least_batch"] > batch:
        yield f"fewest requests at once        {judged['least_batch']:,}"
    if judged["most_that_fit"] is not None:
        yield f"requests that fit into memory  {judged['most_that_fit']:,}, were all of it used (vLLM takes {MEMORY_UTILIZATION:.0%} unless told otherwise)"


def _missing(missing: Sequence[Condition]) -> Iterator[str]:
    if not missing:
        yield "Every condition that makes the figure repeatable is stated."
        return
    yield f"Not stated, so nobody can repeat it ({len(missing)} of {len(CONDITIONS)}):"
    width = max(len(condition.name) for condition in missing)
    yield from (f"  {condition.name:<{width}}  {condition.why}" for condition in missing)
