"""Takes level objects, gives the report's rows on what lies before and after each window; computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.report.figures import ABSENT, Level, level_cells, number

PHASES = ("first wave", "warm-up", "window", "drain")
"""The groups of the table: TTFT P50 of each; of those that last, how long."""


def phase_rows(levels: Sequence[Level]) -> list[dict[str, object]]:
    """One row a level: `cells` of the settings and the load, TTFT P50 and length of each phase, and `why` the window is what
    it is."""
    rows: list[dict[str, object]] = []
    for level in levels:
        phases = level["phases"]
        first, warmup, drain = phases["first_wave"], phases["warmup"], phases["drain"]
        rows.append(
            {
                "cells": [
                    *level_cells(level, levels),
                    ABSENT if first is None else number(first["p50_ttft_ms"]),
                    number(warmup["p50_ttft_ms"]),
                    number(warmup["duration_s"]),
                    number(level["p50_ttft_ms"]),
                    number(level["window_s"]),
                    number(drain["p50_ttft_ms"]),
                    number(drain["duration_s"]),
                ],
                "why": why(level),
            }
        )
    return rows


def why(level: Level) -> str:
    """When the window opened, how long it was, and whether something drifted in it, in words."""
    opened = level["settle_reason"] if level["settled"] is not None else "after the warm-up that was given"
    steady = level["steady_state"]
    if steady["drifting"]:
        drift = f"{steady['figure']} drifted by {steady['drift_per_window']:+.0%}"
    else:
        drift = "no drift" if steady["judged"] else "too short to tell a drift"
    length = _length(level)
    if (soak := level.get("soak")) is not None:
        length = f"the soak's last {number(level['window_s'])} s, {length}"
        drift = f"within these: {drift}; over the whole soak: {_SOAK[soak['drift'], soak['worse']]}"
    return f"opened: {opened}; length: {length}; {drift}"


def _length(level: Level) -> str:
    if level["interrupted_by"]:
        return "until it was stopped"
    return "until it was interrupted" if level["interrupted"] else level["window_reason"] or "as long as was given"


_SOAK = {
    ("yes", True): "drift for the worse",
    ("yes", False): "drift for the better",
    ("undecided", False): "undecided",
    ("no", False): "no drift",
}
