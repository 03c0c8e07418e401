"""Takes closed-loop levels and open-loop levels at the equal rate, gives both figures and why they differ; pure.

In a closed loop a slow answer holds the next request back, so the load is lightest when the server is slowest. Arrivals of their
own do not wait. The capacity that was found with users is therefore played again as arrivals at the rate that it completed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.stats.asked import asked_of, is_open
from loadgen.stats.capacity import found_by_setting, state_of
from loadgen.stats.digits import digits
from loadgen.stats.open_rules import is_saturated
from loadgen.stats.settings import setting_text, swept_settings
from loadgen.stats.slo import slo_text

Level = Mapping[str, Any]

EQUAL = 0.05
"""Rates that differ by no more than this share are the same load."""
_FIGURES = {"ttft_p95": ("p95_ttft_ms", "p95_ttft_from_schedule_ms"), "tpot_p95": ("p95_tpot_ms", "p95_tpot_ms")}


def confirmations(levels: Sequence[Level]) -> list[dict[str, Any]]:
    """One entry for each server setting whose capacity was also offered as arrivals; empty where none was.

    An entry has `server`, `closed` and `open` (each {level, served_request_rate, ttft_p95, tpot_p95, state}), `confirmed` (True,
    False, or None where the open level is invalid or undecided) and `text`. See docs/answers.md.
    """
    opened = [level for level in levels if is_open(level)]
    if not opened or len(opened) == len(levels):
        return []
    names = swept_settings([level for level in levels if not is_open(level)])
    entries = []
    for _, found in found_by_setting(levels):
        if found.best is None:
            continue
        closed = found.best.level
        if (equal := equal_rate(closed, opened)) is not None:
            entries.append(_entry(closed, equal, setting_text(closed, names)))
    return entries


def equal_rate(closed: Level, opened: Sequence[Level]) -> Level | None:
    """The open level of the same server whose rate is nearest to what the closed one served, a valid one before any that
    is not; None beyond 5 %."""
    rate = closed["served_request_rate"]
    near = [
        level
        for level in opened
        if level["server"] == closed["server"] and abs(level["request_rate"] - rate) <= EQUAL * rate
    ]
    return min(near, key=lambda level: (not level["valid"], abs(level["request_rate"] - rate)), default=None)


def _entry(closed: Level, opened: Level, settings: str) -> dict[str, Any]:
    state = state_of([opened]) if opened["valid"] and opened["slo"] else "invalid"
    confirmed = {"held": True, "missed": False}.get(state)
    return {
        "server": closed["server"],
        "closed": _side(closed, "held", 0),
        "open": _side(opened, state, 1),
        "confirmed": confirmed,
        "text": _text(closed, opened, settings, confirmed),
    }


def _side(level: Level, state: str, which: int) -> dict[str, Any]:
    return {
        "level": level["level"],
        "served_request_rate": level["served_request_rate"],
        **{name: level[fields[which]] for name, fields in _FIGURES.items()},
        "peak_concurrency": level["peak_concurrency"],
        "state": state,
    }


def _text(closed: Level, opened: Level, settings: str, confirmed: bool | None) -> str:
    where = f" with {settings}" if settings else ""
    verdict = {
        True: "Confirmed",
        False: "NOT confirmed",
        None: "Neither confirmed nor refuted" if opened["valid"] else "Not answered: the open level is invalid",
    }[confirmed]
    figures = [
        f"{name} {_ms(name, closed[a])} with {closed['concurrency']} users and {_ms(name, opened[b])} from the schedule"
        if name == "ttft_p95"
        else f"{name} {_ms(name, closed[a])} and {_ms(name, opened[b])}"
        for name, (a, b) in _FIGURES.items()
    ]
    return (
        f"{verdict}{where}: {asked_of(closed)} serves {digits(closed['served_request_rate'])} requests/s; offered "
        f"{digits(opened['request_rate'])} requests/s by arrivals, {digits(opened['completed_request_rate'])} were completed. "
        f"{'; '.join(figures)}. {reason(closed, opened)}"
    )


def _ms(name: str, value: float | None) -> str:
    return "not measured" if value is None else slo_text(name, value)


def reason(closed: Level, opened: Level) -> str:
    """Why the two differ, or that they do not."""
    of_users, of_arrivals = closed["p95_ttft_ms"], opened["p95_ttft_from_schedule_ms"]
    if is_saturated(opened):
        return (
            "Requests pile up: users offer no more than the server completes, arrivals do. What users at capacity complete is "
            "the server's ceiling, and no queue is stable there."
        )
    if of_users is None or of_arrivals is None:
        return "One of them has no TTFT to compare."
    if abs(of_arrivals - of_users) <= 0.1 * of_users:
        return "They agree within 10 %."
    if of_arrivals < of_users:
        return (
            f"Users wait longer: there were always {closed['concurrency']} requests in flight, of the arrivals "
            f"{digits(opened['achieved_concurrency'], 3)} on average."
        )
    if opened["peak_concurrency"] > closed["concurrency"]:
        return (
            f"Arrivals come in bunches: up to {opened['peak_concurrency']} requests were in flight, where users are never more than "
            f"{closed['concurrency']}; a slow answer holds a user's next request back, and no arrival."
        )
    waited = opened["mean_ttft_from_schedule_ms"] - opened["mean_ttft_ms"]
    return f"Of TTFT from the schedule {waited:.3g} ms on average passed before the request was sent."
