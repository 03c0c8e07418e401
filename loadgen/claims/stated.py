"""The conditions without which nobody can repeat a figure, and which of them a claim leaves out; values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that a figure depends on."""

    name: str
    why: str
    """What it changes, to be said where it is missing."""


CONDITIONS = (
    Condition("model and weights", "the bytes that every token reads"),
    Condition("precision and quantization", "halves or quarters those bytes, and changes the answers"),
    Condition("GPU", "sets the bandwidth, the memory and the arithmetic"),
    Condition("number of GPUs", "multiplies all three"),
    Condition("engine and version", "the same GPU differs by a factor between engines and releases"),
    Condition("concurrency and batch", "tells one user's speed from the sum of all"),
    Condition("input length", "prompts take time of their own, and lengthen the KV cache that is read"),
    Condition("output length", "short answers are mostly prompt"),
    Condition("max_model_len", "decides how many sequences fit into the KV cache"),
    Condition("what tok/s means", "output tokens, or input and output together"),
    Condition("speculative decoding", "several tokens a step, depending on the text"),
    Condition("prefix caching", "prompts that were seen before cost nothing"),
    Condition("CUDA graphs", "without them small batches wait for the host"),
)


def missing(stated: Mapping[str, object]) -> list[Condition]:
    """The conditions that `stated` has no value for. KeyError for a name that is none of them."""
    names = {condition.name for condition in CONDITIONS}
    if unknown := set(stated) - names:
        raise KeyError(f"no such conditions: {', '.join(sorted(unknown))}")
    return [condition for condition in CONDITIONS if stated.get(condition.name) is None]
