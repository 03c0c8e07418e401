"""Types of the `load` section's own values: rates, stages and think times; text in, refusals are sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from loadgen.arrivals.think_time import ThinkTime
from loadgen.scenario.quantities import (
    Kind,
    Number,
    format_duration,
    format_sweep,
    parse_duration,
    parse_sweep,
)

_STAGE = re.compile(r"\s*([^:]+?)\s*:\s*([\d.eE+]+)\s*(?:-\s*([\d.eE+]+)\s*)?")
_EXPONENTIAL = re.compile(r"\s*exponential\s*:\s*(.+)")


def _above_zero(value: float) -> float:
    if value <= 0:
        raise ValueError("It must be above zero.")
    return value


def _whole_where_it_is(value: float) -> float | int:
    return int(value) if value == int(value) else value


PositiveNumber = Annotated[Number, AfterValidator(_above_zero), PlainSerializer(_whole_where_it_is)]
_POSITIVE_SCHEMA = {"type": "number", "exclusiveMinimum": 0}
OpenRates = Annotated[
    tuple[PositiveNumber, ...],
    BeforeValidator(parse_sweep),
    PlainSerializer(lambda rates: format_sweep([_whole_where_it_is(rate) for rate in rates])),
    WithJsonSchema({"anyOf": [_POSITIVE_SCHEMA, {"type": "array", "items": _POSITIVE_SCHEMA, "minItems": 1}]}),
    Kind("NUMBER[,NUMBER…]"),
]
"""One request rate or several: several are a sweep. A tuple in code."""


class Stage(NamedTuple):
    """A part of a request rate's course: a straight line from one rate to another."""

    duration_s: float
    from_rate: float
    to_rate: float

    def text(self) -> str:
        """As people write it."""
        rates = f"{self.from_rate:g}" + (f"-{self.to_rate:g}" if self.to_rate != self.from_rate else "")
        return f"{format_duration(self.duration_s)}:{rates}"


def parse_stages(value: object) -> tuple[Stage, ...]:
    """`30s:2,60s:2-10`, or a list of such texts. Raises ValueError for anything else, and where no request is asked for."""
    stages = tuple(_stage(part) for part in parse_sweep(value))
    if not any(stage.from_rate or stage.to_rate for stage in stages):
        raise ValueError("No stage asks for a request.")
    return stages


def _stage(value: object) -> Stage:
    if isinstance(value, Stage):
        return value
    match = _STAGE.fullmatch(value) if isinstance(value, str) else None
    try:
        if match is None:
            raise ValueError
        duration_s = parse_duration(match[1])
        from_rate = float(match[2])
        to_rate = float(match[3]) if match[3] else from_rate
    except ValueError:
        raise ValueError(
            f"{value!r} is not a stage: write its duration and its rate, such as 30s:2 or 60s:2-10."
        ) from None
    if duration_s <= 0:
        raise ValueError(f"{value!r} takes no time.")
    return Stage(duration_s, from_rate, to_rate)


def _stages_text(stages: Sequence[Stage]) -> list[str]:
    return [stage.text() for stage in stages]


_STAGE_SCHEMA = {"type": "string", "pattern": r"^[^:]+:[\d.eE+ ]+(-[\d.eE+ ]+)?$"}
Stages = Annotated[
    tuple[Stage, ...],
    BeforeValidator(parse_stages),
    PlainSerializer(_stages_text),
    WithJsonSchema({"anyOf": [{"type": "array", "items": _STAGE_SCHEMA, "minItems": 1}, {"type": "string"}]}),
    Kind("DURATION:RATE[-RATE][,…]"),
]


def parse_think_time(value: object) -> ThinkTime:
    """A duration; `{distribution: exponential, mean: DURATION}`; or that as text, `exponential:DURATION`."""
    if isinstance(value, ThinkTime):
        return value
    distribution: Any = "fixed"
    if isinstance(value, dict):
        if set(value) != {"distribution", "mean"} or value["distribution"] not in ("exponential", "fixed"):
            raise ValueError("It takes distribution, which is exponential or fixed, and mean.")
        distribution, value = value["distribution"], value["mean"]
    elif isinstance(value, str) and (match := _EXPONENTIAL.fullmatch(value)):
        distribution, value = "exponential", match[1]
    mean_s = parse_duration(value)
    if mean_s <= 0:
        raise ValueError("It must be longer than zero; null is no think time.")
    return ThinkTime(mean_s, distribution)


def _think_time_text(value: ThinkTime) -> Any:
    mean = format_duration(value.mean_s)
    return mean if value.distribution == "fixed" else {"distribution": value.distribution, "mean": mean}


ThinkTimeValue = Annotated[
    ThinkTime,
    Field(),
    BeforeValidator(parse_think_time),
    PlainSerializer(_think_time_text),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {
                        "distribution": {"enum": ["exponential", "fixed"]},
                        "mean": {"type": ["number", "string"]},
                    },
                    "required": ["distribution", "mean"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
    Kind("DURATION"),
]
