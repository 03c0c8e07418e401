"""Takes level objects, conditions and answers, gives `report.html`: one file that opens offline; computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from loadgen import __version__
from loadgen.report.charts import throughput_chart, ttft_chart
from loadgen.report.figures import (
    ABSENT,
    HOW_TO_READ,
    WEAK_MEANS,
    Conditions,
    Level,
    audit_lines,
    failed,
    figure,
    mark,
    notes,
    number,
    ok,
    repeated,
    slo_mark,
)
from loadgen.report.files import write_whole
from loadgen.stats.answers import swept_settings

_FIGURES = (
    *(f"{p}_{m}_ms" for m in ("ttft", "tpot", "itl", "e2el") for p in ("p50", "p95")),
    *("output_throughput", "request_throughput", "achieved_concurrency"),
)
_QUESTIONS = {
    "highest_within_slo": "Highest load within the SLO",
    "highest_output_throughput": "Highest output throughput",
    "repeats": "Repeats",
}


def write_report(
    folder: Path,
    scenario_name: str,
    levels: Sequence[Level],
    conditions: Conditions,
    answers: Mapping[str, Any],
) -> Path:
    """Write `report.html` into the run folder; `conditions` and `answers` as for the table and summary.json."""
    path = folder / "report.html"
    write_whole(path, page(scenario_name, levels, conditions, answers).encode())
    return path


def page(scenario_name: str, levels: Sequence[Level], conditions: Conditions, answers: Mapping[str, Any]) -> str:
    """The report's text; everything that comes from the run is escaped."""
    template = files("loadgen.report").joinpath("report.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    swept = swept_settings(levels)
    charts = (chart(levels, scenario_name, conditions) for chart in (throughput_chart, ttft_chart))
    return environment.from_string(template).render(
        scenario=scenario_name,
        levels=levels,
        conditions=conditions,
        answers=[
            (title, answers.get(key)) for key, title in _QUESTIONS.items() if answers.get(key) or key != "repeats"
        ],
        # vl-convert escapes what it draws, and the page must not escape the drawing itself.
        charts=[Markup(chart) for chart in charts if chart is not None],
        swept=swept,
        repeats=repeated(levels),
        rows=[_row(level, swept, repeats=repeated(levels)) for level in levels],
        how_to_read=[*HOW_TO_READ, WEAK_MEANS, *audit_lines(levels)],
        notes=notes(levels),
        errors=[(level, error) for level in levels for error in level["error_reasons"]],
        version=__version__,
    )


def _row(level: Level, swept: Sequence[str], *, repeats: bool) -> dict[str, Any]:
    settings = [str(level["server"].get(name, ABSENT)) for name in swept]
    settings += [str(level["run"] + 1)] if repeats else []
    counts = [str(level["concurrency"]), str(ok(level)), str(failed(level))]
    figures = [figure(level, key) if key.endswith("_ms") else number(level[key]) for key in _FIGURES]
    return {"cells": [*settings, *counts, *figures], "slo": slo_mark(level), "valid": mark(level)}
