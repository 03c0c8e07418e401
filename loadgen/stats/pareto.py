"""Takes the levels of a run, gives total speed against the speed that one user sees, and which points none beats in both; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.stats.asked import asked_of
from loadgen.stats.capacity import found_by_setting
from loadgen.stats.curve import curve, points_of, unstable_levels
from loadgen.stats.digits import digits
from loadgen.stats.knee import find_knee
from loadgen.stats.settings import by_setting, headline, setting_text, swept_settings

Level = Mapping[str, Any]


def pareto(levels: Sequence[Level]) -> dict[str, Any] | None:
    """{text, points}: one point a valid level with both speeds, in the order of the run; None without one.

    A point has level, concurrency, request_rate, server, `output_throughput` of all users, `tokens_per_user` (1000 / TPOT
    P50), `on_front`, and `marks`: whether it is its setting's `knee` or `capacity`, or `unstable`.
    """
    chosen = headline(levels)
    unstable = unstable_levels(chosen)
    rows = [
        _row(level) for level in chosen if level["valid"] and level.get("p50_tpot_ms") and level["output_throughput"]
    ]
    if not rows:
        return None
    marks = {**_marks(levels), "unstable": unstable}
    for row in rows:
        row["on_front"] = row["level"] not in unstable and not any(_beats(other, row) for other in rows)
        row["marks"] = [name for name, numbers in marks.items() if row["level"] in numbers]
    front = sorted((row for row in rows if row["on_front"]), key=lambda row: row["tokens_per_user"])
    names = swept_settings(chosen)
    texts = [
        f"{digits(row['output_throughput'])} at {digits(row['tokens_per_user'])} a user ({_where(row, names)})"
        for row in front
    ]
    return {"text": f"Output tokens/s that no other level beats in both: {', '.join(texts)}.", "points": rows}


def _row(level: Level) -> dict[str, Any]:
    return {
        **{name: level[name] for name in ("level", "concurrency", "request_rate", "server", "output_throughput")},
        "tokens_per_user": 1000 / level["p50_tpot_ms"],
    }


def _marks(levels: Sequence[Level]) -> dict[str, set[int]]:
    knees = (find_knee(curve(points_of(group))) for group in by_setting(headline(levels)).values())
    capacities = (found.best for _, found in found_by_setting(levels))
    return {
        "knee": {knee.point.level for knee in knees if knee is not None and knee.point.level is not None},
        "capacity": {best.level["level"] for best in capacities if best is not None},
    }


def _beats(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    speeds = ("output_throughput", "tokens_per_user")
    return all(one[speed] >= other[speed] for speed in speeds) and any(one[speed] > other[speed] for speed in speeds)


def _where(row: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(filter(None, (asked_of(row), setting_text(row, names))))
