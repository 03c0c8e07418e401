"""Takes level objects, answers and the verdict, gives the run folder's JSON, CSV and Prometheus files; adds no figure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from loadgen.metrics.level_series import textfile
from loadgen.record import SCHEMA_VERSION
from loadgen.report.files import write_whole

Level = Mapping[str, Any]

_PARTS = (
    "server",
    "requests",
    "open_loop",
    "client",
    "audit",
    "server_metrics",
    "limit",
    "slo",
    "phases",
    "full_run",
    "output_tokens_source",
    "finish_reasons",
)
"""Fields of a level object that become columns `part.name`."""


def write_level(folder: Path, level: Level) -> Path:
    """Write `levels/<n>.json` of the run folder, as soon as the level has ended."""
    path = folder / "levels" / f"{level['level']}.json"
    write_whole(path, _json(level))
    return path


def write_summary(
    folder: Path,
    levels: Sequence[Level],
    answers: Mapping[str, Any],
    verdict: Mapping[str, Any],
    *,
    scenario: str = "",
    model: str | None = None,
) -> None:
    """Write `summary.json`, `summary.csv` and `metrics.prom`; `scenario` and `model` are labels of the last."""
    summary = {"schema_version": SCHEMA_VERSION, "levels": list(levels), "answers": answers, "verdict": verdict}
    write_whole(folder / "summary.json", _json(summary))
    write_whole(folder / "summary.csv", csv_text(levels).encode())
    write_whole(folder / "metrics.prom", textfile(levels, scenario, model))


def _json(value: Mapping[str, Any]) -> bytes:
    # orjson writes strict JSON: a NaN would become null, and what is no JSON value is refused.
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def csv_text(levels: Sequence[Level]) -> str:
    """One row a level under one heading (RFC 4180); a column for every scalar, empty where nothing was measured."""
    rows = [dict(_cells(level)) for level in levels]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _cells(level: Level) -> Iterator[tuple[str, Any]]:
    for name, value in level.items():
        if name in ("reasons", "warnings"):
            yield name, "; ".join(found["rule"] for found in value)
        elif name == "weak_percentiles":
            yield name, "; ".join(value)
        elif name == "intervals":
            for field, (low, high) in value.items():
                yield from ((f"{field}.low", low), (f"{field}.high", high))
        elif name == "classes":
            for one in value:
                yield from _parts(f"classes.{one['name']}", {key: part for key, part in one.items() if key != "name"})
        elif name == "turns":
            yield from _parts(name, value or {})
            for one in (value or {"by_turn": ()})["by_turn"]:
                yield from _parts(f"turns.{one['name']}", {key: part for key, part in one.items() if key != "name"})
        elif name in _PARTS:
            yield from _parts(name, value or {})
        elif not isinstance(value, list | dict):
            yield name, _cell(value)


def _parts(name: str, parts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in parts.items():
        if isinstance(value, dict):
            yield from _parts(f"{name}.{key}", value)
        elif not isinstance(value, list):
            yield f"{name}.{key}", _cell(value)


def _cell(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
