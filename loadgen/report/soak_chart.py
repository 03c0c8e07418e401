"""Takes a soak's level object, gives its windows as SVG charts: what its verdict looks at, over time; percentiles only, y from zero.

A line joins neighbouring windows only: it ends where one is marked or has no figure. Marked windows are shaded, with what is
known of them as hollow points; a clear drift is a dashed line of its slope.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import altair as alt

from loadgen.report.charts import QUIET, colours, drawn, ends_layer
from loadgen.report.figures import Conditions, Level
from loadgen.stats.asked import asked_of, is_open
from loadgen.stats.soak import LEAST_KV_DRIFT, LEAST_SHARE_DRIFT

MOST_POINTS = 400
"""Windows of one line that are drawn: of more, the highest and the lowest of neighbours, so that a peak is never left out."""
_DOTS = 60
"""Up to so many windows each is a point too."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Chart:
    title: str
    unit: str
    lines: Mapping[str, str]
    """What each line is called: its figure of a window."""
    factor: float = 1.0
    least: float | None = None
    """Top of the axis at least, by what matters to the verdict: of a share, which is left out where it is zero all along."""


_CHARTS = (
    _Chart("Time to first token", "TTFT (ms)", {"P50": "p50_ttft_ms", "P95": "p95_ttft_ms"}),
    _Chart("Time per output token", "TPOT (ms)", {"P50": "p50_tpot_ms", "P95": "p95_tpot_ms"}),
    _Chart("Longest gap in a stream", "longest gap (ms)", {"P50": "p50_longest_gap_ms", "P95": "p95_longest_gap_ms"}),
    _Chart("Output throughput", "output tokens / s", {"tok/s": "output_throughput"}),
    _Chart("Failed requests", "share of requests (%)", {"failed": "error_rate"}, 100.0, 100 * LEAST_SHARE_DRIFT),
    _Chart("KV cache of the server", "mean usage (%)", {"used": "kv_usage"}, 100.0, 100 * LEAST_KV_DRIFT),
    _Chart("Memory of the server", "MB", {"memory": "server_memory_bytes"}, 1e-6),
)


def soak_charts(levels: Sequence[Level], scenario: str, conditions: Conditions) -> list[str]:
    """The charts of every soak of a run, in the order of its levels; none without a soak, or without a window."""
    soaks = [level for level in levels if level.get("soak") and level["soak"]["windows"]]
    found = []
    for level in soaks:
        where = asked_of(level) if len(soaks) > 1 else ""
        for chart in _CHARTS:
            title = f"{chart.title} over the soak{', ' * bool(where)}{where}"
            if (svg := _drawn(chart, title, level, scenario, conditions)) is not None:
                found.append(svg)
    return found


def _drawn(chart: _Chart, title: str, level: Level, scenario: str, conditions: Conditions) -> str | None:
    windows, figures = level["soak"]["windows"], level["soak"]["figures"]
    unit_s, unit_of_time = _unit(windows[-1]["start_s"] + windows[-1]["window_s"])
    joined: list[dict[str, Any]] = []
    apart: list[dict[str, Any]] = []
    trends: list[dict[str, Any]] = []
    for name, key in chart.lines.items():
        for number, run in enumerate(runs(windows, key)):
            points = [_point(row, key, name, chart.factor, unit_s) | {"run": f"{name} {number}"} for row in run]
            joined += _thinned(points)
        marked = [row for row in windows if row["mark"] is not None and row.get(key) is not None]
        apart += [_point(row, key, name, chart.factor, unit_s) for row in marked]
        trends += _trend(windows, key, name, figures.get(key), chart.factor, unit_s)
    highest = max((point["value"] for point in [*joined, *apart]), default=0.0)
    if not joined or (chart.least is not None and not highest):
        return None
    shaded = [
        {"from": first["start_s"] / unit_s, "to": (last["start_s"] + last["window_s"]) / unit_s, "note": "marked"}
        for first, last in marked_spans(windows)
    ]
    end = (windows[-1]["start_s"] + windows[-1]["window_s"]) / unit_s
    axis = alt.Axis(grid=False, tickCount=6)
    x = alt.X(
        "time:Q",
        scale=alt.Scale(domain=[0, end], nice=False),
        title=f"time since the warm-up ({unit_of_time})",
        axis=axis,
    )
    unit = chart.unit.replace("TTFT", "TTFT from the schedule") if is_open(level) else chart.unit
    scale = alt.Scale(zero=True, **({} if chart.least is None else {"domainMax": max(highest, chart.least)}))
    y = alt.Y("value:Q", scale=scale, title=unit, axis=alt.Axis(tickCount=6))
    colour = colours(list(chart.lines))
    layers: list[alt.Chart] = []
    if shaded:
        bands = alt.Chart(alt.Data(values=shaded))
        layers.append(
            bands.mark_rect(color=QUIET, stroke=QUIET, strokeWidth=1.5, opacity=0.25, aria=False).encode(
                x=alt.X("from:Q"), x2="to:Q"
            )
        )
    few = len(windows) <= _DOTS
    lines = alt.Chart(alt.Data(values=joined))
    layers.append(
        lines.mark_line(strokeWidth=2 if few else 1.2, aria=False).encode(x=x, y=y, color=colour, detail="run:N")
    )
    # A window between two gaps has no line to be seen by.
    dots = joined if few else _alone(joined)
    if dots:
        layers.append(
            alt.Chart(alt.Data(values=dots)).mark_circle(size=28, opacity=1, aria=False).encode(x=x, y=y, color=colour)
        )
    if apart:
        hollow = alt.Chart(alt.Data(values=apart)).mark_point(size=40, strokeWidth=1.6, aria=False)
        layers.append(hollow.encode(x=x, y=y, color=colour))
    if trends:
        dashed = alt.Chart(alt.Data(values=trends)).mark_line(color="currentColor", strokeWidth=1.8, strokeDash=[6, 4])
        layers.append(dashed.encode(x=x, y=y, detail="line:N"))
    layers.append(ends_layer(_last(joined, end), x))
    return drawn(layers, title, scenario, conditions)


def marked_lines(levels: Sequence[Level]) -> list[str]:
    """A sentence for each stretch of marked windows: `From 0:00:20 to 0:00:40: connections were refused; …`"""
    lines = []
    for level in levels:
        windows = (level.get("soak") or {"windows": ()})["windows"]
        for first, last in marked_spans(windows):
            marks = dict.fromkeys(row["mark"] for row in windows if first["window"] <= row["window"] <= last["window"])
            begin, end = (_clock(second) for second in (first["start_s"], last["start_s"] + last["window_s"]))
            lines.append(f"From {begin} to {end}: {'; '.join(marks)}.")
    return lines


def runs(windows: Sequence[Row], key: str) -> Iterator[list[Row]]:
    """The windows whose figure a line may join: neighbours in time, none marked, none without the figure."""
    run: list[Row] = []
    for row in windows:
        if run and (row["window"] != run[-1]["window"] + 1 or row["mark"] is not None or row.get(key) is None):
            yield run
            run = []
        if row["mark"] is None and row.get(key) is not None:
            run.append(row)
    if run:
        yield run


def marked_spans(windows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """First and last of each row of marked neighbours."""
    for marked, group in itertools.groupby(windows, key=lambda row: row["mark"] is not None):
        rows = list(group)
        if marked:
            yield rows[0], rows[-1]


def _point(row: Row, key: str, name: str, factor: float, unit_s: float) -> dict[str, Any]:
    middle_s = row["start_s"] + row["window_s"] / 2
    return {"time": round(middle_s / unit_s, 5), "value": row[key] * factor, "line": name, "colour": name}


def _thinned(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(points) <= MOST_POINTS:
        return points
    size = -(-len(points) * 2 // MOST_POINTS)
    kept = [points[0]]
    for first in range(0, len(points), size):
        group = points[first : first + size]
        ends = (min(group, key=lambda one: one["value"]), max(group, key=lambda one: one["value"]))
        kept += sorted(ends, key=lambda one: one["time"])
    return [*kept, points[-1]]


def _alone(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    groups = (list(group) for _, group in itertools.groupby(points, key=lambda point: point["run"]))
    return [group[0] for group in groups if len(group) == 1]


def _trend(
    windows: Sequence[Row], key: str, name: str, told: Mapping[str, Any] | None, factor: float, unit_s: float
) -> list[dict[str, Any]]:
    """Two ends of the verdict's slope through the middle of the windows that it rests on; none without a clear drift."""
    if told is None or told["drift"] != "yes":
        return []
    kept = [row for row in windows if row["mark"] is None and row.get(key) is not None]
    hours = [(row["start_s"] + row["window_s"] / 2) / 3600 for row in kept]
    slope = told["slope_per_hour"]
    start = statistics.median(row[key] - slope * hour for row, hour in zip(kept, hours, strict=True))
    return [
        {"time": hour * 3600 / unit_s, "value": max(0.0, (start + slope * hour) * factor), "line": name, "colour": name}
        for hour in (hours[0], hours[-1])
    ]


def _last(points: Sequence[dict[str, Any]], end: float) -> list[dict[str, Any]]:
    """The last point of each line, moved to the chart's edge, where its name stands."""
    last = {point["line"]: point for point in points}
    return [{**point, "load": end, "time": end} for point in last.values()]


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _unit(seconds: float) -> tuple[float, str]:
    return (1.0, "s") if seconds <= 180 else (60.0, "min") if seconds <= 3 * 3600 else (3600.0, "h")
