"""Takes a level whose samples do not decide an SLO, gives how much longer its window would have to be; pure, and a guess."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from loadgen.stats.percentile import SAMPLES_BEYOND

Level = Mapping[str, Any]

MOST_TIMES = 100.0
"""A figure so near its limit that it takes a window this much longer is not decided by a longer one."""


def more_needed_s(level: Level) -> float | None:
    """Seconds more, in tens of seconds rounded up; None where a figure was not measured or no window would decide.

    Where there are too few samples for a bound: until five lie beyond the percentile, at least as long again. Where the
    interval holds the limit: its width falls with the square root of the window.
    """
    times = [_times(level, key, one) for key, one in level["slo"].items() if one["holds"] is None]
    window_s = level.get("window_s")
    if not times or None in times or window_s is None:
        return None
    most = max(one for one in times if one is not None)
    if most > MOST_TIMES:
        return None
    return math.ceil(float(window_s) * (most - 1) / 10) * 10.0


def _times(level: Level, key: str, one: Mapping[str, Any]) -> float | None:
    """How many times the window would have to be as long."""
    latency, _, statistic = key.rpartition("_")
    low, high = one["interval"] or (None, None)
    if one["value"] is None or statistic == "max":
        return None
    if high is None:
        if not statistic.startswith("p"):
            return 2.0
        needed = SAMPLES_BEYOND / (1 - int(statistic[1:]) / 100)
        samples: int = level.get(f"n_{latency}") or level["requests"]["ok"]
        return max(2.0, needed / max(1, samples))
    within = one["value"] <= one["threshold"]
    arm = high - one["value"] if within else one["value"] - (low or 0.0)
    room = abs(one["threshold"] - one["value"])
    if not room:
        return None
    times: float = (arm / room) ** 2
    return max(1.1, times)
