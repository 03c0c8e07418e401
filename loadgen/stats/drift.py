"""Takes the levels of a sweep whose first level was repeated at its end, tells whether the two agree; pure.

What differs between them is neither load nor settings but time: a cache that filled, a clock rate that sank, other work on the
host. By as much every level between them may be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.stats.asked import asked, asked_of
from loadgen.stats.settings import by_setting, headline, setting_text, swept_settings

Level = Mapping[str, Any]

LEAST_DRIFT = 0.05
"""Changes below it are none, however narrow the intervals: two levels of a steady server differ by as much."""
FIGURES = ("output_throughput", "p50_ttft_ms", "p95_ttft_ms", "p50_tpot_ms", "p95_tpot_ms")
_WORDS = {
    "output_throughput": "output tokens/s",
    "p50_ttft_ms": "TTFT P50",
    "p95_ttft_ms": "TTFT P95",
    "p50_tpot_ms": "TPOT P50",
    "p95_tpot_ms": "TPOT P95",
}


def drifts(levels: Sequence[Level]) -> list[dict[str, Any]]:
    """One entry for each sweep (a server setting, a repeat) that ended with the load that it began with.

    An entry has `server`, `run`, `first` and `last` (numbers of the levels), `figures` ({figure: {first, last, change}}, None where
    one was not measured), `drifted` (the figures that changed by more than 5 % and beyond both 95 % intervals) and `text`.
    """
    levels = headline(levels)
    names = swept_settings(levels)
    found = []
    for group in by_setting(levels).values():
        for run in sorted({level["run"] for level in group}):
            sweep = [level for level in group if level["run"] == run and not level["interrupted"]]
            if len(sweep) > 2 and _same_load(sweep[0], sweep[-1]) and not _same_load(sweep[0], sweep[1]):
                found.append(_entry(sweep[0], sweep[-1], setting_text(sweep[0], names)))
    return found


def _same_load(one: Level, other: Level) -> bool:
    return (one["concurrency"] is None) == (other["concurrency"] is None) and asked(one) == asked(other)


def _entry(first: Level, last: Level, settings: str) -> dict[str, Any]:
    judged = first["valid"] and last["valid"]
    figures = {name: _change(first, last, name) for name in FIGURES}
    drifted = [name for name in FIGURES if judged and _has_drifted(first, last, name, figures[name])]
    return {
        "server": first["server"],
        "run": first["run"],
        "first": first["level"],
        "last": last["level"],
        "figures": figures,
        "drifted": drifted,
        "text": _text(first, settings, figures, drifted, judged=judged),
    }


def _change(first: Level, last: Level, name: str) -> dict[str, Any] | None:
    before, after = first[name], last[name]
    if not before or after is None:
        return None
    return {"first": before, "last": after, "change": after / before - 1}


def _has_drifted(first: Level, last: Level, name: str, change: Mapping[str, Any] | None) -> bool:
    if change is None or abs(change["change"]) < LEAST_DRIFT:
        return False
    one, other = (_bounds(level, name) for level in (first, last))
    return one[1] < other[0] or other[1] < one[0]


def _bounds(level: Level, name: str) -> tuple[float, float]:
    low, high = level.get("intervals", {}).get(name) or (None, None)
    return (level[name] if low is None else low), (float("inf") if high is None else high)


def _text(first: Level, settings: str, figures: Mapping[str, Any], drifted: Sequence[str], *, judged: bool) -> str:
    where = f"{asked_of(first)}{', ' if settings else ''}{settings}"
    if not judged:
        return f"Not known: {where} ran first and last, and one of the two levels is invalid."
    if not drifted:
        return f"None: {where} gave the same at the beginning and at the end of its sweep."
    told = ", ".join(
        f"{_WORDS[name]} {figures[name]['first']:,.4g} → {figures[name]['last']:,.4g} ({figures[name]['change']:+.1%})"
        for name in drifted
    )
    return (
        f"DRIFT between first and last: {where} gave {told}. Levels between them may be wrong by as much; lengthen the warm-up, or "
        "look for what changed meanwhile."
    )
