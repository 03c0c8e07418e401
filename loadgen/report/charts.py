"""Takes level objects, gives the report's charts as SVG that needs nothing else; percentiles only, y from zero.

The colours of text and axes are left to the page (it may be dark); lines are labelled at their ends, so there is no
legend to look up. An invalid level is a hollow point on a faint line; repeats are points beside each other; a thin upright line
is a figure's 95 % interval; knee and capacity are named where they lie.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import vl_convert as vlc

from loadgen.report.figures import Conditions, Level, is_open_loop, ok
from loadgen.stats.asked import asked, is_open
from loadgen.stats.latencies import FROM_SCHEDULE
from loadgen.stats.settings import by_setting, headline

_WIDTH, _HEIGHT = 380, 260
_COLOURS = ("#2b7de0", "#e07a1f", "#16a085", "#c0399f", "#8a6d3b", "#6c5ce7")
QUIET = "#8a8f98"


Marks = Mapping[int, Sequence[str]]
"""Numbers of levels, and what each is called: `knee`, `capacity`, `unstable`."""


def throughput_chart(levels: Sequence[Level], scenario: str, conditions: Conditions, marks: Marks) -> str | None:
    """Output tokens/s of all users against the load, a line for each swept setting; None without a sample."""
    rows = [
        {
            **_row(level, setting or "output tok/s", setting, False, "output_throughput"),
            "marks": marks_text(level, marks),
        }
        for setting, group in by_setting(headline(levels)).items()
        for level in group
        if ok(level)
    ]
    return _chart(rows, "Output throughput, all users", "output tokens / s", scenario, conditions, {})


def ttft_chart(levels: Sequence[Level], scenario: str, conditions: Conditions) -> str | None:
    """TTFT P50 and P95 against the load, with the SLO's line; of an open loop from the schedule. None without a sample."""
    levels = headline(levels)
    groups = by_setting(levels)
    ttft = FROM_SCHEDULE["ttft"] if is_open_loop(levels) else "ttft"
    rows = [
        _row(level, f"{name} {setting}".strip(), setting if len(groups) > 1 else name, name == "P50", field)
        for setting, group in groups.items()
        for name in ("P50", "P95")
        for level in group
        if level[field := f"{name.lower()}_{ttft}_ms"] is not None
    ]
    slos = {
        f"SLO {key.removeprefix('ttft_').upper()} ≤ {one['threshold']:g} ms": one["threshold"]
        for level in levels[:1]
        for key, one in (level["slo"] or {}).items()
        if key.startswith("ttft_p")
    }
    unit = "TTFT from the schedule (ms)" if is_open_loop(levels) else "TTFT (ms)"
    return _chart(rows, "Time to first token, one request", unit, scenario, conditions, slos)


def marks_text(level: Level, marks: Marks) -> str:
    """`knee, capacity`; empty for most levels."""
    return ", ".join(marks.get(level["level"], ()))


def _row(level: Level, line: str, colour: str, dotted: bool, field: str) -> dict[str, Any]:
    low, high = level["intervals"].get(field, (None, None))
    return {
        "load": asked(level),
        "low": low,
        "high": high,
        "axis": "request rate (requests/s)" if is_open(level) else "concurrency (users)",
        "value": level[field],
        "line": line,
        "colour": colour,
        "dotted": dotted,
        "valid": level["valid"],
    }


def _chart(
    rows: list[dict[str, Any]],
    title: str,
    unit: str,
    scenario: str,
    conditions: Conditions,
    slos: Mapping[str, float],
) -> str | None:
    if not rows:
        return None
    measured = sorted({row["load"] for row in rows})
    domain = measured if len(measured) > 1 else [measured[0], 2 * measured[0]]
    scale = alt.Scale(type="log", base=2, nice=False, domain=[domain[0], domain[-1]])
    x = alt.X("load:Q", scale=scale, title=rows[0]["axis"], axis=alt.Axis(values=measured, grid=False))
    y = alt.Y("value:Q", scale=alt.Scale(zero=True), title=unit, axis=alt.Axis(tickCount=6))
    colour = colours([row["colour"] for row in rows])
    dash = alt.StrokeDash("dotted:N", scale=alt.Scale(domain=[False, True], range=[[1, 0], [2, 3]]), legend=None)
    valid = alt.Chart(alt.Data(values=[row for row in rows if row["valid"]]))
    invalid = alt.Chart(
        alt.Data(values=[{**row, "note": "" if row["dotted"] else "invalid"} for row in rows if not row["valid"]])
    )
    bounded = alt.Chart(alt.Data(values=[row for row in rows if row["valid"] and row["low"] is not None]))
    every = alt.Chart(alt.Data(values=_medians(rows)))
    line = alt.Chart(alt.Data(values=_medians([row for row in rows if row["valid"]])))
    layers: list[alt.Chart] = [
        every.mark_line(strokeWidth=1, opacity=0.4).encode(x=x, y=y, color=colour, detail="line:N"),
        line.mark_line(strokeWidth=2.5).encode(x=x, y=y, color=colour, strokeDash=dash, detail="line:N"),
        bounded.mark_rule(strokeWidth=1.2, opacity=0.7).encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour),
        valid.mark_circle(size=55, opacity=1).encode(x=x, y=y, color=colour),
        invalid.mark_point(size=70, strokeWidth=2).encode(x=x, y=y, color=colour),
        invalid.mark_text(align="right", dx=4, dy=-12, fontSize=11, fontStyle="italic").encode(x=x, y=y, text="note:N"),
        ends_layer(_medians(rows), x, slos),
    ]
    for text, threshold in slos.items():
        limit = alt.Chart(alt.Data(values=[{"value": threshold, "text": text, "load": measured[0]}]))
        layers.append(limit.mark_rule(strokeDash=[7, 4], color="#d03b3b", strokeWidth=1.5).encode(y=y))
        layers.append(limit.mark_text(align="left", dy=-8, dx=5, fontSize=11).encode(x=x, y=y, text="text:N"))
    layers += mark_layers(rows, x, y, "load", "value")
    return drawn(layers, title, scenario, conditions)


def colours(names: Sequence[str]) -> alt.Color:
    """A colour for each name, in order of first appearance; without a legend."""
    domain = list(dict.fromkeys(names))
    shades = [_COLOURS[i % len(_COLOURS)] for i in range(len(domain))]
    return alt.Color("colour:N", scale=alt.Scale(domain=domain, range=shades), legend=None)


def near(
    one: Mapping[str, Any], other: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], axes: Sequence[str]
) -> bool:
    """Whether two points lie within 3 % of the chart of each other, so that what is written beside them would overlap."""
    return all(abs(one[axis] - other[axis]) <= 0.03 * max(row[axis] for row in rows) for axis in axes)


def mark_layers(
    rows: Sequence[Mapping[str, Any]], x: alt.X, y: alt.Y, *axes: str, offsets: Sequence[int] = (17, -15)
) -> list[alt.Chart]:
    """A ring around each of the rows that has `marks`, and what it is called, once for points on one spot.

    Names stand at the `offsets` from their ring (in pixels, downwards) by turns, so that those of neighbouring loads do not
    cover each other.
    """
    marked: list[dict[str, Any]] = []
    for row in rows:
        beside = [other for other in marked if near(other, row, rows, axes)]
        if row.get("marks") and not beside:
            marked.append(dict(row))
        elif row.get("marks"):
            both = dict.fromkeys([*beside[0]["marks"].split(", "), *row["marks"].split(", ")])
            beside[0]["marks"] = ", ".join(both)
    if not marked:
        return []
    ring = alt.Chart(alt.Data(values=marked)).mark_point(
        size=190, strokeWidth=1.8, filled=False, color=QUIET, opacity=1
    )
    layers = [ring.encode(x=x, y=y)]
    for turn, dy in enumerate(offsets):
        if marked[turn :: len(offsets)]:
            chart = alt.Chart(alt.Data(values=marked[turn :: len(offsets)]))
            text = chart.mark_text(align="right", dx=-4, dy=dy, fontSize=11, fontStyle="italic")
            layers.append(text.encode(x=x, y=y, text="marks:N"))
    return layers


def ends_layer(rows: Sequence[dict[str, Any]], x: alt.X, slos: Mapping[str, float] | None = None) -> alt.Chart:
    """The name of each line beside its last row. A row has `line`, `load`, `value`, and what `x` names."""
    ends = alt.Chart(alt.Data(values=_spread(rows, slos or {})))
    text = ends.mark_text(align="left", dx=9, fontSize=12, fontWeight="bold")
    return text.encode(x=x, y="label_y:Q", text="line:N")


def drawn(layers: Sequence[alt.Chart], title: str, scenario: str, conditions: Conditions) -> str:
    """The layers as one SVG with the report's heading, size and axes."""
    where = " · ".join(f"{name} {conditions[name]}" for name in ("target", "seed") if conditions.get(name) is not None)
    heading = alt.TitleParams(f"{title} – {scenario}", subtitle=where, anchor="start", offset=14)
    chart = alt.layer(*layers, title=heading, width=_WIDTH, height=_HEIGHT, background="transparent")
    chart = chart.configure_title(fontSize=14, subtitleFontSize=12, frame="group")
    chart = chart.configure_view(stroke=None)
    return _svg(
        chart.configure_axis(
            gridColor=QUIET,
            gridOpacity=0.25,
            domainColor=QUIET,
            tickColor=QUIET,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
        )
    )


def _medians(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a line and load: repeats of a level are points, and the line goes through their median."""
    same: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for row in rows:
        same.setdefault((row["line"], row["load"]), []).append(row)
    return [
        {**group[0], "value": statistics.median(row["value"] for row in group)} for _, group in sorted(same.items())
    ]


def _spread(rows: Sequence[dict[str, Any]], slos: Mapping[str, float]) -> list[dict[str, Any]]:
    """The last point of each line, and where its label goes so that no label covers another."""
    last = {row["line"]: row for row in rows}
    line_height = 16 / _HEIGHT * max([*(row["value"] for row in rows), *slos.values()])
    placed: list[dict[str, Any]] = []
    for end in sorted(last.values(), key=lambda row: row["value"]):
        beside = [other["label_y"] for other in placed if other["load"] == end["load"]]
        lowest = beside[-1] + line_height if beside else end["value"]
        placed.append({**end, "label_y": max(end["value"], lowest)})
    return placed


def _svg(chart: alt.LayerChart) -> str:
    svg: str = vlc.vegalite_to_svg(chart.to_dict())
    # The page scales the picture and gives text its colour.
    svg = re.sub(r'(<svg[^>]*?) width="[\d.]+" height="[\d.]+"', r"\1", svg, count=1)
    return re.sub(r'(<text[^>]*?) fill="(?:#000|black|#000000)"', r'\1 fill="currentColor"', svg)
