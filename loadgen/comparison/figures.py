"""Which figures of a level are compared, which way is worse, and how much of it is put up with; values only."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.errors import UsageError
from loadgen.scenario.quantities import parse_share
from loadgen.stats.latencies import LATENCIES

ERROR_RATE = "error_rate"

DEFAULTS: Mapping[str, float] = {
    "output_throughput": 0.05,
    "served_request_rate": 0.10,
    "p50_ttft_ms": 0.10,
    "p95_ttft_ms": 0.20,
    "p50_tpot_ms": 0.05,
    "p95_tpot_ms": 0.10,
    "p95_e2el_ms": 0.10,
    ERROR_RATE: 0.01,
}
"""Figures that are compared unless others are asked for, and by how much each may be worse: a share of the baseline, of
`error_rate` a difference. docs/compare.md says why."""
OF_AN_OPEN_LOOP = {
    "p50_ttft_ms": "p50_ttft_from_schedule_ms",
    "p95_ttft_ms": "p95_ttft_from_schedule_ms",
    "p95_e2el_ms": "p95_e2el_from_schedule_ms",
}
"""What stands in for a latency where requests came by a schedule: what an arriving user felt."""
BEFORE_IT = {"served_request_rate": "request_throughput"}
"""What stands in for a figure that a baseline of an older version does not have."""
RATES = ("output_throughput", "request_throughput", "served_request_rate", "input_throughput", "request_goodput")
"""Figures of which more is better: what a server is capable of, or, in an open loop that it keeps up with, what came."""

_LATENCY = re.compile(rf"(p50|p90|p95|p99|mean)_({'|'.join(LATENCIES)})_ms")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure to compare."""

    name: str
    tolerance: float
    higher_is_better: bool
    absolute: bool
    """Whether the tolerance is a difference of shares and not a share of the baseline."""


def is_figure(name: str) -> bool:
    """Whether a level has such a figure and it is known which way is worse."""
    return name == ERROR_RATE or name in RATES or _LATENCY.fullmatch(name) is not None


def figure(name: str, tolerance: float) -> Figure:
    """A figure of a known name."""
    return Figure(name, tolerance, higher_is_better=name in RATES, absolute=name == ERROR_RATE)


def kept(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of a level object, every figure that can be compared and was measured."""
    return {name: value for name, value in values.items() if is_figure(name) and value is not None}


def figures(
    tolerances: Mapping[str, float], *, open_loop: bool, of_baseline: Collection[str] | None = None
) -> list[Figure]:
    """The figures of a comparison: the defaults, changed and added to by `tolerances`.

    In an open loop the tolerance of a latency is also that of what stands in for it, which is compared in any case.
    `of_baseline`: what the baseline's level has, where that is known.
    """
    wanted = {**DEFAULTS, **tolerances}
    if open_loop:
        stand_ins = {OF_AN_OPEN_LOOP[name]: value for name, value in wanted.items() if name in OF_AN_OPEN_LOOP}
        asked = {name: value for name, value in wanted.items() if name not in OF_AN_OPEN_LOOP or name in tolerances}
        wanted = {**stand_ins, **asked}
    if of_baseline is not None:
        wanted = {
            BEFORE_IT[name] if _is_missing(name, of_baseline) and name not in tolerances else name: value
            for name, value in wanted.items()
        }
    return [figure(name, tolerance) for name, tolerance in wanted.items()]


def _is_missing(name: str, of_baseline: Collection[str]) -> bool:
    return name not in of_baseline and BEFORE_IT.get(name) in of_baseline


def parse_tolerances(texts: list[str]) -> dict[str, float]:
    """`p95_ttft_ms=10%` as name and share. Raises UsageError for another form or name."""
    found: dict[str, float] = {}
    for text in texts:
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals:
                raise UsageError(f"--tolerance {part!r} says no number.", hint="write --tolerance p95_ttft_ms=10%")
            if not is_figure(name):
                raise UsageError(
                    f"--tolerance names {name!r}, which is no figure that can be compared.",
                    hint=f"the usual ones are {', '.join(DEFAULTS)}",
                )
            try:
                found[name] = parse_share(value)
            except ValueError as error:
                raise UsageError(f"--tolerance {name} is {value!r}. {error}", hint=f"write {name}=10%") from None
    return found
