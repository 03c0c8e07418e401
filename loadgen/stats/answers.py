"""Takes the level objects of a run, gives answers and the verdict; no answer rests on an invalid level.

An answer never says more than was measured: the boundary between two levels is "not resolved", not interpolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.stats.asked import asked, asked_number, asked_of
from loadgen.stats.open_rules import is_saturated
from loadgen.stats.repeats import repeats, representative
from loadgen.stats.slo import ERROR_RATE

Level = Mapping[str, Any]

ALL_GOOD = 0
ALL_FAILED = 1
NONE_VALID = 3


def verdict(levels: Sequence[Level]) -> dict[str, int]:
    """{valid_levels, invalid_levels, exit_code}: 1 when no request of the run succeeded, 3 when no level is valid."""
    valid = sum(level["valid"] for level in levels)
    ok = sum(level["requests"]["ok"] for level in levels)
    ended = sum(sum(level["requests"].values()) for level in levels)
    exit_code = ALL_GOOD if valid else NONE_VALID
    if not levels or (ended and not ok):
        exit_code = ALL_FAILED
    return {"valid_levels": valid, "invalid_levels": len(levels) - valid, "exit_code": exit_code}


def answers(levels: Sequence[Level]) -> dict[str, Any]:
    """{highest_within_slo, highest_output_throughput, repeats}; None without an SLO, or without a valid level.

    Each answer has `text` (the answer and its conditions in words) and, where there is one, `level`, `concurrency`,
    `request_rate` and `server` of the level that it rests on. With swept server settings the SLO is answered for each of them, the best
    first in `text`, all in `by_server`.
    """
    return {
        "highest_within_slo": _highest_within_slo(levels),
        "highest_output_throughput": _highest_output_throughput(levels),
        "repeats": repeats(levels),
    }


def swept_settings(levels: Sequence[Level]) -> list[str]:
    """Names of the server settings that differ between levels, in the order of the scenario."""
    names = dict.fromkeys(name for level in levels for name in level["server"])
    return [name for name in names if len({str(level["server"].get(name)) for level in levels}) > 1]


def setting_text(level: Level, names: Sequence[str]) -> str:
    """`max_num_seqs 8`; empty without names."""
    return ", ".join(f"{name} {level['server'].get(name, '–')}" for name in names)


def _conditions_of(level: Level, names: Sequence[str]) -> str:
    return ", ".join(filter(None, (asked_of(level), setting_text(level, names))))


def _at(level: Level) -> dict[str, Any]:
    return {name: level[name] for name in ("level", "concurrency", "request_rate", "server")}


def _highest_output_throughput(levels: Sequence[Level]) -> dict[str, Any] | None:
    valid = [level for level in levels if level["valid"]]
    if not valid:
        return None
    best = max(valid, key=lambda level: level["output_throughput"])
    text = f"{best['output_throughput']:,.1f} output tokens/s at {_conditions_of(best, swept_settings(levels))}"
    invalid = len(levels) - len(valid)
    if invalid:
        text += f"; {invalid} of {len(levels)} levels are invalid and were left out"
    elif len(valid) > 1 and asked(best) == max(map(asked, valid)) and not is_saturated(best):
        text += "; it is the highest level measured, so the most that the server can do may be more"
    return {**_at(best), "value": best["output_throughput"], "text": text + "."}


def _meets(level: Level) -> bool:
    # A latency that could not be measured (nothing succeeded) is not an SLO that was kept; nor is one that would have
    # been exceeded, had the load lasted longer.
    return not is_saturated(level) and all(one["met"] is True for one in level["slo"].values())


def slo_text(key: str, value: float) -> str:
    """`500 ms`, or `1 %` for the error rate."""
    return f"{value * 100:.3g} %" if key == ERROR_RATE else f"{value:,.4g} ms"


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
    judged = sorted((level for level in levels if level["slo"]), key=asked)
    if not judged:
        return None
    names = swept_settings(judged)
    groups: dict[str, list[Level]] = {}
    for level in judged:
        groups.setdefault(setting_text(level, names), []).append(level)
    by_server = [_within_slo(_one_each(group), names) for group in groups.values()]
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


def _within_slo(group: Sequence[Level], names: Sequence[str]) -> dict[str, Any]:
    """The answer for levels of one server setting, in order of load."""
    settings = setting_text(group[0], names)
    valid = [level for level in group if level["valid"]]
    met = [level for level in valid if _meets(level)]
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
    text = f"{_conditions_of(best, names)}: the highest measured valid level that meets the SLO"
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
