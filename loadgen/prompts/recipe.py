"""Takes a recipe (pure data) and the numbers of a prompt, gives its text; needs no tokenizer, clock or network.

A prompt is `OPENING`, then words of a pool, each of which costs exactly one token after a space. The first few words,
the *tag*, spell the number of the prompt, so no two prompts of a seed are alike; the rest is pseudo-random.

    the | seven words that spell mix(run, level, k) | random words … up to input_tokens
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadgen.prompts.errors import PromptError

if TYPE_CHECKING:
    from loadgen.wire.exchange import Endpoint

OPENING = "the"
"""Every prompt's first word. Tokenizers treat the first word of a text differently from the others; as it is always the
same one, its price is a constant, and part of `overhead_tokens`."""

RUN_BITS, LEVEL_BITS, K_BITS = 20, 12, 32
"""Together 64: (run, level, k) is one 64-bit number, and the tag spells it out whole."""

MIN_WORDS = 64
"""A smaller pool would need a tag of more than eleven words."""

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class PromptRecipe:
    """All that a worker needs to build prompt (level, k): a few kilobytes of plain data."""

    words: tuple[str, ...]
    """The pool: lower-case ASCII words, each exactly one token after a space. Distinct, at least `MIN_WORDS`."""
    overhead_tokens: int
    """Tokens of a prompt beside its pool words: chat template, special tokens and `OPENING`."""
    input_tokens: int
    """Tokens of every prompt, as the server counts them (`usage.prompt_tokens`)."""
    endpoint: Endpoint
    seed: int
    run: int = 0
    """Tells apart the runs of one seed against one server, whose prefix cache may still know the previous run's."""

    def __post_init__(self) -> None:
        if len(set(self.words)) != len(self.words) or len(self.words) < MIN_WORDS:
            raise ValueError(f"the pool needs at least {MIN_WORDS} distinct words, not {len(set(self.words))}")
        if not all(word.isascii() and word.isalpha() for word in self.words):
            raise ValueError("the words of the pool must be ASCII letters only")
        if not 0 <= self.run < 1 << RUN_BITS:
            raise ValueError(f"run must be from 0 to {(1 << RUN_BITS) - 1}, not {self.run}")
        least = self.overhead_tokens + self.tag_words
        if self.input_tokens < least:
            raise PromptError(
                f"input_tokens is {self.input_tokens}, but the shortest distinct prompt of the {self.endpoint} "
                f"endpoint has {least} tokens: {self.overhead_tokens} for the template, special tokens and the first "
                f"word, and {self.tag_words} that make it differ from every other prompt.",
                f"set workload.input_tokens to {least} or more"
                + (", or use target.endpoint: completions, which has no chat template" * (self.endpoint == "chat"))
                + ".",
            )

    def build(self, level: int, k: int) -> str:
        """The text of prompt `k` of `level`: the user message (chat) or the prompt (completions).

        Depends on seed, run, level and k only, never on who asks. ASCII letters and single spaces: it needs no escaping
        in JSON. Raises ValueError when level is not below 4,096 or k not below 2**32.
        """
        return self.build_bytes(level, k).decode("ascii")

    def build_bytes(self, level: int, k: int) -> bytes:
        """The same text as ASCII bytes, ready to stand between the quotes of a JSON body."""
        if not (0 <= level < 1 << LEVEL_BITS and 0 <= k < 1 << K_BITS):
            raise ValueError(f"no prompt has level {level} and k {k}: level is below 4096 and k below 2**32")
        number = self.run << (LEVEL_BITS + K_BITS) | level << K_BITS | k
        tag = mixed(number ^ self._key)

        pool, size = self._pool, len(self.words)
        parts = [self._opening]
        # Least significant digit first: it takes every value evenly, while the most significant one hardly varies, and
        # what differs early in the prompt differs in the first block of the KV cache.
        rest = tag
        for _ in range(self.tag_words):
            rest, digit = divmod(rest, size)
            parts.append(pool[digit])

        filler = self.input_tokens - self.overhead_tokens - self.tag_words
        # An extendable hash instead of a random generator: no state to set up for each prompt, and the same words on
        # every machine and with every version of numpy.
        stream = hashlib.shake_128(tag.to_bytes(8, "little")).digest(2 * filler)
        drawn: NDArray[np.uint16] = np.frombuffer(stream, "<u2") % np.uint16(size)
        parts.extend(map(pool.__getitem__, drawn.tolist()))
        return b" ".join(parts)

    @cached_property
    def tag_words(self) -> int:
        """Words that spell a 64-bit number in base len(words): seven for a pool of 1,024."""
        digits, reach = 0, 1
        while reach <= _MASK:
            digits, reach = digits + 1, reach * len(self.words)
        return digits

    @cached_property
    def _key(self) -> int:
        return int.from_bytes(hashlib.blake2b(str(self.seed).encode(), digest_size=8).digest(), "little")

    @cached_property
    def _pool(self) -> list[bytes]:
        return [word.encode("ascii") for word in self.words]

    @cached_property
    def _opening(self) -> bytes:
        return OPENING.encode("ascii")

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON and msgpack carry; `from_dict` reads it back."""
        return {
            "words": list(self.words),
            "overhead_tokens": self.overhead_tokens,
            "input_tokens": self.input_tokens,
            "endpoint": self.endpoint,
            "seed": self.seed,
            "run": self.run,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PromptRecipe:
        """The recipe that `to_dict` described. Raises KeyError or ValueError when it is not one."""
        return cls(
            words=tuple(data["words"]),
            overhead_tokens=data["overhead_tokens"],
            input_tokens=data["input_tokens"],
            endpoint=data["endpoint"],
            seed=data["seed"],
            run=data["run"],
        )


def mixed(number: int) -> int:
    """A bijection of the 64-bit numbers that leaves neighbours far apart (the finalizer of SplitMix64, Steele 2014)."""
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & _MASK
    return number ^ number >> 31
