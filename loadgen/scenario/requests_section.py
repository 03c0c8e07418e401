"""What the requests of one class have in common, as a scenario writes it: lengths, shared beginnings, further keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from loadgen.scenario.quantities import Count, FileName, Kind, Natural
from loadgen.scenario.section import Section
from loadgen.wire.request import OWN_KEYS
from loadgen.workload.lengths import Distribution, Fixed, distribution, json_schemas

_EXAMPLE = "{distribution: lognormal, mean: 512, stddev: 128, min: 16, max: 4096}"


def yaml_of(value: object) -> object:
    """The mapping or list that the text of an option or a variable stands for; anything else as it is."""
    if isinstance(value, str) and value.strip()[:1] in ("{", "["):
        try:
            return yaml.safe_load(value)
        except yaml.YAMLError as error:
            reason = getattr(error, "problem", None) or "it is not YAML"
            raise ValueError(f"That is neither YAML nor JSON: {reason}.") from None
    return value


def parse_lengths(value: object) -> int | Distribution:
    """A number of tokens (also as text), or the distribution that a mapping describes. Raises ValueError."""
    value = yaml_of(value)
    if isinstance(value, Mapping):
        made = distribution(value)
        return made.tokens if isinstance(made, Fixed) else made
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        if hasattr(value, "longest"):
            return value  # type: ignore[return-value]
        raise ValueError(f"It must be a whole number, or a distribution such as {_EXAMPLE}.")
    if value < 1:
        raise ValueError("It must be at least 1.")
    return value


def _format_lengths(value: int | Distribution) -> int | dict[str, Any]:
    return value if isinstance(value, int) else value.to_dict()


Lengths = Annotated[
    int | Distribution,
    PlainValidator(parse_lengths),
    PlainSerializer(_format_lengths),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, *json_schemas()]}),
    Kind("INT|DISTRIBUTION"),
]


def as_distribution(lengths: int | Distribution) -> Distribution:
    """The distribution behind a plain number too."""
    return Fixed(lengths) if isinstance(lengths, int) else lengths


def _no_own_keys(value: Mapping[str, Any]) -> Mapping[str, Any]:
    if own := sorted(OWN_KEYS & set(value)):
        raise ValueError(f"{', '.join(own)} cannot be set here: what is measured depends on it.")
    _check_tools(value)
    return value


def _check_tools(extra_body: Mapping[str, Any]) -> None:
    """Raises ValueError for tools that no server takes: better now than in the first answer."""
    tools = extra_body.get("tools")
    if tools is None:
        return
    if not isinstance(tools, list) or not tools:
        raise ValueError("tools is a list of tools, at least one.")
    for number, tool in enumerate(tools, 1):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or "type" not in tool:
            raise ValueError(f"Tool {number} is not written {{type: function, function: {{name: …, parameters: …}}}}.")


ExtraBody = Annotated[dict[str, Any], BeforeValidator(yaml_of), AfterValidator(_no_own_keys), Kind("JSON")]


class Prefixes(Section):
    """Groups of requests that begin alike."""

    count: Count
    tokens: Count
    zipf: Annotated[float, Field(ge=0, le=10)] = 0.0


class Requests(Section):
    """How long requests are, what they share, and what else their bodies say."""

    input_tokens: Lengths = Field(
        512,
        description="Prompt tokens of each request, as the server counts them, chat template included: a number, or a "
        "distribution.",
    )
    output_tokens: Lengths = Field(128, description="Tokens that each request asks for: a number, or a distribution.")
    lengths_file: FileName | None = Field(
        None,
        description="CSV or JSONL file of pairs `input_tokens,output_tokens` to draw from, in place of both; relative to the "
        "scenario's folder.",
    )
    shared_prefix_tokens: Natural = Field(
        0,
        description="Tokens at the beginning of the text that all requests share, as a system prompt; part of input_tokens.",
    )
    prefixes: Annotated[Prefixes, BeforeValidator(yaml_of), Kind("PREFIXES")] | None = Field(
        None,
        description="Several such beginnings, as {count: 20, tokens: 256, zipf: 1.0}; each request has one, by popularity.",
    )
    extra_body: ExtraBody = Field(
        default_factory=dict, description='Further keys of each body, such as {"temperature": 0.7}.'
    )

    @field_validator("prefixes")
    @classmethod
    def _one_kind_of_prefix(cls, value: Prefixes | None, info: ValidationInfo) -> Prefixes | None:
        if value is not None and info.data.get("shared_prefix_tokens"):
            raise ValueError("shared_prefix_tokens is one shared beginning and prefixes several: keep one.")
        return value

    @model_validator(mode="after")
    def _lengths_are_given_once(self) -> Self:
        given = sorted(self.model_fields_set & {"input_tokens", "output_tokens"})
        if self.lengths_file is not None and given:
            raise ValueError(f"{self._path('lengths_file')} gives both lengths, so {given[0]} has no effect: keep one.")
        return self

    def _path(self, key: str) -> str:
        return key

    def _without_effect(self) -> set[str]:
        """Keys that mean nothing beside others that are given."""
        return set() if self.lengths_file is None else {"input_tokens", "output_tokens"}

    @model_serializer(mode="wrap")
    def _with_effect(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        without = self._without_effect()
        return {key: value for key, value in write(self).items() if key not in without}

    def lengths(self) -> tuple[Distribution, Distribution] | None:
        """(input, output); None where a file has them."""
        if self.lengths_file is not None:
            return None
        return as_distribution(self.input_tokens), as_distribution(self.output_tokens)

    def prefix_tokens(self) -> int:
        """Tokens of the beginning that a request shares with others; 0 for none."""
        return self.shared_prefix_tokens if self.prefixes is None else self.prefixes.tokens

    def in_words(self) -> tuple[str, str]:
        """(input, output) for people."""
        lengths = self.lengths()
        if lengths is None:
            return f"as in {self.lengths_file}", f"as in {self.lengths_file}"
        shared = f", {self.prefix_tokens()} of them shared" if self.prefix_tokens() else ""
        if self.prefixes is not None and self.prefixes.count > 1:
            shared = f", {self.prefix_tokens()} of them one of {self.prefixes.count} prefixes"
        return f"{lengths[0]} tokens{shared}", f"{lengths[1]} tokens"
