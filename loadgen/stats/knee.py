"""Takes the curve of one server setting, gives its knee: the load from which more load brings no more throughput; pure.

The method: the stable points' throughput made monotonic (isotonic regression of its logarithm, Barlow et al. 1972), so that one
bad point moves nothing by itself; then the lowest load from which no higher one has brought as much as `LEAST_ELASTICITY` of a
proportional rise. By Little's law latency then rises in proportion. A fitted curve (the Universal Scalability Law, two
segments) would name a load between those measured, but the bends of real servers, steps at max_num_seqs among them, have
not its shape; so the knee is a load that was measured, with the loads on either side of it as its interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.stats.asked import asked, asked_of, is_open
from loadgen.stats.curve import Curve, Point, curve, points_of
from loadgen.stats.digits import digits
from loadgen.stats.isotonic import monotonic
from loadgen.stats.open_rules import is_saturated
from loadgen.stats.settings import by_setting, headline, setting_text, swept_settings

Level = Mapping[str, Any]

LEAST_ELASTICITY = 0.1
"""Relative gain of throughput / relative gain of load (both as logarithms): at 0.1 twice the load brings 7 %."""

OF_THE_SERVER = frozenset({"scheduler", "kv_cache", "compute", "prefill"})
"""Limits of a level at which more load brings the server's throughput little."""


@dataclass(frozen=True, slots=True)
class Knee:
    """Where throughput stops rising."""

    point: Point
    before: Point | None
    """The stable load below it; None where throughput does not rise from the lowest load on."""
    after: Point
    """The next higher load of any kind: the bend itself may lie anywhere between the two."""


def find_knee(found: Curve) -> Knee | None:
    """The knee of a curve; None where throughput still rises at the highest load, or a single load says nothing."""
    stable = found.stable
    rising = monotonic([math.log(point.throughput) for point in stable])
    for i, point in enumerate(stable):
        beyond = zip(stable[i + 1 :], rising[i + 1 :], strict=True)
        if any(gain - rising[i] >= LEAST_ELASTICITY * math.log(other.load / point.load) for other, gain in beyond):
            continue
        higher = [other for other in (*stable, *found.falling, *found.unstable) if other.load > point.load]
        after = min(higher, key=lambda other: other.load, default=None)
        return None if after is None else Knee(point, stable[i - 1] if i else None, after)
    return None


def knees(levels: Sequence[Level]) -> list[dict[str, Any]]:
    """One entry for each server setting with a valid level: where its throughput stops rising, and which points do not fit."""
    chosen = headline(levels)
    names = swept_settings(chosen)
    return [_entry(group, names) for group in by_setting(chosen).values() if any(level["valid"] for level in group)]


def _entry(group: Sequence[Level], names: Sequence[str]) -> dict[str, Any]:
    found = curve(points_of(group))
    knee = find_knee(found)
    at = None if knee is None else next(level for level in group if level["level"] == knee.point.level)
    settings = setting_text(group[0], names)

    def load(point: Point) -> float | int:
        return point.load if is_open(group[0]) else round(point.load)

    return {
        "server": group[0]["server"],
        "level": None if at is None else at["level"],
        "concurrency": None if at is None else at["concurrency"],
        "request_rate": None if at is None else at["request_rate"],
        "output_throughput": None if knee is None else knee.point.throughput,
        "interval": None if knee is None else [None if knee.before is None else load(knee.before), load(knee.after)],
        "unstable": [load(point) for point in found.unstable],
        "falling": [load(point) for point in found.falling],
        "outliers": [load(point) for point in found.outliers],
        "text": " ".join([_knee_text(group, knee, found, settings), *_strange(found, is_open(group[0]))]),
    }


def _knee_text(group: Sequence[Level], knee: Knee | None, found: Curve, settings: str) -> str:
    where = f" with {settings}" if settings else ""
    opened = is_open(group[0])
    if knee is None:
        highest = max((level for level in group if level["valid"]), key=asked)
        if len(found.stable) < 2:
            return f"One stable load{where} ({asked_of(highest)}) shows no knee."
        return f"No knee{where} up to {asked_of(highest)}: {_still_rises(group, found)}."
    at = knee.point
    text = f"Throughput{where} stops rising at {load_text(at.load, opened)} ({digits(at.throughput)} output tokens/s)"
    if knee.before is not None:
        text += f"; the bend lies between {digits(knee.before.load)} and {digits(knee.after.load)}, where nothing else was measured"
    beyond = [point for point in found.stable if point.load > at.load]
    return f"{text}.{_beyond(at, beyond[-1], opened)}" if beyond else f"{text}."


def _still_rises(group: Sequence[Level], found: Curve) -> str:
    """Why there is none, in accord with what is said of the levels' limits: a server may be at one and not yet past the bend."""
    valid = sorted((level for level in group if level["valid"]), key=asked)
    piling = next((level for level in valid if is_saturated(level)), None)
    if piling is not None:
        below = max((point.load for point in found.stable if point.load < asked(piling)), default=None)
        between = (
            "" if below is None else f"; the bend lies between {digits(below)} and {digits(asked(piling))} requests/s"
        )
        return (
            f"at {asked_of(piling)} requests pile up (saturated), so its {digits(piling['output_throughput'])} output "
            f"tokens/s are what the server can do{between}"
        )
    limited = next((level for level in valid if _kind(level) in OF_THE_SERVER), None)
    if limited is not None:
        return (
            f"throughput still rises there, though from {asked_of(limited)} on by little for the load added "
            f"(limit: {_kind(limited).replace('_', ' ')})"
        )
    return "throughput still rises there"


def _kind(level: Level) -> str:
    return str((level.get("limit") or {}).get("kind", "unknown"))


def _beyond(at: Point, last: Point, opened: bool) -> str:
    gain = last.throughput / at.throughput - 1
    text = f" {last.load / at.load:.3g} times that load changes throughput by {gain:+.1%}"
    if at.latency_ms is None or last.latency_ms is None:
        return f"{text}."
    rise = last.latency_ms / at.latency_ms - 1
    if rise < 2 * LEAST_ELASTICITY * math.log(last.load / at.load) and not opened:
        return (
            f"{text} and E2E latency (P50) by {rise:+.0%}, though it should rise as the load does: something before "
            "the server holds requests back."
        )
    return f"{text} and E2E latency (P50) by {rise:+.0%}."


def _strange(found: Curve, opened: bool) -> list[str]:
    lines = []
    if found.unstable:
        lines.append(
            f"UNSTABLE at {_loads(found.unstable, opened)}: {_rates(found.unstable)}, far from what other loads and runs near it "
            "give: the server has more than one state there, and no answer rests on these points."
        )
    if found.falling:
        lines.append(
            f"Throughput falls beyond: {_rates(found.falling)} at {_loads(found.falling, opened)}; more load does less work."
        )
    if found.outliers:
        lines.append(
            f"Not smooth at {_loads(found.outliers, opened)} ({_rates(found.outliers)}): more than 20 % below the line between "
            "its neighbours; measure it again."
        )
    return lines


def _rates(points: Sequence[Point]) -> str:
    return ", ".join(digits(point.throughput) for point in points) + " output tokens/s"


def _loads(points: Sequence[Point], opened: bool) -> str:
    numbers = ", ".join(f"{point.load:g}" for point in points)
    return f"{numbers} requests/s" if opened else f"concurrency {numbers}"


def load_text(load: float, opened: bool) -> str:
    """`concurrency 8`, or `4 requests/s`."""
    return f"{digits(load)} requests/s" if opened else f"concurrency {load:.0f}"
