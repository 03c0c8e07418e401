"""Takes the levels of a run, gives the SLO capacity of each server setting: the highest load that holds with its bound; pure.

A load *holds* when the upper end of every SLO figure's 95 % interval is within its limit, *misses* when the lower end of one
is beyond its limit, and is *undecided* else. Capacity is a load that was measured; the truth lies between it and the lowest load
above it that misses, and that is its interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from loadgen.stats.asked import asked, asked_exactly, asked_number, asked_of, is_open
from loadgen.stats.curve import unstable_levels
from loadgen.stats.digits import digits
from loadgen.stats.isotonic import monotonic
from loadgen.stats.long_run import t_quantile
from loadgen.stats.more_needed import more_needed_s
from loadgen.stats.open_rules import is_saturated
from loadgen.stats.server_rules import told_beside
from loadgen.stats.settings import by_setting, headline, setting_text, swept_settings
from loadgen.stats.slo import slo_text

Level = Mapping[str, Any]
State = Literal["held", "missed", "undecided", "invalid"]

CLOSE = 1.05
"""Neighbouring loads no further apart than this resolve a capacity; so do neighbouring whole numbers of users."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One load, its repeats taken together."""

    load: float
    runs: Sequence[Level]
    """The valid ones; where none is, all."""
    state: State
    unstable: bool = False
    """Whether the server has more than one state there: then it is no capacity."""

    @property
    def level(self) -> Level:
        """The run that stands for it: the median by throughput."""
        ordered = sorted(self.runs, key=lambda level: level["output_throughput"] or 0)
        return ordered[(len(ordered) - 1) // 2]


def ladder(levels: Sequence[Level]) -> list[Rung]:
    """The loads of one server setting in order, each with its state."""
    same: dict[float, list[Level]] = {}
    for level in levels:
        same.setdefault(asked(level), []).append(level)
    unstable = unstable_levels(levels)
    return [_rung(load, runs, unstable) for load, runs in sorted(same.items())]


def _rung(load: float, runs: Sequence[Level], unstable: Container[int]) -> Rung:
    valid = [level for level in runs if level["valid"]]
    counted = valid or runs
    state = state_of(valid) if valid else "invalid"
    return Rung(load, counted, state, unstable=any(level["level"] in unstable for level in counted))


def state_of(runs: Sequence[Level]) -> State:
    """Whether a load keeps every SLO, from its valid runs; the mean of several runs has a narrower interval than one."""
    saturated = sum(map(is_saturated, runs))
    if 2 * saturated > len(runs):
        return "missed"
    keys = [_pooled([level["slo"][key] for level in runs]) for key in runs[0]["slo"]]
    if False in keys:
        return "missed"
    return "undecided" if None in keys or saturated else "held"


def _pooled(ones: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether an SLO holds over several runs: True or False where its bound decides, else None."""
    if len(ones) == 1:
        holds: bool | None = ones[0]["holds"]
        return holds
    values = [one["value"] for one in ones]
    bounds = [one["interval"] or [None, None] for one in ones]
    if None in values:
        return None
    if all(one["holds"] is not None and one["holds"] is ones[0]["holds"] for one in ones):
        return bool(ones[0]["holds"])  # all say the same, each by itself
    if len(ones) == 2 and None not in (ones[0]["holds"], ones[1]["holds"]):
        return None  # each is certain, of the opposite
    mean, threshold, n = statistics.fmean(values), ones[0]["threshold"], len(ones)
    # Runs differ by more than their windows' wobble tells; how much more is known from three runs on.
    between = t_quantile(n - 1) * statistics.stdev(values) / math.sqrt(n) if n > 2 else 0.0
    below = [value - low for value, (low, _) in zip(values, bounds, strict=True) if low is not None]
    above = [high - value for value, (_, high) in zip(values, bounds, strict=True) if high is not None]
    if len(above) == n and mean + max(between, math.hypot(*above) / n) <= threshold:
        return True
    if len(below) == n and mean - max(between, math.hypot(*below) / n) > threshold:
        return False
    return None


@dataclass(frozen=True, slots=True)
class Found:
    """The capacity of one server setting."""

    rungs: Sequence[Rung]
    best: Rung | None
    """The highest load that holds; None where none does."""
    above: Rung | None
    """The lowest load above it that misses; None where none does."""
    against: Sequence[Rung]
    """Loads that speak against it: below it and missed, or above the one that misses and held."""

    @property
    def between(self) -> list[Rung]:
        """Loads above the best one and below the one that misses: undecided or invalid."""
        low = 0.0 if self.best is None else self.best.load
        high = math.inf if self.above is None else self.above.load
        return [rung for rung in self.rungs if low < rung.load < high]

    @property
    def resolved(self) -> bool:
        """Whether a load that holds and one that misses are neighbours, and nothing speaks against it."""
        if self.best is None or self.above is None or self.against:
            return False
        near = self.above.load <= CLOSE * self.best.load
        return near or (not is_open(self.best.level) and self.above.load - self.best.load <= 1)

    @property
    def rests_on_invalid(self) -> bool:
        """Whether the next load above the best one, which should say how far it goes, is invalid."""
        return bool(self.between) and self.between[0].state == "invalid"


def find_capacity(rungs: Sequence[Rung]) -> Found:
    """The cut of the ladder that fewest loads speak against, the lower one of equals: held below it, missed above it."""
    cuts = range(len(rungs) + 1)
    cost = [sum(r.state == "missed" for r in rungs[:cut]) + sum(r.state == "held" for r in rungs[cut:]) for cut in cuts]
    cut = cost.index(min(cost))
    best = next((r for r in reversed(rungs[:cut]) if r.state == "held" and not r.unstable), None)
    above = next((r for r in rungs[cut:] if r.state == "missed"), None)
    against = [r for r in rungs[:cut] if r.state == "missed"] + [r for r in rungs[cut:] if r.state == "held"]
    return Found(rungs, best, above, against)


def estimate(found: Found) -> float | None:
    """The load at which the worst SLO figure passes its limit, by the levels' values: between the loads on either side of it, on
    logarithmic scales, the figure made monotonic over the load. None where the values are on one side only.

    It says where to measure next; it is not a load that was measured. It lies within the capacity's interval.
    """
    shares = [
        (rung.load, share) for rung in found.rungs if rung.state != "invalid" and (share := _used(rung)) is not None
    ]
    rising = monotonic([math.log(max(share, 1e-3)) for _, share in shares])
    for (low, below), (high, above) in pairwise(zip([load for load, _ in shares], rising, strict=True)):
        if below <= 0 < above:
            crossing = low * math.exp(-below / (above - below) * math.log(high / low))
            least = 0.0 if found.best is None else found.best.load
            most = math.inf if found.above is None else found.above.load
            return min(max(crossing, least), most)
    return None


def _used(rung: Rung) -> float | None:
    """How much of its limit the worst figure uses, the mean of the runs; None where one was not measured."""
    shares: list[float] = []
    for key, one in rung.level["slo"].items():
        values = [level["slo"][key]["value"] for level in rung.runs]
        if None in values or one["threshold"] <= 0:
            return None
        shares.append(statistics.fmean(values) / one["threshold"])
    return max(shares)


def found_by_setting(levels: Sequence[Level]) -> list[tuple[list[Level], Found]]:
    """(the levels of a server setting, its capacity) for each setting that has an SLO."""
    judged = headline([level for level in levels if level["slo"]])
    return [(group, find_capacity(ladder(group))) for group in by_setting(judged).values()]


def capacities(levels: Sequence[Level]) -> list[dict[str, Any]]:
    """One entry for each server setting, in the order of the run; empty without an SLO. See docs/answers.md."""
    names = swept_settings(headline(levels))
    return [_entry(group, found, names) for group, found in found_by_setting(levels)]


def _entry(group: Sequence[Level], found: Found, names: Sequence[str]) -> dict[str, Any]:
    best = None if found.best is None else found.best.level
    at = {
        name: None if best is None else best.get(name)
        for name in ("level", "concurrency", "request_rate", "served_request_rate", "output_throughput", "limit")
    }
    served = None if best is None else best.get("intervals", {}).get("served_request_rate")
    return {
        "server": group[0]["server"],
        **at,
        "served_request_rate_interval": served,
        "interval": [None if one is None else asked_exactly(one.level) for one in (found.best, found.above)],
        "estimate": estimate(found),
        "resolved": found.resolved,
        "text": _text(group, found, setting_text(group[0], names)),
    }


def _text(group: Sequence[Level], found: Found, settings: str) -> str:
    where = f" with {settings}" if settings else ""
    if found.best is None:
        return _none_holds(found, where)
    best = found.best.level
    conditions = f"{asked_of(best)}{', ' if settings else ''}{settings}"
    figures = ", ".join(_with_bound(key, one) for key, one in best["slo"].items())
    return (
        f"{conditions[:1].upper()}{conditions[1:]} keeps every SLO with its 95 % bound ({figures}) at "
        f"{_rates(best)}; {_boundary(found)}{_against(found)}.{told_beside(best)}"
    )


def _rates(level: Level) -> str:
    requests = level.get("served_request_rate")
    text = f"{digits(level['output_throughput'])} output tokens/s"
    return text if requests is None else f"{digits(requests)} requests/s and {text}"


def _with_bound(key: str, one: Mapping[str, Any]) -> str:
    value = "not measured" if one["value"] is None else slo_text(key, one["value"])
    high = (one["interval"] or [None, None])[1]
    # The bound of an error rate without a failure is what so few requests allow, not what was seen.
    told = high is not None and high != one["value"] and high <= one["threshold"]
    return f"{key} {value}" + (f", upper bound {slo_text(key, high)}" if told else "")


def _boundary(found: Found) -> str:
    assert found.best is not None
    low = asked_number(found.best.level)
    if found.above is None and not found.between:
        return f"the limit was not reached: no load above {low} was measured"
    if found.resolved and found.above is not None:
        return f"{asked_of(found.above.level)} misses it ({why(found.above)})"
    if found.above is None:
        return f"not resolved above {low}: {_each(found.between)}"
    about = estimate(found)
    near = "" if about is None else f", probably near {digits(about, 3)} (an estimate)"
    missed = f"{asked_of(found.above.level)} misses it ({why(found.above)})"
    between = f"not resolved between {low} and {asked_number(found.above.level)}{near}; {missed}"
    return f"{between}; {_each(found.between)}" if found.between else between


def _each(rungs: Sequence[Rung]) -> str:
    return "; ".join(f"{asked_of(rung.level)} {_undecided(rung)}" for rung in rungs)


def _undecided(rung: Rung) -> str:
    return "is invalid" if rung.state == "invalid" else f"decides nothing ({why(rung)}){more_needed(rung)}"


def _against(found: Found) -> str:
    if not found.against:
        return ""
    low = 0.0 if found.best is None else found.best.load
    parts = [f"{asked_of(r.level)} {'holds' if r.load > low else 'misses it'}" for r in found.against]
    return f". The curve is not monotonic: {', '.join(parts)}, which was not counted"


def _none_holds(found: Found, where: str) -> str:
    """That no load keeps the SLO is said only where the lowest valid one is shown to break it."""
    lowest = next((rung for rung in found.rungs if rung.state != "invalid"), None)
    if lowest is None:
        return f"Not answered{where}: no level is valid."
    if lowest.state == "missed":
        return (
            f"No load{where} keeps the SLO with its 95 % bound: the lowest, {asked_of(lowest.level)}, misses it "
            f"({why(lowest)})."
        )
    undecided = f"Undecided{where}: of the lowest load, {asked_of(lowest.level)}, the 95 % bounds tell nothing yet"
    if lowest.unstable and lowest.state == "held":
        undecided = f"Undecided{where}: the lowest load, {asked_of(lowest.level)}, decides nothing"
    missed = "" if found.above is None else f"; {asked_of(found.above.level)} misses it ({why(found.above)})"
    return f"{undecided} ({why(lowest)}){more_needed(lowest)}{missed}."


def why(rung: Rung) -> str:
    """What keeps a load from holding, with the interval that does."""
    level = rung.level
    if rung.unstable and rung.state == "held":
        return "the server has more than one state there (unstable)"
    if is_saturated(level):
        return "requests pile up (saturated)"
    parts = []
    for key, one in level["slo"].items():
        if one["holds"] is True:
            continue
        if one["value"] is None:
            parts.append(f"{key} was not measured")
            continue
        low, high = one["interval"] or [None, None]
        text = f"{key} {slo_text(key, one['value'])}"
        if one["holds"] is None:
            text += f" of {slo_text(key, one['threshold'])}"
        if high is None and one["holds"] is None:
            text += ", too few samples for an upper bound"
        elif one["holds"] is False:
            text += f", lower bound {slo_text(key, low)}" if low is not None and low != one["value"] else ""
        else:
            text += f", 95 % interval {slo_text(key, low or 0.0)} to {slo_text(key, high)}"
        parts.append(text)
    return ", ".join(parts)


def more_needed(rung: Rung) -> str:
    """How much longer an undecided load would have to be measured, as a part of a sentence; empty where nobody can say."""
    if rung.state != "undecided":
        return ""
    more_s = more_needed_s(rung.level)
    return ": measure longer" if more_s is None else f": about {more_s:,.0f} s more needed (load.duration)"
