"""Takes two snapshots, gives what changed from the one to the other, level by level and figure by figure; pure.

Levels are alike where the load and the swept settings are. Repeats of a level are one: their median, and an interval that
holds all of theirs. Nothing is said of a level that is invalid in either run.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from loadgen.comparison.change import IMPROVED, NOT_MEASURED, REGRESSED, UNCLEAR, Measured, change, wilson
from loadgen.comparison.conditions import differences
from loadgen.comparison.figures import ERROR_RATE, RATES, Figure, figures
from loadgen.comparison.snapshot import MeasuredLevel, Snapshot, WithinSlo
from loadgen.stats.asked import asked_text

COMPARE_VERSION = 1
ALL_GOOD, NOT_COMPARABLE, ON_INVALID, REGRESSION = 0, 2, 3, 99

COMPARED, INVALID, MISSING, NEW = "compared", "invalid", "missing", "new"

Key = tuple[Any, ...]


def compare(
    baseline: Snapshot, run: Snapshot, *, tolerances: Mapping[str, float] | None = None, across: Collection[str] = ()
) -> dict[str, Any]:
    """The comparison as JSON-able values: {comparable, differences, not_checked, levels, within_slo, verdict}.

    `verdict.exit_code`: 2 not comparable, 3 a level that both runs should have is invalid or was not measured, or a figure
    that should be compared, 99 a figure regressed, else 0; 3 beats 99.
    """
    swept = {*baseline.swept, *run.swept}  # these tell levels apart, and are no condition of all of them
    found, unknown = differences(_without(baseline.conditions, swept), _without(run.conditions, swept), across)
    blocking = [one for one in found if not one.allowed]
    levels = [] if blocking else _levels(baseline, run, tolerances or {})
    why = [one.text() for one in blocking]
    if not blocking and not any(level["status"] in (COMPARED, INVALID) for level in levels):
        why = ["no level of the baseline was measured in the run at the same load and settings"]
    return {
        "compare_version": COMPARE_VERSION,
        "baseline": _told(baseline),
        "run": _told(run),
        "comparable": not why,
        "why_not": why,
        "differences": [
            {
                "condition": one.condition,
                "baseline": one.baseline,
                "run": one.run,
                "allowed": one.allowed,
                "text": one.text(),
            }
            for one in found
        ],
        "not_checked": unknown,
        "levels": levels,
        "within_slo": [] if why else _within_slo(baseline, run),
        "verdict": _verdict(levels, comparable=not why),
    }


def _without(conditions: Mapping[str, Any], swept: Collection[str]) -> dict[str, Any]:
    settings = conditions.get("settings")
    if settings is None:
        return dict(conditions)
    kept = {
        kind: None if values is None else {name: value for name, value in values.items() if name not in swept}
        for kind, values in settings.items()
    }
    return {**conditions, "settings": kept}


def _told(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "source": snapshot.source,
        "name": snapshot.name,
        "started": snapshot.started,
        "made_by": snapshot.made_by,
        "cut_off": snapshot.cut_off,
    }


def _levels(baseline: Snapshot, run: Snapshot, tolerances: Mapping[str, float]) -> list[dict[str, Any]]:
    names = list(dict.fromkeys([*baseline.swept, *run.swept]))
    old, new = _by_load(baseline, names), _by_load(run, names)
    made = [_level(old.get(key, []), new.get(key, []), names, tolerances, run.cut_off) for key in {**old, **new}]
    return sorted(made, key=lambda level: (repr(level["server"]), level["concurrency"] or level["request_rate"] or 0))


def _by_load(snapshot: Snapshot, names: Sequence[str]) -> dict[Key, list[MeasuredLevel]]:
    found: dict[Key, list[MeasuredLevel]] = {}
    for level in snapshot.levels:
        key = (level.concurrency, level.request_rate, *(repr(level.server.get(name)) for name in names))
        found.setdefault(key, []).append(level)
    return found


def _level(
    old: Sequence[MeasuredLevel],
    new: Sequence[MeasuredLevel],
    names: Sequence[str],
    tolerances: Mapping[str, float],
    cut_off: bool,
) -> dict[str, Any]:
    one = (old or new)[0]
    told: dict[str, Any] = {
        "load": asked_text(one.concurrency, one.request_rate),
        "concurrency": one.concurrency,
        "request_rate": one.request_rate,
        "server": {name: one.server.get(name) for name in names},
        "status": COMPARED,
        "unanswered": False,
        "text": "",
        "figures": [],
        "left_out": [],
    }
    if not old:
        return {**told, "status": NEW, "text": "not in the baseline"}
    if not new:
        why = ", whose sweep was cut off" if cut_off else ""
        return {**told, "status": MISSING, "unanswered": cut_off, "text": f"not in the run{why}"}
    good_old, good_new = [level for level in old if level.valid], [level for level in new if level.valid]
    if not good_old or not good_new:
        side, levels = ("the run", new) if not good_new else ("the baseline", old)
        rules = sorted({rule for level in levels for rule in level.reasons})
        return {**told, "status": INVALID, "unanswered": True, "text": f"invalid in {side}: {', '.join(rules)}"}
    had = {name for level in good_old for name in level.figures}
    wanted = figures(tolerances, open_loop=one.concurrency is None, of_baseline=had)
    doubts = sorted({rule for level in (*good_old, *good_new) for rule in level.warnings})
    saying_nothing = _saying_nothing(wanted, good_old, good_new, tolerances)
    told["left_out"] = [figure.name for figure in wanted if figure.name in saying_nothing]
    told["figures"] = [_figure(figure, good_old, good_new) for figure in wanted if figure.name not in saying_nothing]
    told["figures"] += _saturation(good_old, good_new)
    for figure in told["figures"]:
        figure["unanswered"] = _is_unanswered(figure, tolerances)
    if all(figure["verdict"] == NOT_MEASURED for figure in told["figures"]):
        return {**told, "status": INVALID, "unanswered": True, "text": "no figure was measured in both"}
    told["unanswered"] = any(figure["unanswered"] for figure in told["figures"])
    return {**told, "text": f"in doubt: {', '.join(doubts)}" if doubts else ""}


def _is_unanswered(figure: Mapping[str, Any], tolerances: Collection[str]) -> bool:
    """Whether it should have been compared and could not be: it was there before, or was asked for by name."""
    if figure["verdict"] != NOT_MEASURED:
        return False
    return figure["baseline"] is not None or figure["figure"] in tolerances


def _saying_nothing(
    wanted: Sequence[Figure], old: Sequence[MeasuredLevel], new: Sequence[MeasuredLevel], tolerances: Collection[str]
) -> set[str]:
    """Names of the figures that say nothing of the server at such a load."""
    if any(level.saturated for level in (*old, *new)):
        # While requests pile up a latency only says how long the load has lasted.
        return {figure.name for figure in wanted if figure.name.endswith("_ms")}
    if old[0].concurrency is None:
        # All that came was served: how much that is was drawn by the arrivals.
        return {figure.name for figure in wanted if figure.name in RATES and figure.name not in tolerances}
    return set()


def _figure(figure: Figure, old: Sequence[MeasuredLevel], new: Sequence[MeasuredLevel]) -> dict[str, Any]:
    before, after = pooled(figure.name, old), pooled(figure.name, new)
    made = change(figure, before, after)
    return {
        "figure": figure.name,
        "baseline": before.value,
        "baseline_interval": before.interval,
        "run": after.value,
        "run_interval": after.interval,
        "change": made.change,
        "change_interval": made.interval,
        "absolute": figure.absolute,
        "tolerance": figure.tolerance,
        "verdict": made.verdict,
        "text": made.text,
    }


def pooled(name: str, levels: Sequence[MeasuredLevel]) -> Measured:
    """A figure of one level, or of the repeats of one: the median, and from the lowest low to the highest high."""
    values = [value for level in levels if (value := level.figures.get(name)) is not None]
    intervals = [found for level in levels if (found := level.intervals.get(name)) is not None]
    if name == ERROR_RATE and len(intervals) < len(levels):
        intervals = [
            found
            for level in levels
            if (found := wilson(round((level.figures.get(name) or 0) * level.decided), level.decided)) is not None
        ]
    interval = None
    if values and len(intervals) == len(levels):
        lows, highs = zip(*((*found,) for found in intervals), strict=True)
        interval = (min(*lows, *values), max(*highs, *values))
    weak = any(name in level.weak for level in levels)
    return Measured(statistics.median(values) if values else None, interval, weak)


def _saturation(old: Sequence[MeasuredLevel], new: Sequence[MeasuredLevel]) -> list[dict[str, Any]]:
    """Whether requests pile up now and did not before, or the reverse, as a figure of its own."""
    before, after = any(level.saturated for level in old), any(level.saturated for level in new)
    if before == after:
        return []
    text = "requests pile up at this rate, and did not before" if after else "requests no longer pile up at this rate"
    return [
        {
            "figure": "saturated",
            "baseline": float(before),
            "baseline_interval": None,
            "run": float(after),
            "run_interval": None,
            "change": None,
            "change_interval": None,
            "absolute": True,
            "tolerance": 0.0,
            "verdict": REGRESSED if after else IMPROVED,
            "text": text,
        }
    ]


def _within_slo(baseline: Snapshot, run: Snapshot) -> list[dict[str, Any]]:
    """The highest loads within the limits, beside each other; empty where the limits differ."""
    if not baseline.slo or baseline.slo != run.slo:
        return []
    names = list(dict.fromkeys([*baseline.swept, *run.swept]))

    def by_setting(snapshot: Snapshot) -> dict[str, WithinSlo]:
        return {repr([one.server.get(name) for name in names]): one for one in snapshot.within_slo}

    old, new = by_setting(baseline), by_setting(run)
    return [
        {
            "server": {name: old[key].server.get(name) for name in names},
            "baseline": old[key].concurrency or old[key].request_rate,
            "run": new[key].concurrency or new[key].request_rate,
        }
        for key in old
        if key in new
    ]


def _verdict(levels: Sequence[Mapping[str, Any]], *, comparable: bool) -> dict[str, Any]:
    found = [figure["verdict"] for level in levels for figure in level["figures"]]
    unanswered = sum(level["unanswered"] for level in levels)
    regressed = found.count(REGRESSED)
    exit_code = (
        NOT_COMPARABLE if not comparable else ON_INVALID if unanswered else REGRESSION if regressed else ALL_GOOD
    )
    return {
        "compared_levels": sum(level["status"] == COMPARED for level in levels),
        "unanswered_levels": unanswered,
        "regressed": regressed,
        "improved": found.count(IMPROVED),
        "unclear": found.count(UNCLEAR),
        "not_in_baseline": sum(
            figure["baseline"] is None and figure["run"] is not None for level in levels for figure in level["figures"]
        ),
        "exit_code": exit_code,
    }
