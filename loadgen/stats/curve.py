"""Takes the valid levels of one server setting, gives throughput over load and where that curve cannot be trusted; pure.

A point that lies far below what a lower load gave is *unstable* when a higher load is back at the old height, or when it repeats
the height of such a point: the server has two states, and which one it is in does not follow from the load. Without
a way back it is *falling*: more load, less work. Neither is a new regime to be extrapolated from.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.stats.asked import asked
from loadgen.stats.latencies import FROM_SCHEDULE
from loadgen.stats.settings import by_setting

Level = Mapping[str, Any]

LOW = 0.8
"""Throughput below this share of what a lower load gave, or of what its neighbours let expect, is remarkable."""
SAME = 0.1
"""Two throughputs no further apart than this share are one state of the server."""


@dataclass(frozen=True, slots=True)
class Point:
    """One load, its repeats taken together."""

    load: float
    throughput: float
    """Output tokens/s; the median of the repeats."""
    latency_ms: float | None = None
    """E2E latency at P50, of an open loop from the schedule."""
    spread: float = 0.0
    """(largest − smallest) / median of the repeats' throughput."""
    level: int | None = None
    """Number of the level that stands for it."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The points in order of load, told apart; every point is in exactly one of the first three."""

    stable: Sequence[Point]
    unstable: Sequence[Point]
    falling: Sequence[Point]
    outliers: Sequence[Point]
    """Of the stable ones: points far below the line between their neighbours. A curve of throughput is concave."""


def points_of(levels: Sequence[Level]) -> list[Point]:
    """One point a load of the valid levels, in order of load."""
    same: dict[float, list[Level]] = {}
    for level in levels:
        if level["valid"] and level["output_throughput"]:
            same.setdefault(asked(level), []).append(level)
    return [_point(load, runs) for load, runs in sorted(same.items())]


def _point(load: float, runs: Sequence[Level]) -> Point:
    rates = [float(level["output_throughput"]) for level in runs]
    median = statistics.median(rates)
    e2el = "e2el" if runs[0]["concurrency"] is not None else FROM_SCHEDULE["e2el"]
    latencies = [value for level in runs if (value := level.get(f"p50_{e2el}_ms")) is not None]
    return Point(
        load,
        median,
        statistics.median(latencies) if latencies else None,
        (max(rates) - min(rates)) / median,
        min(runs, key=lambda level: abs(level["output_throughput"] - median))["level"],
    )


def curve(points: Sequence[Point]) -> Curve:
    """The points told apart; in order of load, as given."""
    low = _far_below_an_earlier_one(points)
    last_high = max((i for i in range(len(points)) if i not in low), default=-1)
    unstable = {i for i in low if i < last_high} | {i for i, point in enumerate(points) if point.spread > 1 - LOW}
    unstable |= {i for i in low if any(_same(points[i], points[other]) for other in unstable)}
    both_states = unstable & low
    unstable |= set(range(min(both_states, default=0), max(both_states, default=-1)))
    stable = [point for i, point in enumerate(points) if i not in unstable | low]
    return Curve(
        stable=stable,
        unstable=[point for i, point in enumerate(points) if i in unstable],
        falling=[point for i, point in enumerate(points) if i in low - unstable],
        outliers=[
            point
            for before, point, after in zip(stable, stable[1:], stable[2:], strict=False)
            if point.throughput < LOW * _between(before, after, point.load)
        ],
    )


def unstable_levels(levels: Sequence[Level]) -> set[int]:
    """Numbers of the levels at unstable loads of their own server setting."""
    found: set[int] = set()
    for group in by_setting(levels).values():
        loads = {point.load for point in curve(points_of(group)).unstable}
        found |= {level["level"] for level in group if asked(level) in loads}
    return found


def _far_below_an_earlier_one(points: Sequence[Point]) -> set[int]:
    low: set[int] = set()
    highest = 0.0
    for i, point in enumerate(points):
        if point.throughput < LOW * highest:
            low.add(i)
        highest = max(highest, point.throughput)
    return low


def _same(one: Point, other: Point) -> bool:
    return abs(one.throughput - other.throughput) <= SAME * max(one.throughput, other.throughput)


def _between(before: Point, after: Point, load: float) -> float:
    share = math.log(load / before.load) / math.log(after.load / before.load)
    return before.throughput * math.exp(share * math.log(after.throughput / before.throughput))
