"""Takes level objects, conditions and answers, gives `report.html`: one file that opens offline; computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from loadgen import __version__
from loadgen.report.charts import throughput_chart, ttft_chart
from loadgen.report.conditions import HowRun
from loadgen.report.figures import (
    ABSENT,
    WEAK_MEANS,
    Conditions,
    Level,
    audit_lines,
    class_rows,
    failed,
    figure,
    how_to_read,
    interval_text,
    is_open_loop,
    load_cell,
    mark,
    notes,
    number,
    ok,
    prefix_lines,
    repeated,
    slo_mark,
)
from loadgen.report.files import write_whole
from loadgen.report.pareto_chart import pareto_chart
from loadgen.report.phases_table import phase_rows
from loadgen.report.server_table import gpu_lines, limit_lines, outside_lines, server_headings, server_rows
from loadgen.report.soak_chart import marked_lines, soak_charts
from loadgen.report.turns import turn_headings, turn_lines, turn_rows
from loadgen.stats.answers import TITLES, answer_lines
from loadgen.stats.asked import asked_number
from loadgen.stats.settings import by_kind, swept_settings
from loadgen.stats.soak import BAD, DOUBT, GOOD, standing

_GROUPS = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2E": "e2el"}
_OPEN_GROUPS = {
    "TTFT from schedule": "ttft_from_schedule",
    "TTFT, service": "ttft",
    "TPOT": "tpot",
    "ITL": "itl",
    "E2E from schedule": "e2el_from_schedule",
}
_RATES = {"output tok/s": "output_throughput", "req/s": "served_request_rate"}
_OPEN_RATES = {
    "output tok/s": "output_throughput",
    "offered req/s": "offered_request_rate",
    "sent": "sent_request_rate",
    "done": "completed_request_rate",
}
_CLASS_GROUPS = {"TTFT": "ttft", "TPOT": "tpot", "E2E": "e2el"}
_OPEN_CLASS_GROUPS = {
    "TTFT from schedule": "ttft_from_schedule",
    "TPOT": "tpot",
    "E2E from schedule": "e2el_from_schedule",
}


def write_report(
    folder: Path,
    scenario_name: str,
    levels: Sequence[Level],
    conditions: Conditions,
    answers: Mapping[str, Any],
    run: HowRun | None = None,
) -> Path:
    """Write `report.html` into the run folder; `conditions` and `answers` as for the table and summary.json."""
    path = folder / "report.html"
    # Names of files and a server's own words may hold what is no text.
    write_whole(path, page(scenario_name, levels, conditions, answers, run).encode(errors="replace"))
    return path


def page(
    scenario_name: str,
    levels: Sequence[Level],
    conditions: Conditions,
    answers: Mapping[str, Any],
    run: HowRun | None = None,
) -> str:
    """The report's text; everything that comes from the run is escaped."""
    template = files("loadgen.report").joinpath("report.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    swept = swept_settings(levels)
    marks = _marks(answers)
    soak = standing(answers.get("soak") or ())
    charts = (
        ()
        if _is_one_soak(levels)
        else (
            throughput_chart(levels, scenario_name, conditions, marks),
            ttft_chart(levels, scenario_name, conditions),
            pareto_chart(answers.get("pareto"), levels, scenario_name, conditions),
        )
    )
    return environment.from_string(template).render(
        scenario=scenario_name,
        levels=levels,
        conditions=conditions,
        run=run or HowRun(),
        answers=_by_title(answer_lines(answers)),
        kinds={title: _kind(title, soak) for title in TITLES.values()},
        no_answer=_no_answer(levels),
        # vl-convert escapes what it draws, and the page must not escape the drawing itself.
        charts=[Markup(chart) for chart in charts if chart is not None],
        soak_charts=[Markup(chart) for chart in soak_charts(levels, scenario_name, conditions)],
        marked=marked_lines(levels),
        swept=swept,
        repeats=repeated(levels),
        load=" or ".join(_load(kind) for kind in by_kind(levels)),
        tables=[_table(kind, swept, repeats=repeated(levels)) for kind in by_kind(levels)],
        load_cell=load_cell,
        phase_rows=phase_rows(levels),
        class_tables=[_class_table(kind, levels) for kind in by_kind(levels) if class_rows(kind)],
        turn_headings=turn_headings(levels),
        turn_rows=turn_rows(levels),
        how_to_read=[
            *how_to_read(levels),
            WEAK_MEANS,
            *turn_lines(levels),
            *prefix_lines(levels),
            *audit_lines(levels),
        ],
        server_headings=server_headings(levels),
        server_rows=server_rows(levels),
        limits=[*limit_lines(levels), *outside_lines(levels), *gpu_lines(levels)],
        notes=notes(levels),
        errors=[(level, error) for level in levels for error in level["error_reasons"]],
        version=__version__,
    )


def _marks(answers: Mapping[str, Any]) -> dict[int, list[str]]:
    """What the answers call a level: its setting's `knee` or `capacity`, or `unstable`."""
    marks: dict[int, list[str]] = {}
    for name in ("knee", "capacity"):
        for entry in answers.get(name) or []:
            if entry["level"] is not None:
                marks.setdefault(entry["level"], []).append(name)
    for point in (answers.get("pareto") or {}).get("points", ()):
        if "unstable" in point["marks"]:
            marks.setdefault(point["level"], []).append("unstable")
    return marks


def _is_one_soak(levels: Sequence[Level]) -> bool:
    """Whether there is one load only, so that nothing can be drawn against it, and windows that can be drawn instead."""
    return len(levels) == 1 and bool((levels[0].get("soak") or {}).get("windows"))


def _kind(title: str, soak: str) -> str:
    """How an answer is shown. Where a soak drifted for the worse, what else is answered held for a part of it."""
    if title == TITLES["soak"]:
        return soak
    return DOUBT if soak == BAD else GOOD


def _by_title(lines: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for title, text in lines:
        found.setdefault(title, []).append(text)
    return found


def _no_answer(levels: Sequence[Level]) -> str | None:
    if not any(level["valid"] for level in levels):
        return "No valid level was measured, so nothing is answered."
    return None if any(level["slo"] for level in levels) else "No SLO was given, so no capacity is told."


def _load(kind: Sequence[Level]) -> str:
    return "asked req/s" if is_open_loop(kind) else "concurrency"


def _table(kind: Sequence[Level], swept: Sequence[str], *, repeats: bool) -> dict[str, Any]:
    """The main table of levels that are all of one kind."""
    return {
        "load": _load(kind),
        "groups": _OPEN_GROUPS if is_open_loop(kind) else _GROUPS,
        "rates": _OPEN_RATES if is_open_loop(kind) else _RATES,
        "rows": [_row(level, swept, repeats=repeats) for level in kind],
    }


def _class_table(kind: Sequence[Level], levels: Sequence[Level]) -> dict[str, Any]:
    """The same for the classes of their workload."""
    groups = _OPEN_CLASS_GROUPS if is_open_loop(kind) else _CLASS_GROUPS
    found = class_rows(kind, of=levels)
    rows = [[*conditions, one["name"], *_class_cells(one, groups.values())] for conditions, _, one in found]
    return {"load": _load(kind), "groups": list(groups), "rows": rows}


def _class_cells(one: Level, latencies: Iterable[str]) -> list[str]:
    figures = [figure(one, f"{p}_{m}_ms") for m in latencies for p in ("p50", "p95")]
    rates = [number(one[key]) for key in _RATES.values()]
    tokens = [number(one[key]) for key in ("mean_input_tokens", "mean_output_tokens")]
    return [str(ok(one)), str(failed(one)), *figures, *rates, *tokens]


def _row(level: Level, swept: Sequence[str], *, repeats: bool) -> dict[str, Any]:
    settings = [str(level["server"].get(name, ABSENT)) for name in swept]
    settings += [str(level["run"] + 1)] if repeats else []
    counts = [asked_number(level), str(ok(level)), str(failed(level))]
    groups, rates = (_OPEN_GROUPS, _OPEN_RATES) if is_open_loop([level]) else (_GROUPS, _RATES)
    fields = [f"{p}_{m}_ms" for m in groups.values() for p in ("p50", "p95")]
    figures = [(figure(level, field), interval_text(level, field)) for field in fields]
    figures += [(number(level[key]), interval_text(level, key)) for key in (*rates.values(), "achieved_concurrency")]
    cells = [*((cell, "") for cell in (*settings, *counts)), *figures]
    return {"cells": cells, "slo": slo_mark(level), "valid": mark(level)}
