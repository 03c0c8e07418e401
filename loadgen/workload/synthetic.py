"""The workload of made-up prompts: takes a recipe and classes, gives request k of a level; knows no pace and no socket.

Everything about a request (its class, its lengths, its prefix, its words) is a function of the seed, the level and k.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from loadgen.prompts.recipe import PromptRecipe
from loadgen.wire.request import BodyTemplate, stands_ahead
from loadgen.workload.draws import Draws
from loadgen.workload.lengths import Normal
from loadgen.workload.planned import PlannedRequest
from loadgen.workload.request_class import Independent, RequestClass, shares_until

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

    def build(self, level: int, k: int) -> PlannedRequest:
        """Request `k` of `level`."""
        return self._planned(k, *self._prompt(level, k))

    def probe(
        self, level: int, k: int, kind: int, *, most_output_tokens: int, shortest: bool = False
    ) -> PlannedRequest:
        """Request `k` of `level` as one of class `kind`, to try it on the server: with few output tokens, and perhaps with
        the shortest prompt that there can be."""
        one = self.classes[kind]
        tokens = one.recipe_of(self.recipe).least_tokens(one.prefixes.tokens) if shortest else None
        _, text, input_tokens, output_tokens = self._prompt(level, k, kind, tokens)
        return self._planned(k, kind, text, input_tokens, min(output_tokens, most_output_tokens))

    @property
    def kinds(self) -> int:
        """Number of its classes."""
        return len(self.classes)

    def model_of(self, kind: int) -> str:
        """The model that requests of class `kind` are for."""
        return self.classes[kind].model or self.model

    def extra_body_of(self, kind: int) -> Mapping[str, Any]:
        """Further keys of the bodies of class `kind`."""
        return self.classes[kind].extra_body

    def with_template_tokens(self, kind: int, more: int) -> Self:
        """The same where class `kind` has `more` tokens in each prompt beside its words; prompts stay as long as they were.

        Raises PromptError where the class has prompts that are too short for that."""
        one = self.classes[kind]
        before = one.recipe_of(self.recipe)
        recipe = replace(before, overhead_tokens=before.overhead_tokens + more)
        lengths = one.lengths
        if isinstance(lengths, Independent) and isinstance(drawn := lengths.input_tokens, Normal):
            least, was = (each.least_tokens(one.prefixes.tokens) for each in (recipe, before))
            # A bound that lay where prompts can be told apart was nobody's wish, and lies elsewhere now.
            unbounded = replace(drawn, min=None) if drawn.min == was else drawn
            lengths = replace(lengths, input_tokens=unbounded.at_least(least))
        recipe.check_length(lengths.shortest_input, prefix_tokens=one.prefixes.tokens)
        shared = one.shared_template_tokens + more if stands_ahead(one.extra_body) else 0
        return self._with(kind, replace(one, recipe=recipe, lengths=lengths, shared_template_tokens=shared))

    def uncounted(self, kind: int) -> Self:
        """The same where nobody knows the tokens of class `kind`'s prompts."""
        return self._with(kind, replace(self.classes[kind], counted=False))

    def _with(self, kind: int, one: RequestClass) -> Self:
        return replace(self, classes=(*self.classes[:kind], one, *self.classes[kind + 1 :]))

    def _planned(self, k: int, kind: int, text: bytes, input_tokens: int, output_tokens: int) -> PlannedRequest:
        one = self.classes[kind]
        return PlannedRequest(
            k,
            self._templates[kind].body(text, output_tokens),
            kind,
            input_tokens if one.counted else None,
            output_tokens,
            self._forces(one),
            one.stream,
            prefix_tokens=one.prefixes.tokens + one.shared_template_tokens if one.shared_template_tokens else None,
        )

    def _forces(self, one: RequestClass) -> bool:
        return self.ignore_eos if one.ignore_eos is None else one.ignore_eos

    def prompt(self, level: int, k: int) -> tuple[int, str, int]:
        """(class, text, input tokens) of request `k` of `level`."""
        kind, text, input_tokens, _ = self._prompt(level, k)
        return kind, text.decode("ascii"), input_tokens

    def _prompt(
        self, level: int, k: int, kind: int | None = None, input_tokens: int | None = None
    ) -> tuple[int, bytes, int, int]:
        draws = self._draws
        if kind is None:
            kind = bisect.bisect_right(self._until, draws["class"].at(level, k)) if len(self.classes) > 1 else 0
        one = self.classes[kind]
        drawn, output_tokens = one.lengths.at(draws["input_tokens"].at(level, k), draws["output_tokens"].at(level, k))
        tokens = drawn if input_tokens is None else input_tokens
        prefix = self._prefix(kind, one, draws["prefix"].at(level, k)) if one.prefixes.tokens else None
        text = one.recipe_of(self.recipe).build_bytes(level, k, tokens, prefix)
        return kind, text, tokens, output_tokens

    def _prefix(self, kind: int, one: RequestClass, u: float) -> bytes:
        number = kind << _CLASS_NUMBERS | one.prefixes.at(u)
        text = self._prefix_texts.get(number)
        if text is None:
            # Both threads may make one at the same time: they make the same.
            text = self._prefix_texts[number] = one.recipe_of(self.recipe).prefix(number, one.prefixes.tokens)
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
                model=one.model or self.model,
                endpoint=self.recipe.endpoint,
                ignore_eos=self._forces(one),
                continuous_usage=self.continuous_usage,
                extra=one.extra_body,
                stream=one.stream,
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
