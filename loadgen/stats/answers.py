"""Takes the level objects of a run, gives answers and the verdict; no answer rests on an invalid level.

An answer never says more than was measured: the boundary between two levels is "not resolved", not interpolated.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from loadgen.search.answer import search_answers
from loadgen.search.failures import failed_settings
from loadgen.search.search import Search
from loadgen.stats.asked import asked, asked_number, asked_of
from loadgen.stats.capacity import capacities, found_by_setting
from loadgen.stats.confirmation import confirmations
from loadgen.stats.curve import unstable_levels
from loadgen.stats.drift import drifts
from loadgen.stats.knee import knees
from loadgen.stats.open_rules import is_saturated
from loadgen.stats.pareto import pareto
from loadgen.stats.recommended import recommended
from loadgen.stats.repeats import repeats, representative
from loadgen.stats.settings import headline, setting_text, swept_settings
from loadgen.stats.slo import slo_text
from loadgen.stats.soak import GOOD, soaks, standing

Level = Mapping[str, Any]

ALL_GOOD = 0
ALL_FAILED = 1
NONE_VALID = 3
DRIFTED = 99


def verdict(levels: Sequence[Level], *, fail_on_drift: bool = False) -> dict[str, Any]:
    """{valid_levels, invalid_levels, rests_on_invalid, exit_code}: 1 when no request of the run succeeded, 3 when no level is
    valid or the answer rests on an invalid one, which `rests_on_invalid` then names; else it is None. 99 where neither is so, and
    with `fail_on_drift` a soak drifted for the worse."""
    valid = sum(level["valid"] for level in levels)
    ok = sum(level["requests"]["ok"] for level in levels)
    ended = sum(sum(level["requests"].values()) for level in levels)
    rests = _rests_on_invalid(levels) if valid else None
    exit_code = NONE_VALID if rests or not valid else ALL_GOOD
    if not levels or (ended and not ok):
        exit_code = ALL_FAILED
    if (
        exit_code == ALL_GOOD
        and fail_on_drift
        and any((level.get("soak") or {"worse": False})["worse"] for level in levels)
    ):
        exit_code = DRIFTED
    return {
        "valid_levels": valid,
        "invalid_levels": len(levels) - valid,
        "rests_on_invalid": rests,
        "exit_code": exit_code,
    }


def _rests_on_invalid(levels: Sequence[Level]) -> str | None:
    """The capacity of the best setting, where the level that should bound it is invalid: had it been valid, the answer might
    be another."""
    capacity = [(found.best.level, found) for _, found in found_by_setting(levels) if found.best is not None]
    if not capacity:
        return None
    best, found = max(capacity, key=lambda one: one[0]["served_request_rate"] or 0.0)
    if not found.rests_on_invalid:
        return None
    return (
        f"The capacity, {_conditions_of(best, swept_settings(levels))}, rests on an invalid level: "
        f"{asked_of(found.between[0].level)} should say whether more is possible."
    )


def answers(
    levels: Sequence[Level], *, search: Search | None = None, failures: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """{recommended, capacity, search, knee, highest_within_slo, highest_output_throughput, pareto, confirmation, repeats, drift,
    soak, failed}.

    `search`: how the levels were found, where they were; `failures`: of servers, as the journal has them. `capacity`, `search`,
    `knee`, `confirmation`, `drift`, `soak` and `failed` are lists; the others objects, None where there is nothing to say. Every entry has `text` (the answer and its conditions in words) and, where there is one, `level`, `concurrency`,
    `request_rate` and `server` of the level that it rests on. With swept server settings `highest_within_slo` has the best
    one in `text`, all in `by_server`.
    """
    return {
        "recommended": recommended(levels),
        "capacity": capacities(levels),
        "search": [] if search is None else search_answers(levels, search),
        "knee": knees(levels),
        "highest_within_slo": _highest_within_slo(levels),
        "highest_output_throughput": _highest_output_throughput(levels),
        "pareto": pareto(levels),
        "confirmation": confirmations(levels),
        "repeats": repeats(levels),
        "drift": drifts(levels),
        "soak": soaks(levels),
        "failed": failed_settings(failures, levels),
    }


TITLES = {
    "recommended": "Recommended",
    "capacity": "Capacity within the SLO",
    "search": "Search",
    "highest_within_slo": "Highest load within the SLO",
    "highest_output_throughput": "Highest output throughput",
    "knee": "Knee",
    "confirmation": "Open-loop confirmation",
    "repeats": "Repeats",
    "drift": "Drift between first and last",
    "soak": "Soak",
    "failed": "Server",
}
"""The answers as people read them, in the order in which they are shown."""


def _nobody(said: Mapping[str, Any]) -> bool:
    return bool(said["capacity"]) and said["highest_within_slo"]["level"] is None


def answer_lines(said: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(title, text) of every answer that there is, in the order of `TITLES`; what a capacity says already is not said again.
    A soak that did not go well comes first: what else is answered holds for a while at most."""
    lines = []
    told = {entry["level"] for entry in said.get("capacity") or []} - {None}
    last = standing(said.get("soak") or ()) == GOOD
    for name, title in sorted(TITLES.items(), key=lambda one: one[0] != "soak" or last):
        found = said.get(name)
        if name == "highest_within_slo" and found is not None and (found["level"] in told or _nobody(said)):
            continue
        entries = found if isinstance(found, list) else [found]
        lines += [(title, entry["text"]) for entry in entries if entry is not None]
    return lines


def _conditions_of(level: Level, names: Sequence[str]) -> str:
    return ", ".join(filter(None, (asked_of(level), setting_text(level, names))))


def _at(level: Level) -> dict[str, Any]:
    return {name: level[name] for name in ("level", "concurrency", "request_rate", "server")}


def _highest_output_throughput(levels: Sequence[Level]) -> dict[str, Any] | None:
    levels = headline(levels)
    valid = [level for level in levels if level["valid"]]
    if not valid:
        return None
    unstable = unstable_levels(levels)
    best = max(valid, key=lambda level: (level["level"] not in unstable, level["output_throughput"]))
    text = f"{best['output_throughput']:,.1f} output tokens/s at {_conditions_of(best, swept_settings(levels))}"
    invalid = len(levels) - len(valid)
    if invalid:
        text += f"; {invalid} of {len(levels)} levels are invalid and were left out"
    elif (
        len(valid) > 1
        and asked(best) == max(map(asked, valid))
        and not is_saturated(best)
        and not _has_knee(best, levels)
    ):
        text += "; it is the highest level measured, so the most that the server can do may be more"
    return {**_at(best), "value": best["output_throughput"], "text": text + "."}


def _has_knee(best: Level, levels: Sequence[Level]) -> bool:
    return any(knee["server"] == best["server"] and knee["level"] is not None for knee in knees(levels))


def _meets(level: Level) -> bool:
    # A latency that could not be measured (nothing succeeded) is not an SLO that was kept; nor is one that would have
    # been exceeded, had the load lasted longer.
    return not is_saturated(level) and all(one["met"] is True for one in level["slo"].values())


def _asked(level: Level) -> str:
    return ", ".join(f"{key} ≤ {slo_text(key, one['threshold'])}" for key, one in level["slo"].items())


def _missed(level: Level) -> str:
    if is_saturated(level):
        return "requests pile up (saturated)"
    return ", ".join(
        f"{key} is {'not measured' if one['value'] is None else slo_text(key, one['value'])}"
        for key, one in level["slo"].items()
        if one["met"] is not True
    )


def _highest_within_slo(levels: Sequence[Level]) -> dict[str, Any] | None:
    judged = sorted((level for level in headline(levels) if level["slo"]), key=asked)
    if not judged:
        return None
    names = swept_settings(judged)
    groups: dict[str, list[Level]] = {}
    for level in judged:
        groups.setdefault(setting_text(level, names), []).append(level)
    unstable = unstable_levels(judged)
    by_server = [_within_slo(_one_each(group), names, unstable) for group in groups.values()]
    best = max(by_server, key=lambda answer: (_asked_in(answer), answer["output_throughput"] or 0))
    text = f"{best['text'][:1].upper()}{best['text'][1:]} SLO: {_asked(judged[0])}."
    return {**best, "text": text, "by_server": by_server if len(by_server) > 1 else []}


def _asked_in(answer: Mapping[str, Any]) -> float:
    return answer["concurrency"] or answer["request_rate"] or 0.0


def _one_each(group: Sequence[Level]) -> list[Level]:
    """One level for each load; where it was run more than once, all valid runs must meet the SLO."""
    same: dict[float, list[Level]] = {}
    for level in group:
        same.setdefault(asked(level), []).append(level)
    meets = {level["level"]: _meets(level) for level in group}
    return [representative(runs, meets=meets) for runs in same.values()]


def _within_slo(group: Sequence[Level], names: Sequence[str], unstable: Container[int]) -> dict[str, Any]:
    """The answer for levels of one server setting, in order of load."""
    settings = setting_text(group[0], names)
    valid = [level for level in group if level["valid"]]
    met = [level for level in valid if _meets(level) and level["level"] not in unstable]
    if not met:
        where = f" with {settings}" if settings else ""
        why = "met at no valid level" if valid else "not answered: no level is valid"
        lowest = f"; the lowest, {asked_of(valid[0])}: {_missed(valid[0])}" if valid else ""
        return {
            "level": None,
            "concurrency": None,
            "request_rate": None,
            "server": group[0]["server"],
            "output_throughput": None,
            "text": f"The SLO is {why}{where}{lowest}.",
        }
    best = met[-1]
    above = [level for level in group if asked(level) > asked(best)]
    text = f"{_conditions_of(best, names)}: the highest measured valid level whose values meet the SLO"
    below = [level for level in valid if asked(level) < asked(best) and not _meets(level)]
    if below:
        text += f" (though {asked_of(below[0])} misses it: {_missed(below[0])})"
    return {**_at(best), "output_throughput": best["output_throughput"], "text": f"{text}; {_boundary(best, above)}."}


def _boundary(best: Level, above: Sequence[Level]) -> str:
    if not above:
        return f"the limit was not reached: no level above {asked_number(best)} was measured"
    between = f"not resolved between {asked_number(best)} and {asked_number(above[0])}"
    if above[0]["valid"]:
        return f"{between}, where {_missed(above[0])}"
    return f"{between}, because the level at {asked_number(above[0])} is invalid"
