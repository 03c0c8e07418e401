"""Mooncake traces: when a request came, its lengths, and an id for each block of its prompt; the prompts are made up.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …]}        timestamp in ms

A block is 512 tokens, or as many as the trace's maker says, and the last one what is left. Requests with the same leading ids have the same leading tokens.
Format: github.com/kvcache-ai/Mooncake, FAST'25 traces.
"""

from __future__ import annotations

from typing import Any

from loadgen.datasets.errors import Place
from loadgen.datasets.fields import instant_ms, parsed_object, required_count, shown
from loadgen.datasets.rows import LeftOut, Row

BLOCK_TOKENS = 512
_INPUT, _OUTPUT = ("input_length", "input_tokens"), ("output_length", "output_tokens")


def looks_like(row: dict[str, Any]) -> bool:
    """Whether a first line is of this format."""
    return any(key in row for key in _INPUT) or "hash_ids" in row


def parse(data: bytes, place: Place, *, block_tokens: int = BLOCK_TOKENS) -> Row | LeftOut:
    """The row of one line. Raises DatasetError."""
    row = parsed_object(data, place)
    timestamp_s = instant_ms(row, place)
    input_tokens, output_tokens = required_count(row, _INPUT, place), required_count(row, _OUTPUT, place)
    ids = row.get("hash_ids")
    if ids is None:
        ids = []
    if not isinstance(ids, list) or any(type(block) is not int or not 0 <= block < 1 << 63 for block in ids):
        raise place.refusal(
            f"hash_ids is {shown(ids)}, not a list of whole numbers."
            if not isinstance(ids, list)
            else "hash_ids holds something that is not a whole number, zero or more.",
            "It has one id for each block of the prompt.",
        )
    blocks = -(-input_tokens // block_tokens)
    if len(ids) > blocks:
        raise place.refusal(
            f"hash_ids has {len(ids)} ids, but {input_tokens} tokens are {blocks} blocks of {block_tokens}.",
            "Set workload.dataset.block_tokens to the tokens of the trace's blocks.",
        )
    if not input_tokens or not output_tokens:
        return LeftOut("a prompt of no tokens" if not input_tokens else "an answer of no tokens")
    return Row(
        place.line or 0,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        timestamp_s=timestamp_s,
        hash_ids=tuple(ids),
    )
