"""One class of requests: how long they are, which beginnings they share, and what else their bodies say."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from loadgen.prompts.recipe import PromptRecipe
from loadgen.workload.lengths import Distribution, distribution, expected


class LengthPairs(Protocol):
    """Where the two lengths of a request come from."""

    def at(self, u: float, v: float) -> tuple[int, int]:
        """(input tokens, output tokens) from two numbers in [0, 1)."""

    @property
    def shortest_input(self) -> int:
        """No prompt is shorter."""

    @property
    def longest(self) -> tuple[int, int]:
        """(input tokens, output tokens) of the longest request."""

    def expected_input(self) -> float:
        """Mean tokens of a prompt."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `length_pairs` reads back."""


@dataclass(frozen=True, slots=True)
class Independent:
    """Input and output each from a distribution of its own."""

    input_tokens: Distribution
    output_tokens: Distribution

    def at(self, u: float, v: float) -> tuple[int, int]:
        return self.input_tokens.at(u), self.output_tokens.at(v)

    @property
    def shortest_input(self) -> int:
        return self.input_tokens.shortest

    @property
    def longest(self) -> tuple[int, int]:
        return self.input_tokens.longest, self.output_tokens.longest

    def expected_input(self) -> float:
        return expected(self.input_tokens)

    def to_dict(self) -> dict[str, Any]:
        return {"input_tokens": self.input_tokens.to_dict(), "output_tokens": self.output_tokens.to_dict()}


@dataclass(frozen=True, slots=True)
class Observed:
    """Pairs that were seen together, each as often as it was seen: long prompts keep the answers that belong to them."""

    pairs: tuple[tuple[int, int], ...]
    """Distinct, in order."""
    counts: tuple[int, ...]
    """How often each was seen."""
    _until: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_until", tuple(itertools.accumulate(self.counts)))

    def at(self, u: float, v: float) -> tuple[int, int]:
        return self.pairs[bisect.bisect_right(self._until, int(u * self._until[-1]))]

    @property
    def shortest_input(self) -> int:
        return min(pair[0] for pair in self.pairs)

    @property
    def longest(self) -> tuple[int, int]:
        return max(self.pairs, key=sum)

    def expected_input(self) -> float:
        return sum(pair[0] * n for pair, n in zip(self.pairs, self.counts, strict=True)) / self._until[-1]

    def to_dict(self) -> dict[str, Any]:
        return {"pairs": [list(pair) for pair in self.pairs], "counts": list(self.counts)}


def length_pairs(data: Mapping[str, Any]) -> LengthPairs:
    """What `to_dict` described."""
    if "pairs" in data:
        return Observed(tuple((pair[0], pair[1]) for pair in data["pairs"]), tuple(data["counts"]))
    return Independent(distribution(data["input_tokens"]), distribution(data["output_tokens"]))


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Beginnings that requests share: `count` of them, each of `tokens` tokens."""

    tokens: int = 0
    """0 is none."""
    count: int = 1
    zipf: float = 0.0
    """The i-th most popular is chosen in proportion to 1 / i**zipf; 0 makes all equal."""
    _until: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        weights = [rank**-self.zipf for rank in range(1, self.count + 1)]
        whole = sum(weights)
        object.__setattr__(self, "_until", tuple(itertools.accumulate(weight / whole for weight in weights)))

    def at(self, u: float) -> int:
        """Which of them, from a number in [0, 1); 0 is the most popular."""
        return min(bisect.bisect_right(self._until, u), self.count - 1)

    def to_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "count": self.count, "zipf": self.zipf}


@dataclass(frozen=True, slots=True)
class RequestClass:
    """One kind of request among those of a workload."""

    name: str
    share: float
    """How often it comes up, between 0 and 1."""
    lengths: LengthPairs
    prefixes: Prefixes = Prefixes()
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the body, such as `temperature`."""
    model: str | None = None
    """None is the workload's."""
    stream: bool = True
    """Whether its answers are asked for as streams."""
    ignore_eos: bool | None = None
    """None is as in the workload."""
    recipe: PromptRecipe | None = None
    """Of a model with a tokenizer of its own, or where `extra_body` adds to the template (tools); None is the workload's."""
    shared_template_tokens: int = 0
    """Of what `extra_body` adds, tokens that stand ahead of every prompt's words, alike in all (tools)."""
    counted: bool = True
    """Whether its prompts have the tokens that they were made for by the server's own count."""

    def recipe_of(self, workloads: PromptRecipe) -> PromptRecipe:
        """Its own recipe, else the workload's."""
        return workloads if self.recipe is None else self.recipe

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "share": self.share,
            "lengths": self.lengths.to_dict(),
            "prefixes": self.prefixes.to_dict(),
            "extra_body": dict(self.extra_body),
            "model": self.model,
            "stream": self.stream,
            "ignore_eos": self.ignore_eos,
            "recipe": None if self.recipe is None else self.recipe.to_dict(),
            "shared_template_tokens": self.shared_template_tokens,
            "counted": self.counted,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RequestClass:
        return cls(
            name=data["name"],
            share=data["share"],
            lengths=length_pairs(data["lengths"]),
            prefixes=Prefixes(**data["prefixes"]),
            extra_body=data["extra_body"],
            model=data["model"],
            stream=data["stream"],
            ignore_eos=data["ignore_eos"],
            recipe=None if data["recipe"] is None else PromptRecipe.from_dict(data["recipe"]),
            shared_template_tokens=data["shared_template_tokens"],
            counted=data["counted"],
        )


def shares_until(classes: Sequence[RequestClass]) -> list[float]:
    """Running sums of the shares; the last is 1."""
    whole = sum(one.share for one in classes)
    return [*itertools.accumulate(one.share / whole for one in classes[:-1]), 1.0]
