"""The `load.search` section and what goes with it: `auto` as a load, the order of levels, and what they go together with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, ValidatorFunctionWrapHandler, WithJsonSchema, WrapValidator

from loadgen.scenario.load_values import OpenRates, PositiveNumber
from loadgen.scenario.quantities import Count, Counts, Kind, Share, format_sweep
from loadgen.scenario.section import Section
from loadgen.scenario.slo import Slo

AUTO = "auto"
Order = Literal["ascending", "shuffled", "aba"]
MOST_USERS = 1024
MOST_RATE = 10_000.0
LEAST_RATE = 0.01


def _auto_or_a_sweep(value: Any, sweep: ValidatorFunctionWrapHandler) -> Any:
    return () if isinstance(value, str) and value.strip().lower() == AUTO else sweep(value)


def _written(values: Sequence[Any]) -> Any:
    return format_sweep([int(v) if v == int(v) else v for v in values]) if values else AUTO


def _schema(item: dict[str, Any]) -> WithJsonSchema:
    text = {"type": "string", "pattern": r"^ *(auto|\[?[\d.eE+, -]+\]?) *$"}
    return WithJsonSchema({"anyOf": [item, {"type": "array", "items": item, "minItems": 1}, text]})


AutoCounts = Annotated[
    Counts,
    WrapValidator(_auto_or_a_sweep),
    PlainSerializer(_written),
    _schema({"type": "integer", "minimum": 1}),
    Kind("INT[,INT…]|auto"),
]
"""Users: a sweep of counts, or `auto`, which is an empty tuple in code."""
AutoRates = Annotated[
    OpenRates,
    WrapValidator(_auto_or_a_sweep),
    PlainSerializer(_written),
    _schema({"type": "number", "exclusiveMinimum": 0}),
    Kind("NUMBER[,NUMBER…]|auto"),
]
"""Requests a second: a sweep of rates, or `auto`, which is an empty tuple in code."""


class SearchSection(Section):
    """How the highest load is found that keeps every limit, with `load.concurrency: auto` or `load.request_rate: auto`. See
    [sweeps.md](sweeps.md#the-search).
    """

    min: PositiveNumber | None = Field(
        None,
        description="Load that the search begins with, and never goes below; null begins with 1, and goes below 1 request/s "
        "where that is too much.",
    )
    max: PositiveNumber | None = Field(
        None,
        description=f"Load that the search never goes above; null is {MOST_USERS} users, or {MOST_RATE:.0f} requests/s.",
    )
    precision: Share = Field(
        0.05,
        description="How near the load that keeps the limits and the one that misses them should come, as a share of the load.",
    )
    max_levels: Count = Field(20, description="Most levels that the search may take for each setting of the server.")


def check_search(search: SearchSection, *, users: bool) -> None:
    """Raises ValueError where the bounds make no sense for users, or requests a second."""
    if users and any(value is not None and value != int(value) for value in (search.min, search.max)):
        raise ValueError("load.search.min and load.search.max are users with load.concurrency auto, so whole numbers.")
    if search.min is not None and search.max is not None and search.min >= search.max:
        raise ValueError(f"load.search.min, {search.min:g}, must be below load.search.max, {search.max:g}.")
    if not 0.01 <= search.precision <= 0.5:
        raise ValueError("load.search.precision must lie between 1% and 50%.")


def check_limits(slo: Slo, *, search: bool, confirm: bool) -> None:
    """Raises ValueError where a load is to be found by limits, and there are none."""
    if slo.objectives():
        return
    if search:
        raise ValueError("`auto` finds the highest load that keeps the limits, and slo has none: give at least one.")
    if confirm:
        raise ValueError("load.confirm confirms the capacity within the limits, and slo has none: give at least one.")


Step = tuple[int | None, float | None, float | None]
"""Users, request rate, replay speed: one of them, or none for a rate that changes."""


def ordered(steps: Sequence[Step], order: Order | None, *, seed: int, run: int) -> list[Step]:
    """The steps of one sweep in the order of running; None leaves them as they are listed.

    A shuffle follows from the seed and the number of the repeat, and is the same for every setting of the server.
    """
    found = list(steps)
    if len(found) < 2:
        return found
    if order == "shuffled":
        random.Random(f"order/{seed}/{run}").shuffle(found)
    elif order == "ascending":
        found.sort(key=lambda step: next((float(part) for part in step if part is not None), 0.0))
    elif order == "aba":
        found.append(found[0])
    return found
