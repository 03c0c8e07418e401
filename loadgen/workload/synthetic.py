"""The workload of made-up prompts: takes a recipe and classes, gives request k of a level; knows no pace and no socket.

Everything about a request (its class, its lengths, its prefix, its words) is a function of the seed, the level and k.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from loadgen.prompts.recipe import PromptRecipe
from loadgen.wire.request import BodyTemplate
from loadgen.workload.draws import Draws
from loadgen.workload.planned import PlannedRequest
from loadgen.workload.request_class import Prefixes, RequestClass, shares_until

_CLASS_NUMBERS = 20
"""Bits for the number of a prefix within its class."""


@dataclass(frozen=True)
class SyntheticWorkload:
    """Prompts of words that cost one token each, in one class or several."""

    recipe: PromptRecipe
    classes: tuple[RequestClass, ...]
    model: str
    ignore_eos: bool
    """Whether the server is made to give exactly the output tokens asked for."""
    continuous_usage: bool

    def build(self, level: int, k: int, *, most_output_tokens: int | None = None) -> PlannedRequest:
        """Request `k` of `level`; for a probe of the server it may ask for fewer tokens than the workload does."""
        kind, text, input_tokens, output_tokens = self._prompt(level, k)
        if most_output_tokens is not None:
            output_tokens = min(output_tokens, most_output_tokens)
        body = self._templates[kind].body(text, output_tokens)
        return PlannedRequest(k, body, kind, input_tokens, output_tokens, self.ignore_eos)

    def prompt(self, level: int, k: int) -> tuple[int, str, int]:
        """(class, text, input tokens) of request `k` of `level`."""
        kind, text, input_tokens, _ = self._prompt(level, k)
        return kind, text.decode("ascii"), input_tokens

    def _prompt(self, level: int, k: int) -> tuple[int, bytes, int, int]:
        draws = self._draws
        kind = bisect.bisect_right(self._until, draws["class"].at(level, k)) if len(self.classes) > 1 else 0
        one = self.classes[kind]
        input_tokens, output_tokens = one.lengths.at(
            draws["input_tokens"].at(level, k), draws["output_tokens"].at(level, k)
        )
        prefix = self._prefix(kind, one.prefixes, draws["prefix"].at(level, k)) if one.prefixes.tokens else None
        return kind, self.recipe.build_bytes(level, k, input_tokens, prefix), input_tokens, output_tokens

    def _prefix(self, kind: int, prefixes: Prefixes, u: float) -> bytes:
        number = kind << _CLASS_NUMBERS | prefixes.at(u)
        text = self._prefix_texts.get(number)
        if text is None:
            # Both threads may make one at the same time: they make the same.
            text = self._prefix_texts[number] = self.recipe.prefix(number, prefixes.tokens)
        return text

    @cached_property
    def _draws(self) -> Mapping[str, Draws]:
        purposes = ("class", "input_tokens", "output_tokens", "prefix")
        return {purpose: Draws(self.recipe.seed, purpose) for purpose in purposes}

    @cached_property
    def _until(self) -> Sequence[float]:
        return shares_until(self.classes)

    @cached_property
    def _prefix_texts(self) -> dict[int, bytes]:
        return {}

    @cached_property
    def _templates(self) -> Sequence[BodyTemplate]:
        return [
            BodyTemplate(
                model=self.model,
                endpoint=self.recipe.endpoint,
                ignore_eos=self.ignore_eos,
                continuous_usage=self.continuous_usage,
                extra=one.extra_body,
            )
            for one in self.classes
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON and msgpack carry; `from_dict` reads it back."""
        return {
            "recipe": self.recipe.to_dict(),
            "classes": [one.to_dict() for one in self.classes],
            "model": self.model,
            "ignore_eos": self.ignore_eos,
            "continuous_usage": self.continuous_usage,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SyntheticWorkload:
        """The workload that `to_dict` described."""
        return cls(
            recipe=PromptRecipe.from_dict(data["recipe"]),
            classes=tuple(RequestClass.from_dict(one) for one in data["classes"]),
            model=data["model"],
            ignore_eos=data["ignore_eos"],
            continuous_usage=data["continuous_usage"],
        )
