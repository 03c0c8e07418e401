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
    is_open_loop,
    mark,
    notes,
    number,
    ok,
    prefix_lines,
    repeated,
    slo_mark,
)
from loadgen.report.files import write_whole
from loadgen.stats.answers import swept_settings
from loadgen.stats.asked import asked_number

_GROUPS = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2E": "e2el"}
_OPEN_GROUPS = {
    "TTFT from schedule": "ttft_from_schedule",
    "TTFT, service": "ttft",
    "TPOT": "tpot",
    "ITL": "itl",
    "E2E from schedule": "e2el_from_schedule",
}
_RATES = {"output tok/s": "output_throughput", "req/s": "request_throughput"}
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
        load="asked req/s" if is_open_loop(levels) else "concurrency",
        groups=_OPEN_GROUPS if is_open_loop(levels) else _GROUPS,
        rates=_OPEN_RATES if is_open_loop(levels) else _RATES,
        asked_number=asked_number,
        rows=[_row(level, swept, repeats=repeated(levels)) for level in levels],
        class_groups=list(_class_groups(levels)),
        class_rows=[
            [*conditions, one["name"], *_class_cells(one, _class_groups(levels).values())]
            for conditions, _, one in class_rows(levels)
        ],
        how_to_read=[*how_to_read(levels), WEAK_MEANS, *prefix_lines(levels), *audit_lines(levels)],
        notes=notes(levels),
        errors=[(level, error) for level in levels for error in level["error_reasons"]],
        version=__version__,
    )


def _class_groups(levels: Sequence[Level]) -> Mapping[str, str]:
    return _OPEN_CLASS_GROUPS if is_open_loop(levels) else _CLASS_GROUPS


def _class_cells(one: Level, latencies: Iterable[str]) -> list[str]:
    figures = [figure(one, f"{p}_{m}_ms") for m in latencies for p in ("p50", "p95")]
    rates = [number(one[key]) for key in ("output_throughput", "request_throughput")]
    tokens = [number(one[key]) for key in ("mean_input_tokens", "mean_output_tokens")]
    return [str(ok(one)), str(failed(one)), *figures, *rates, *tokens]


def _row(level: Level, swept: Sequence[str], *, repeats: bool) -> dict[str, Any]:
    settings = [str(level["server"].get(name, ABSENT)) for name in swept]
    settings += [str(level["run"] + 1)] if repeats else []
    counts = [asked_number(level), str(ok(level)), str(failed(level))]
    groups, rates = (_OPEN_GROUPS, _OPEN_RATES) if is_open_loop([level]) else (_GROUPS, _RATES)
    figures = [figure(level, f"{p}_{m}_ms") for m in groups.values() for p in ("p50", "p95")]
    figures += [number(level[key]) for key in (*rates.values(), "achieved_concurrency")]
    return {"cells": [*settings, *counts, *figures], "slo": slo_mark(level), "valid": mark(level)}
