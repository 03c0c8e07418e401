"""Service-level objectives: limits that a level is reported against; the measured figures are not known here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import Field

from loadgen.scenario.quantities import Limit, Share
from loadgen.scenario.section import Section

_CONDITION = re.compile(r"\s*([A-Za-z]\w*)\s*<=?\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Objective:
    """One limit, e.g. `ttft_p95` at 0.5 s."""

    name: str
    metric: str
    """`ttft`, `ttfo`, `itl`, `tpot`, `e2el` or `error_rate`."""
    percentile: int | None
    """50, 90, 95 or 99; None for `error_rate`."""
    limit: float
    """Seconds; a share between 0 and 1 for `error_rate`."""


def _limit(percentile: int, what: str) -> Limit | None:
    field: Limit | None = Field(None, description=f"Highest P{percentile} of {what}.")
    return field


class Slo(Section):
    """Limits that a level should keep, each optional. `<metric>_p50`, `_p90`, `_p95`, `_p99`, with a unit."""

    ttft_p50: Limit | None = _limit(50, "the time to first token")
    ttft_p90: Limit | None = _limit(90, "the time to first token")
    ttft_p95: Limit | None = _limit(95, "the time to first token")
    ttft_p99: Limit | None = _limit(99, "the time to first token")
    ttfo_p50: Limit | None = _limit(50, "the time to first visible output")
    ttfo_p90: Limit | None = _limit(90, "the time to first visible output")
    ttfo_p95: Limit | None = _limit(95, "the time to first visible output")
    ttfo_p99: Limit | None = _limit(99, "the time to first visible output")
    itl_p50: Limit | None = _limit(50, "the gap between tokens")
    itl_p90: Limit | None = _limit(90, "the gap between tokens")
    itl_p95: Limit | None = _limit(95, "the gap between tokens")
    itl_p99: Limit | None = _limit(99, "the gap between tokens")
    tpot_p50: Limit | None = _limit(50, "a request's time per output token")
    tpot_p90: Limit | None = _limit(90, "a request's time per output token")
    tpot_p95: Limit | None = _limit(95, "a request's time per output token")
    tpot_p99: Limit | None = _limit(99, "a request's time per output token")
    e2el_p50: Limit | None = _limit(50, "the end-to-end latency")
    e2el_p90: Limit | None = _limit(90, "the end-to-end latency")
    e2el_p95: Limit | None = _limit(95, "the end-to-end latency")
    e2el_p99: Limit | None = _limit(99, "the end-to-end latency")
    error_rate: Share | None = Field(None, description="Highest share of requests that fail.")

    def objectives(self) -> list[Objective]:
        """The limits that are set, in the order of the fields."""
        found: list[Objective] = []
        for name in type(self).model_fields:
            limit: float | None = getattr(self, name)
            if limit is not None:
                metric, _, percentile = name.partition("_p")
                found.append(Objective(name, metric, int(percentile) if percentile else None, limit))
        return found


def parse_conditions(text: str) -> dict[str, str]:
    """`ttft_p95<500ms,error_rate<1%` as keys and values; ValueError says which part is not `name<limit`."""
    values: dict[str, str] = {}
    for part in text.split(","):
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise ValueError(f"{part.strip()!r} is not a condition such as ttft_p95<500ms.")
        if match[1] in values:
            raise ValueError(f"{match[1]} is given twice.")
        values[match[1]] = match[2]
    return values
