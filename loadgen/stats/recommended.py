"""Takes the levels of a sweep over server settings, recommends one setting and tells the cost of the others; pure.

The best setting is the one whose SLO capacity serves most requests a second; without an SLO the one with the highest stable
output throughput. Of settings that cannot be told from the best by their intervals the smallest is taken: it holds back less
memory, and more of it must show a gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadgen.stats.asked import asked_exactly, asked_of
from loadgen.stats.capacity import Found, found_by_setting
from loadgen.stats.curve import Curve, curve, points_of
from loadgen.stats.digits import digits
from loadgen.stats.settings import by_setting, headline, setting_text, swept_settings

Level = Mapping[str, Any]

LEAST_DIFFERENCE = 0.01
"""Differences below it are none, however narrow the intervals: a server started again differs by as much."""
NO_LIMIT = ("none", "unknown")
"""Kinds of `limit` that are none."""


@dataclass(frozen=True, slots=True)
class _Setting:
    group: Sequence[Level]
    text: str
    curve: Curve
    found: Found | None
    """Its capacity; None without an SLO."""
    at: Level | None
    """The level that the setting is judged by."""

    @property
    def figure(self) -> str:
        return "output_throughput" if self.found is None else "served_request_rate"

    @property
    def value(self) -> float | None:
        return None if self.at is None else self.at[self.figure]

    @property
    def top(self) -> Level | None:
        """The level with its highest output throughput at a stable load."""
        point = max(self.curve.stable, key=lambda one: one.throughput, default=None)
        return None if point is None else next(level for level in self.group if level["level"] == point.level)

    @property
    def limit(self) -> str:
        """`, limit: scheduler` at its ceiling; empty where that is not known."""
        limit = None if self.top is None else self.top.get("limit")
        return f", limit: {limit['kind'].replace('_', ' ')}" if limit and limit["kind"] not in NO_LIMIT else ""

    @property
    def half_width(self) -> float:
        """Of the 95 % interval of `value`; infinite where it has none, for then nothing can be told from it."""
        assert self.at is not None
        low, high = self.at.get("intervals", {}).get(self.figure, (0.0, math.inf))
        return float(high - low) / 2

    @property
    def size(self) -> tuple[tuple[int, float, str], ...]:
        """Orders settings: numbers by size, words after them by name."""
        return tuple(_size(value) for value in self.group[0]["server"].values())


def _size(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def recommended(levels: Sequence[Level]) -> dict[str, Any] | None:
    """The answer of docs/answers.md; None where no server setting was swept."""
    chosen = headline(levels)
    names = swept_settings(chosen)
    if not names:
        return None
    found = {setting_text(group[0], names): one for group, one in found_by_setting(levels)}
    settings = [_setting(group, text, found) for text, group in by_setting(chosen).items()]
    measured = [one for one in settings if one.value is not None]
    if not measured:
        why = "keeps the SLO with its bound at any load" if found else "has a valid level"
        nothing = dict.fromkeys(("server", "level", "concurrency", "request_rate"))
        by_server = [_entry(one, None, tied=False) for one in settings]
        return {**nothing, "by_server": by_server, "text": f"No setting is recommended: none {why}."}
    best = max(measured, key=lambda one: one.value or 0.0)
    tied = [one for one in measured if one is best or _same(one, best)]
    pick = min(tied, key=lambda one: one.size)
    assert pick.at is not None
    return {
        **{name: pick.at[name] for name in ("server", "level", "concurrency", "request_rate")},
        "by_server": [_entry(one, pick, tied=one in tied) for one in settings],
        "text": " ".join([_reason(pick, best, tied), *_costs(settings, pick, tied)]),
    }


def _setting(group: Sequence[Level], text: str, found: Mapping[str, Found]) -> _Setting:
    shape = curve(points_of(group))
    if found:
        capacity = found.get(text)
        best = None if capacity is None or capacity.best is None else capacity.best.level
        return _Setting(group, text, shape, capacity or Found([], None, None, []), best)
    without = _Setting(group, text, shape, None, None)
    return replace(without, at=without.top)


def _same(one: _Setting, best: _Setting) -> bool:
    assert one.value is not None and best.value is not None
    return best.value - one.value <= max(LEAST_DIFFERENCE * best.value, math.hypot(one.half_width, best.half_width))


def _entry(one: _Setting, pick: _Setting | None, *, tied: bool) -> dict[str, Any]:
    at, top = one.at, one.top
    share = None if pick is None or not pick.value or one.value is None else one.value / pick.value - 1
    return {
        "server": one.group[0]["server"],
        **{name: None if at is None else at.get(name) for name in ("level", "concurrency", "request_rate")},
        "served_request_rate": None if at is None else at.get("served_request_rate"),
        "output_throughput": None if at is None else at["output_throughput"],
        "ceiling": None if top is None else top["output_throughput"],
        "ceiling_load": None if top is None else asked_exactly(top),
        "limit": None if top is None else top.get("limit"),
        "difference": share,
        "tied": tied,
    }


def _unit(one: _Setting) -> str:
    return "output tokens/s" if one.found is None else "requests/s within the SLO"


def _reason(pick: _Setting, best: _Setting, tied: Sequence[_Setting]) -> str:
    assert pick.at is not None
    text = f"{pick.text}: {digits(pick.value or 0.0)} {_unit(pick)} at {asked_of(pick.at)}"
    if len(tied) > 1:
        others = " and ".join(f"{one.text} ({_gain(one, pick)})" for one in tied if one is not pick)
        return f"{text}. {others} cannot be told from it (the 95 % intervals overlap), so the smallest was taken."
    return f"{text}, the most of the settings measured{pick.limit}."


def _gain(one: _Setting, pick: _Setting) -> str:
    return f"{(one.value or 0.0) / (pick.value or 1.0) - 1:+.1%}"


def _costs(settings: Sequence[_Setting], pick: _Setting, tied: Sequence[_Setting]) -> list[str]:
    return [
        _cost(one, pick) for one in sorted(settings, key=lambda one: one.size) if one is not pick and one not in tied
    ]


def _cost(one: _Setting, pick: _Setting) -> str:
    if one.value is None:
        none = "no load keeps the SLO with its bound" if one.found is not None else "no level is valid"
        return f"{one.text}: {none}."
    assert pick.value
    what = "output tokens/s" if one.found is None else "requests/s"
    text = f"{one.text}: {1 - one.value / pick.value:.1%} fewer {what}"
    return f"{text}{one.limit}."
