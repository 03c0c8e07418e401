"""Takes the windows of a soak, says of each figure whether it drifted; pure. Three answers: yes, no, undecided.

How each is found is in docs/soak.md. Windows in which the server was away or began anew are counted and left out: what they show
is known already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.record import OK, is_failure
from loadgen.stats.soak_trend import FEWEST, soak_trend

Row = Mapping[str, Any]

MOST_P_VALUE = 0.05
"""Of twenty soaks without drift at most one is said to have one; it bounds all figures together (Bonferroni)."""
LEAST_SHARE_DRIFT = 0.02
"""Change of the error rate over the soak below which it does not matter, as a share of all requests."""
LEAST_KV_DRIFT = 0.1
"""The same of the KV cache's usage, as a share of the cache."""
YES, NO, UNDECIDED = "yes", "no", "undecided"


@dataclass(frozen=True, slots=True)
class _Figure:
    words: str
    least: float | None = None
    """Change over the soak that matters, in the figure's own unit; None takes the scenario's share of its median."""


FIGURES: Mapping[str, _Figure] = {
    "p50_ttft_ms": _Figure("TTFT P50"),
    "p95_ttft_ms": _Figure("TTFT P95"),
    "p50_tpot_ms": _Figure("TPOT P50"),
    "p95_tpot_ms": _Figure("TPOT P95"),
    "output_throughput": _Figure("output tokens/s"),
    "error_rate": _Figure("error rate", LEAST_SHARE_DRIFT),
    "kv_usage": _Figure("KV cache usage", LEAST_KV_DRIFT),
    "server_memory_bytes": _Figure("server memory"),
}


def soak_object(rows: Sequence[Row], *, window_s: float, max_drift: float, judged_s: float) -> dict[str, Any]:
    """What is said of a soak, as JSON-able values; `rows` as `SoakWindows` gives them, whole windows only.

    `max_drift`: change over the soak that matters, as a share of the median over its windows. `judged_s`: how much of the level
    its own figures are of. `figures` has every one of `FIGURES`; None where it was not measured in `FEWEST` windows.
    """
    kept = {name: _kept(name, rows) for name in FIGURES}
    judged = sum(len(one) >= FEWEST for one in kept.values())
    figures = {
        name: _judged(name, kept[name], max_drift, judged) if len(kept[name]) >= FEWEST else None for name in FIGURES
    }
    told = {name: one for name, one in figures.items() if one is not None}
    drifting = [name for name, one in told.items() if one["drift"] == YES]
    undecided = [name for name, one in told.items() if one["drift"] == UNDECIDED]
    statuses: Counter[str] = Counter()
    for row in rows:
        statuses.update(row["requests"])
    failed = sum(count for status, count in statuses.items() if is_failure(status))
    decided = statuses[OK] + failed
    drift = YES if drifting else UNDECIDED if undecided or not told else NO
    found = {
        "window_s": window_s,
        "duration_s": len(rows) * window_s,
        "judged_s": judged_s,
        "max_drift": max_drift,
        "drift": drift,
        "requests": {OK: statuses[OK], **{k: n for k, n in sorted(statuses.items()) if k != OK}},
        "error_rate": failed / decided if decided else None,
        "marked_windows": sum(row["mark"] is not None for row in rows),
        "server_restarts": sum(row["server_restarts"] for row in rows),
        "late_requests": sum(row["late_requests"] for row in rows),
        "figures": figures,
    }
    return {**found, "text": _text(found, drifting, undecided), "windows": list(rows)}


def _kept(name: str, rows: Sequence[Row]) -> list[Row]:
    """The windows that tell of a figure. Failures that stay to the end are a drift; those before a window without a mark are over."""
    last_good = max((k for k, row in enumerate(rows) if row["mark"] is None), default=-1)
    return [
        row
        for k, row in enumerate(rows)
        if row.get(name) is not None and (row["mark"] is None or (name == "error_rate" and k > last_good))
    ]


def _judged(name: str, kept: Sequence[Row], max_drift: float, figures: int) -> dict[str, Any]:
    """One of so many `figures`."""
    figure, most_p = FIGURES[name], MOST_P_VALUE / figures
    hours = np.array([row["start_s"] / 3600 for row in kept])
    values = np.array([row[name] for row in kept], np.float64)
    trend = soak_trend(hours, values, confidence=1 - most_p)
    assert trend is not None
    lasted_h = float(hours[-1] - hours[0]) + kept[0]["window_s"] / 3600
    median = float(np.median(values))
    least = figure.least if figure.least is not None else max_drift * abs(median)
    bound = least / lasted_h
    clear = trend.p_value <= most_p
    if clear and abs(trend.slope) >= bound:
        drift = YES
    elif max(abs(trend.low), abs(trend.high)) <= bound:
        drift = NO
    else:
        drift = UNDECIDED
    return {
        "drift": drift,
        "median": median,
        "slope_per_hour": trend.slope,
        "interval_per_hour": [trend.low, trend.high],
        "threshold_per_hour": bound,
        "change": trend.slope * lasted_h / median if median else None,
        "p_value": min(1.0, trend.p_value * figures),
        "inflation": trend.inflation,
        "windows": len(kept),
    }


def _text(found: Mapping[str, Any], drifting: Sequence[str], undecided: Sequence[str]) -> str:
    lasted = f"{_duration(found['duration_s'])} in windows of {_duration(found['window_s'])}"
    figures = found["figures"]
    if drifting:
        parts = [f"DRIFT over {lasted}: " + "; ".join(_in_words(name, figures[name]) for name in drifting)]
    elif found["drift"] == NO:
        parts = [f"No drift over {lasted}: nothing can have moved by as much as matters ({found['max_drift']:.0%})"]
    elif undecided:
        parts = [
            f"Undecided over {lasted}: no drift is clear, and it cannot be ruled out for "
            + "; ".join(_in_words(name, figures[name]) for name in undecided)
        ]
    else:
        parts = [f"Undecided over {lasted}: a trend needs {FEWEST} windows without a mark"]
    if found["server_restarts"]:
        parts.append(f"the server began anew {_times(found['server_restarts'])}, and what leaks then begins anew too")
    if found["marked_windows"]:
        counted = "1 window is" if found["marked_windows"] == 1 else f"{found['marked_windows']} windows are"
        parts.append(f"{counted} marked (the server was away or began anew) and left out")
    if found["error_rate"]:
        parts.append(f"{found['error_rate']:.2%} of all requests failed")
    if found["judged_s"] < 0.99 * found["duration_s"]:
        parts.append(f"the level's own figures are of its last {_duration(found['judged_s'])}")
    return ". ".join(part[:1].upper() + part[1:] for part in parts) + "."


def _in_words(name: str, figure: Mapping[str, Any]) -> str:
    scale, unit = _UNITS.get(name, (1.0, ""))
    low, high = (_number(bound * scale) for bound in figure["interval_per_hour"])
    slope, bound = (_number(figure[key] * scale) for key in ("slope_per_hour", "threshold_per_hour"))
    relative = FIGURES[name].least is None and figure["change"] is not None
    change = f", {figure['change']:+.1%} in all" if relative and figure["drift"] == YES else ""
    return f"{FIGURES[name].words} {slope}{unit} an hour{change} ({low} to {high}; {bound.lstrip('+')} matters)"


def _number(value: float) -> str:
    return f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.3g}"


_UNITS = {
    **{name: (1.0, " ms") for name in FIGURES if name.endswith("_ms")},
    "error_rate": (100.0, " points"),
    "kv_usage": (100.0, " points"),
    "server_memory_bytes": (1e-6, " MB"),
}


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _duration(seconds: float) -> str:
    for unit_s, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s or seconds == unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def soaks(levels: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The soaks of a run as its answers: {level, concurrency, request_rate, server, drift, text}."""
    return [
        {
            **{name: level[name] for name in ("level", "concurrency", "request_rate", "server")},
            "drift": level["soak"]["drift"],
            "text": level["soak"]["text"],
        }
        for level in levels
        if level.get("soak") is not None
    ]
