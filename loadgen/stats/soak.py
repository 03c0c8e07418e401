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
from loadgen.stats.soak_windows import Rest

Row = Mapping[str, Any]

MOST_P_VALUE = 0.05
"""Of twenty soaks without drift at most one is said to have one; it bounds all figures together (Bonferroni)."""
LEAST_SHARE_DRIFT = 0.02
"""Change of the error rate over the soak below which it does not matter, as a share of all requests."""
LEAST_KV_DRIFT = 0.1
"""The same of the KV cache's usage, as a share of the cache."""
LEAST_LEFT_OUT = 0.01
"""Of a window: a shorter rest at a soak's end is none."""
YES, NO, UNDECIDED = "yes", "no", "undecided"


@dataclass(frozen=True, slots=True)
class _Figure:
    words: str
    least: float | None = None
    """Change over the soak that matters, in the figure's own unit; None takes the scenario's share of its median."""
    more_is_better: bool = False


FIGURES: Mapping[str, _Figure] = {
    "p50_ttft_ms": _Figure("TTFT P50"),
    "p95_ttft_ms": _Figure("TTFT P95"),
    "p50_tpot_ms": _Figure("TPOT P50"),
    "p95_tpot_ms": _Figure("TPOT P95"),
    "p50_longest_gap_ms": _Figure("longest gap in a stream P50"),
    "p95_longest_gap_ms": _Figure("longest gap in a stream P95"),
    "output_throughput": _Figure("output tokens/s", more_is_better=True),
    "error_rate": _Figure("error rate", LEAST_SHARE_DRIFT),
    "kv_usage": _Figure("KV cache usage", LEAST_KV_DRIFT),
    "server_memory_bytes": _Figure("server memory"),
}


def soak_object(
    rows: Sequence[Row], *, window_s: float, max_drift: float, judged_s: float, rest: Rest | None = None
) -> dict[str, Any]:
    """What is said of a soak, as JSON-able values; `rows` as `SoakWindows` gives them, whole windows only.

    `max_drift`: change over the soak that matters, as a share of the median over its windows. `judged_s`: how much of the level
    its own figures are of. `rest`: what is in no whole window; it is counted, and no part of a trend. `figures` has every one of `FIGURES`; None where it was not measured in `FEWEST` windows.
    """
    kept = {name: _kept(name, rows) for name in FIGURES}
    judged = sum(len(one) >= FEWEST for one in kept.values())
    figures = {
        name: _judged(name, kept[name], max_drift, judged) if len(kept[name]) >= FEWEST else None for name in FIGURES
    }
    told = {name: one for name, one in figures.items() if one is not None}
    worse = [name for name, one in told.items() if one["drift"] == YES and not one["better"]]
    better = [name for name, one in told.items() if one["drift"] == YES and one["better"]]
    undecided = [name for name, one in told.items() if one["drift"] == UNDECIDED]
    rest = rest or Rest(0.0, {})
    statuses: Counter[str] = Counter(rest.requests)
    for row in rows:
        statuses.update(row["requests"])
    failed = _failed(statuses)
    decided = statuses[OK] + failed
    drift = YES if worse or better else UNDECIDED if undecided or not told else NO
    found = {
        "window_s": window_s,
        "duration_s": len(rows) * window_s,
        "judged_s": judged_s,
        "max_drift": max_drift,
        "drift": drift,
        "worse": bool(worse),
        "requests": _by_status(statuses),
        "error_rate": failed / decided if decided else None,
        "marked_windows": sum(row["mark"] is not None for row in rows),
        "server_restarts": sum(row["server_restarts"] for row in rows),
        "late_requests": sum(row["late_requests"] for row in rows),
        "left_out_s": rest.duration_s,
        "left_out_requests": _by_status(rest.requests),
        "figures": figures,
    }
    return {**found, "text": _text(found, worse, better, undecided), "windows": list(rows)}


def _failed(statuses: Mapping[str, int]) -> int:
    return sum(count for status, count in statuses.items() if is_failure(status))


def _by_status(statuses: Mapping[str, int]) -> dict[str, int]:
    return {OK: statuses.get(OK, 0), **{name: n for name, n in sorted(statuses.items()) if name != OK}}


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
        "better": (trend.slope > 0) == figure.more_is_better if trend.slope else None,
        "median": median,
        "slope_per_hour": trend.slope,
        "interval_per_hour": [trend.low, trend.high],
        "threshold_per_hour": bound,
        "change": trend.slope * lasted_h / median if median else None,
        "p_value": min(1.0, trend.p_value * figures),
        "inflation": trend.inflation,
        "windows": len(kept),
    }


def _text(found: Mapping[str, Any], worse: Sequence[str], better: Sequence[str], undecided: Sequence[str]) -> str:
    lasted = f"{_duration(found['duration_s'])} in windows of {_duration(found['window_s'])}"
    figures = found["figures"]

    def listed(names: Sequence[str]) -> str:
        return "; ".join(_in_words(name, figures[name]) for name in names)

    if worse:
        parts = [f"DRIFT for the worse over {lasted}: {listed(worse)}"]
        if better:
            parts.append(f"for the better: {listed(better)}")
    elif better:
        parts = [f"Drift for the better over {lasted}: {listed(better)}"]
        parts += [f"drift for the worse cannot be ruled out for {listed(undecided)}"] * bool(undecided)
    elif found["drift"] == NO:
        parts = [f"No drift over {lasted}: nothing can have moved by as much as matters ({found['max_drift']:.0%})"]
    elif undecided:
        parts = [f"Undecided over {lasted}: no drift is clear, and it cannot be ruled out for {listed(undecided)}"]
    else:
        parts = [f"Undecided over {lasted}: a trend needs {FEWEST} windows without a mark"]
    if found["left_out_s"] >= LEAST_LEFT_OUT * found["window_s"]:
        parts.append(_left_out(found))
    if found["server_restarts"]:
        parts.append(f"the server began anew {_times(found['server_restarts'])}, and what leaks then begins anew too")
    if found["marked_windows"]:
        counted = "1 window is" if found["marked_windows"] == 1 else f"{found['marked_windows']} windows are"
        parts.append(f"{counted} marked (the server was away or began anew) and left out")
    if found["error_rate"]:
        failed = _failed(found["requests"])
        parts.append(f"{failed} of all {failed + found['requests'][OK]} requests failed ({found['error_rate']:.2%})")
    if found["judged_s"] < 0.99 * found["duration_s"]:
        parts.append(f"the level's own figures are of its last {_duration(found['judged_s'])}")
    return ". ".join(part[:1].upper() + part[1:] for part in parts) + "."


def _left_out(found: Mapping[str, Any]) -> str:
    """What of the soak is in no window: its end, where it is not as long as one."""
    requests = found["left_out_requests"]
    ended, failed = sum(requests.values()), _failed(requests)
    told = "no request" if not ended else "1 request" if ended == 1 else f"{ended} requests"
    told += f", {failed} of them failed," if failed else ""
    return (
        f"its last {_duration(found['left_out_s'])} are no whole window and left out of the trends; {told} ended there or in the "
        "drain"
    )


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
    """The soaks of a run as its answers: {level, concurrency, request_rate, server, drift, worse, valid, text}."""
    return [
        {
            **{name: level[name] for name in ("level", "concurrency", "request_rate", "server", "valid")},
            **{name: level["soak"][name] for name in ("drift", "worse")},
            "text": level["soak"]["text"] + _invalid(level),
        }
        for level in levels
        if level.get("soak") is not None
    ]


def _invalid(level: Mapping[str, Any]) -> str:
    return "" if level["valid"] else f" The level is invalid: {', '.join(one['rule'] for one in level['reasons'])}."


GOOD, DOUBT, BAD = "good", "doubt", "bad"


def standing(said: Sequence[Mapping[str, Any]]) -> str:
    """Of the soaks of a run, as `soaks` gives them, how the worst of them went: one that drifted for the worse is bad; one that
    is undecided, drifted for the better or is invalid is a doubt."""
    if any(one["worse"] for one in said):
        return BAD
    return DOUBT if any(one["drift"] != NO or not one["valid"] for one in said) else GOOD
