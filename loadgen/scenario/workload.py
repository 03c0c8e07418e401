"""The workload section of a scenario: what each request asks for, in one class or several; it reads no file."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    model_validator,
)

from loadgen.scenario.dataset import DatasetSettings
from loadgen.scenario.quantities import Kind, Natural, Number, Share, Text, format_share
from loadgen.scenario.requests_section import Requests, yaml_of
from loadgen.workload.lengths import Distribution, Normal, Uniform


def _class_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", value):
        raise ValueError(
            "The name of a class has at most 40 letters, digits and _ - and begins with a letter or digit."
        )
    return value


def _above_zero(value: float) -> float:
    if value <= 0:
        raise ValueError("A class needs a share above 0%.")
    return value


class RequestClass(Requests):
    """One class of a mix."""

    name: Annotated[str, AfterValidator(_class_name)]
    share: Annotated[Share, AfterValidator(_above_zero)]

    @model_validator(mode="after")
    def _has_lengths(self) -> Self:
        missing = [key for key in ("input_tokens", "output_tokens") if key not in self.model_fields_set]
        if missing and self.lengths_file is None:
            raise ValueError(f"Class {self.name!r} has no {missing[0]}.")
        return self


_OF_A_CLASS = (
    "input_tokens",
    "output_tokens",
    "lengths_file",
    "shared_prefix_tokens",
    "prefixes",
    "input_stddev",
    "output_stddev",
    "range_ratio",
)


NOT_OF_A_DATASET = tuple(key for key in _OF_A_CLASS if key not in ("output_tokens", "output_stddev"))
"""Keys that mean nothing where a file gives the prompts."""


class Workload(Requests):
    """What each request asks for."""

    classes: Annotated[tuple[RequestClass, ...], BeforeValidator(yaml_of), Kind("CLASSES")] = Field(
        (),
        description="A mix: a list of classes, each with name, share, input_tokens, output_tokens, and lengths_file, "
        "shared_prefix_tokens, prefixes or extra_body of its own.",
    )
    input_stddev: Number | None = Field(
        None, description="Standard deviation of the prompt tokens: a normal distribution around input_tokens."
    )
    output_stddev: Number | None = Field(
        None, description="Standard deviation of the output tokens: a normal distribution around output_tokens."
    )
    range_ratio: Annotated[float, Field(ge=0, lt=1), Kind("NUMBER")] | None = Field(
        None, description="Both lengths uniform, from (1 - range_ratio) to (1 + range_ratio) times the number given."
    )
    ignore_eos: bool = Field(
        True, description="Make the server produce exactly output_tokens, whatever the model would do."
    )
    tokenizer: Text | None = Field(
        None, description="Name or folder of a Hugging Face tokenizer; null uses the server's /tokenize."
    )
    dataset: DatasetSettings = Field(default_factory=DatasetSettings)
    prompt_set: Annotated[Natural, Field(lt=1 << 20)] = Field(
        0,
        description="Which prompts of the seed: another number gives other words of the same lengths in the same order, "
        "for a server whose prefix cache remembers a run.",
    )

    @model_validator(mode="after")
    def _classes_are_a_whole(self) -> Self:
        if not self.classes:
            return self
        if given := [key for key in _OF_A_CLASS if key in self.model_fields_set]:
            raise ValueError(
                f"Each class of workload.classes has its own lengths and prefixes, so workload.{given[0]} has no effect: "
                "give it to a class."
            )
        names = [one.name for one in self.classes]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"workload.classes has two classes of the name {twice[0]!r}.")
        whole = sum(one.share for one in self.classes)
        if abs(whole - 1) > 1e-6:
            shares = ", ".join(f"{one.name} {format_share(one.share)}" for one in self.classes)
            raise ValueError(
                f"The shares of workload.classes sum to {format_share(round(whole, 9))} ({shares}), and must sum to 100%."
            )
        return self

    @model_validator(mode="after")
    def _a_dataset_stands_alone(self) -> Self:
        given = [key for key in (*NOT_OF_A_DATASET, "classes") if key in self.model_fields_set and getattr(self, key)]
        if self.dataset.path is not None and given:
            raise ValueError(
                f"workload.dataset.path gives the prompts, so workload.{given[0]} has no effect: keep one."
            )
        return self

    @model_validator(mode="after")
    def _spreads_have_a_middle(self) -> Self:
        spreads = [
            (key, of)
            for key, of in (("input_stddev", "input_tokens"), ("output_stddev", "output_tokens"))
            if getattr(self, key) is not None
        ]
        if spreads and self.range_ratio is not None:
            raise ValueError(f"workload.{spreads[0][0]} and workload.range_ratio are two kinds of spread: keep one.")
        if self.range_ratio is not None:
            spreads = [("range_ratio", "input_tokens"), ("range_ratio", "output_tokens")]
        for key, of in spreads:
            if self.lengths_file is not None:
                raise ValueError(f"workload.lengths_file gives both lengths, so workload.{key} has no effect.")
            if not isinstance(getattr(self, of), int):
                raise ValueError(f"workload.{of} is a distribution already, so workload.{key} has no effect.")
        return self

    def _path(self, key: str) -> str:
        return f"workload.{key}"

    def _without_effect(self) -> set[str]:
        if self.dataset.path is not None:
            return {*NOT_OF_A_DATASET, "classes"}
        return {"dataset", *(_OF_A_CLASS if self.classes else super()._without_effect())}

    def lengths(self) -> tuple[Distribution, Distribution] | None:
        lengths = super().lengths()
        if lengths is None:
            return None
        return self._spread(lengths[0], self.input_stddev), self._spread(lengths[1], self.output_stddev)

    def _spread(self, lengths: Distribution, stddev: float | None) -> Distribution:
        if stddev is not None:
            return Normal(lengths.longest, stddev)
        if self.range_ratio is not None:
            # As vLLM's benchmark rounds: outwards, and never to nothing.
            return Uniform(
                max(1, math.floor(lengths.longest * (1 - self.range_ratio))),
                math.ceil(lengths.longest * (1 + self.range_ratio)),
            )
        return lengths

    def in_words(self) -> tuple[str, str]:
        if self.classes:
            words = [(f"{one.name} {format_share(one.share)}", *one.in_words()) for one in self.classes]
            return "; ".join(f"{who} {i}" for who, i, _ in words), "; ".join(f"{who} {o}" for who, _, o in words)
        input_words, output_words = super().in_words()
        if self.dataset.path is None:
            return input_words, output_words
        return f"as in {Path(self.dataset.path).name}", f"as there, else {output_words}"

    def kinds(self) -> Sequence[Requests]:
        """The classes in order; a workload without any is its own only one."""
        return self.classes or (self,)

    def needed(self) -> list[tuple[str, int, int, str]]:
        """(path of the keys, longest input, longest output, a note) of each class whose lengths do not stand in a file."""
        found: list[tuple[str, int, int, str]] = []
        if self.dataset.path is not None:
            return found
        for one in self.kinds():
            path = f"workload.classes.{one.name}." if isinstance(one, RequestClass) else "workload."
            if (lengths := one.lengths()) is not None:
                unbounded = any(isinstance(length, Normal) and length.max is None for length in lengths)
                note = " A distribution without a max ends six standard deviations above its mean." if unbounded else ""
                found.append((path, lengths[0].longest, lengths[1].longest, note))
        return found
