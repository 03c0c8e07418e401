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
from loadgen.scenario.requests_section import yaml_of
from loadgen.scenario.turns_section import TURN_KEYS, RequestsInTurns
from loadgen.workload.lengths import Distribution, Normal, Uniform, expected


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


class RequestClass(RequestsInTurns):
    """One class of a mix."""

    name: Annotated[str, AfterValidator(_class_name)]
    share: Annotated[Share, AfterValidator(_above_zero)]
    model: Text | None = None
    stream: bool | None = None
    ignore_eos: bool | None = None

    @model_validator(mode="after")
    def _has_lengths(self) -> Self:
        missing = [key for key in ("input_tokens", "output_tokens") if key not in self.model_fields_set]
        if missing and self.lengths_file is None:
            raise ValueError(f"Class {self.name!r} has no {missing[0]}.")
        return self


class ModelShare(RequestClass):
    """What `workload.models` makes of the workload for one of them."""


def path_of(one: RequestsInTurns) -> str:
    """What stands before the names of the keys of one of `Workload.kinds()`."""
    own = isinstance(one, RequestClass) and not isinstance(one, ModelShare)
    return f"workload.classes.{one.name}." if isinstance(one, RequestClass) and own else "workload."


def _share_of(one: RequestsInTurns) -> float:
    return one.share if isinstance(one, RequestClass) else 1.0


_OF_A_CLASS = (
    "input_tokens",
    "output_tokens",
    "lengths_file",
    "shared_prefix_tokens",
    "prefixes",
    "input_stddev",
    "output_stddev",
    "range_ratio",
    *TURN_KEYS,
)


NOT_OF_A_DATASET = tuple(key for key in _OF_A_CLASS if key not in ("output_tokens", "output_stddev"))
"""Keys that mean nothing where a file gives the prompts."""


class Workload(RequestsInTurns):
    """What each request asks for."""

    classes: Annotated[tuple[RequestClass, ...], BeforeValidator(yaml_of), Kind("CLASSES")] = Field(
        (),
        description="A mix: a list of classes, each with name, share, input_tokens, output_tokens, and lengths_file, "
        "shared_prefix_tokens, prefixes, extra_body, model, stream or ignore_eos of its own.",
    )
    models: Annotated[
        dict[str, Annotated[Share, AfterValidator(_above_zero)]], BeforeValidator(yaml_of), Kind("MODELS")
    ] = Field(
        default_factory=dict,
        description="Several models by share, such as {base: 70%, adapter: 30%}: each has the same requests, and figures of "
        "its own. Without, all are for target.model.",
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
    def _models_are_a_whole(self) -> Self:
        if not self.models:
            return self
        if self.classes:
            raise ValueError(
                "workload.classes has the shares, so workload.models has no effect: give each class its model."
            )
        if self.dataset.path is not None:
            raise ValueError("workload.dataset.path gives requests for target.model, so workload.models has no effect.")
        whole = sum(self.models.values())
        if abs(whole - 1) > 1e-6:
            raise ValueError(
                f"The shares of workload.models sum to {format_share(round(whole, 9))}, and must sum to 100%."
            )
        return self

    def models_in_words(self, first: str | None) -> str | None:
        """`base 70%, adapter 30%`; `first`, the target's model, where all requests are for that one."""
        shares: dict[str | None, float] = {}
        for one in self.kinds():
            model, share = (one.model, one.share) if isinstance(one, RequestClass) else (None, 1.0)
            shares[model or first] = shares.get(model or first, 0.0) + share
        if len(shares) == 1:
            return next(iter(shares))
        return ", ".join(f"{model} {format_share(round(share, 9))}" for model, share in shares.items())

    def forced_in_words(self) -> str:
        """Whether answers are made as long as asked: `forced`, `at most`, or `forced, but at most for CLASS`."""
        free = [one.name for one in self.kinds() if isinstance(one, RequestClass) and one.ignore_eos is False]
        made = [one.name for one in self.kinds() if isinstance(one, RequestClass) and one.ignore_eos]
        if self.ignore_eos:
            return "forced" if not free else f"forced, but at most for {', '.join(free)}"
        return "at most" if not made else f"at most, but forced for {', '.join(made)}"

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

    def mean_turns(self) -> float:
        """Requests of a conversation on average; 1 where every request stands alone."""
        turns = [(_share_of(one), expected(one.turn_lengths()[0])) for one in self.kinds()]
        return sum(share * mean for share, mean in turns) / sum(share for share, _ in turns)

    def mean_think_s(self, load_think_s: float) -> float:
        """How long a closed loop's user waits after an answer on average, between turns or for its next conversation.

        `load_think_s`: mean of `load.think_time`."""
        requests = waits_s = 0.0
        for one in self.kinds():
            share, turns = _share_of(one), expected(one.turn_lengths()[0])
            between_s = load_think_s if one.turn_think_time is None else one.turn_think_time.mean_s
            requests += share * turns
            waits_s += share * ((turns - 1) * between_s + load_think_s)
        return waits_s / requests

    def has_conversations(self) -> bool:
        """Whether any request is a turn of a conversation."""
        return self.dataset.path is None and any(one.has_turns for one in self.kinds())

    def kinds(self) -> Sequence[RequestsInTurns]:
        """The classes in order, or one for each of several models; a workload without any is its own only one."""
        return self.classes or self._by_model() or (self,)

    def _by_model(self) -> tuple[ModelShare, ...]:
        asked = {key: getattr(self, key) for key in RequestsInTurns.model_fields}
        if (lengths := self.lengths()) is not None:
            asked |= {"input_tokens": lengths[0], "output_tokens": lengths[1]}
        return tuple(
            ModelShare.model_construct(name=model, share=share, model=model, **asked)
            for model, share in self.models.items()
        )

    def needed(self) -> list[tuple[str, int, str]]:
        """(the arithmetic, the most tokens of a request, a note) of each class whose lengths do not stand in a file."""
        found: list[tuple[str, int, str]] = []
        if self.dataset.path is not None:
            return found
        for one in self.kinds():
            path = path_of(one)
            if (lengths := one.lengths()) is not None and (longest := one.longest(path)) is not None:
                unbounded = any(
                    isinstance(length, Normal) and length.max is None for length in (*lengths, *one.turn_lengths())
                )
                note = " A distribution without a max ends six standard deviations above its mean." if unbounded else ""
                found.append((*longest, note))
        return found
