"""Takes a recipe (pure data) and the numbers of a prompt, gives its text; needs no tokenizer, clock or network.

A prompt is `OPENING`, then words of a pool, each of which costs exactly one token after a space. The first few words,
the *tag*, spell the number of the prompt, so no two prompts of a seed are alike; the rest is pseudo-random.

    the | shared words, if any | seven words that spell mix(prompt_set, level, k) | random words … up to input_tokens
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

SET_BITS, LEVEL_BITS, K_BITS = 20, 12, 32
"""Together 64: (prompt_set, level, k) is one 64-bit number, and the tag spells it out whole."""

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
    endpoint: Endpoint
    seed: int
    prompt_set: int = 0
    """Tells apart the runs of one seed against one server, whose prefix cache may still know the previous run's."""

    def __post_init__(self) -> None:
        if len(set(self.words)) != len(self.words) or len(self.words) < MIN_WORDS:
            raise ValueError(f"the pool needs at least {MIN_WORDS} distinct words, not {len(set(self.words))}")
        if not all(word.isascii() and word.isalpha() for word in self.words):
            raise ValueError("the words of the pool must be ASCII letters only")
        if not 0 <= self.prompt_set < 1 << SET_BITS:
            raise ValueError(f"prompt_set must be from 0 to {(1 << SET_BITS) - 1}, not {self.prompt_set}")

    def least_tokens(self, prefix_tokens: int = 0) -> int:
        """Tokens of the shortest prompt that differs from every other one, behind a prefix of so many tokens."""
        return self.overhead_tokens + max(0, prefix_tokens - 1) + self.tag_words

    def check_length(self, input_tokens: int, *, prefix_tokens: int = 0, key: str = "workload.input_tokens") -> None:
        """Raises `PromptError`, with the arithmetic, when no distinct prompt is as short as `input_tokens`."""
        least = self.least_tokens(prefix_tokens)
        if input_tokens >= least:
            return
        shared = f", {prefix_tokens - 1} for the rest of the shared prefix" if prefix_tokens > 1 else ""
        raise PromptError(
            f"input_tokens is {input_tokens}, but the shortest distinct prompt of the {self.endpoint} endpoint has "
            f"{least} tokens: {self.overhead_tokens} for the template, special tokens and the first word{shared}, and "
            f"{self.tag_words} that make it differ from every other prompt.",
            f"set {key} to {least} or more"
            + (", or use target.endpoint: completions, which has no chat template" * (self.endpoint == "chat"))
            + ".",
        )

    def build(self, level: int, k: int, input_tokens: int, prefix: bytes | None = None) -> str:
        """The text of prompt `k` of `level`: the user message (chat) or the prompt (completions).

        It has `input_tokens` tokens as the server counts them (`usage.prompt_tokens`), `prefix` among them, which is
        one that `prefix` made. Depends on its arguments and the recipe only, never on who asks. ASCII letters and single
        spaces: it needs no escaping in JSON. Raises ValueError when level is not below 4,096 or k not below 2**32, and
        `PromptError` when it would have to be longer.
        """
        return self.build_bytes(level, k, input_tokens, prefix).decode("ascii")

    def build_bytes(self, level: int, k: int, input_tokens: int, prefix: bytes | None = None) -> bytes:
        """The same text as ASCII bytes, ready to stand between the quotes of a JSON body."""
        if not (0 <= level < 1 << LEVEL_BITS and 0 <= k < 1 << K_BITS):
            raise ValueError(f"no prompt has level {level} and k {k}: level is below 4096 and k below 2**32")
        number = self.prompt_set << (LEVEL_BITS + K_BITS) | level << K_BITS | k
        tag = mixed(number ^ self._key)

        pool, size = self._pool, len(self.words)
        parts = [prefix or self._opening]
        # Least significant digit first: it takes every value evenly, while the most significant one hardly varies, and
        # what differs early in the prompt differs in the first block of the KV cache.
        rest = tag
        for _ in range(self.tag_words):
            rest, digit = divmod(rest, size)
            parts.append(pool[digit])

        shared = prefix.count(b" ") if prefix else 0
        filler = input_tokens - self.overhead_tokens - shared - self.tag_words
        if filler < 0:
            self.check_length(input_tokens, prefix_tokens=1 + shared)
        parts.extend(self._random_words(tag.to_bytes(8, "little"), filler))
        return b" ".join(parts)

    def prefix(self, number: int, tokens: int) -> bytes:
        """The beginning that prompts share: prefix `number` of this seed and set, `tokens` tokens with `OPENING`."""
        name = f"prefix {self.seed} {self.prompt_set} {number}".encode()
        return b" ".join([self._opening, *self._random_words(name, max(0, tokens - 1))])

    def text(self, name: str, words: int) -> bytes:
        """`OPENING` and so many pseudo-random words: the same for the same name, seed and set, other ones for another."""
        return b" ".join([self._opening, *self._random_words(f"{name} {self.seed} {self.prompt_set}".encode(), words)])

    def _random_words(self, name: bytes, count: int) -> list[bytes]:
        # An extendable hash instead of a random generator: no state to set up for each prompt, and the same words on
        # every machine and with every version of numpy.
        stream = hashlib.shake_128(name).digest(2 * count)
        drawn: NDArray[np.uint16] = np.frombuffer(stream, "<u2") % np.uint16(len(self.words))
        return list(map(self._pool.__getitem__, drawn.tolist()))

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
            "endpoint": self.endpoint,
            "seed": self.seed,
            "prompt_set": self.prompt_set,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PromptRecipe:
        """The recipe that `to_dict` described. Raises KeyError or ValueError when it is not one."""
        return cls(
            words=tuple(data["words"]),
            overhead_tokens=data["overhead_tokens"],
            endpoint=data["endpoint"],
            seed=data["seed"],
            prompt_set=data["prompt_set"],
        )


def mixed(number: int) -> int:
    """A bijection of the 64-bit numbers that leaves neighbours far apart (the finalizer of SplitMix64, Steele 2014)."""
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & _MASK
    return number ^ number >> 31
