"""Takes the answer on total speed against one user's speed, gives its chart as SVG: up and to the right is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from loadgen.report.charts import colours, drawn, mark_layers, near
from loadgen.report.figures import Conditions, Level
from loadgen.stats.asked import asked, asked_number
from loadgen.stats.settings import setting_text, swept_settings


def pareto_chart(
    found: Mapping[str, Any] | None, levels: Sequence[Level], scenario: str, conditions: Conditions
) -> str | None:
    """Output tokens/s of all users against tokens/s of one, a line for each swept setting in order of load, its loads beside it.

    `found` is `answers["pareto"]`. Points that no other beats in both are full, the others hollow. None without a second
    point.
    """
    if found is None or len(found["points"]) < 2:
        return None
    names = swept_settings(levels)
    rows = _labelled([_row(point, names) for point in sorted(found["points"], key=asked)])
    x = alt.X("user:Q", title="tokens / s that one user sees (1000 / TPOT P50)", scale=alt.Scale(zero=True, nice=True))
    y = alt.Y("all:Q", title="output tokens / s, all users", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=6))
    colour = colours([row["colour"] for row in rows])
    every = alt.Chart(alt.Data(values=rows))
    front = alt.Chart(alt.Data(values=[row for row in rows if row["front"]]))
    others = alt.Chart(alt.Data(values=[row for row in rows if not row["front"]]))
    last = {row["colour"]: row for row in rows}
    ends = alt.Chart(alt.Data(values=list(last.values())))
    layers: list[alt.Chart] = [
        every.mark_line(strokeWidth=1.5, opacity=0.5).encode(x=x, y=y, color=colour, order="load:Q"),
        others.mark_point(size=50, strokeWidth=2, fill="none").encode(x=x, y=y, color=colour),
        front.mark_circle(size=60, opacity=1).encode(x=x, y=y, color=colour),
        every.mark_text(align="left", dx=8, dy=-5, fontSize=11).encode(x=x, y=y, text="label:N"),
        ends.mark_text(align="right", dx=-8, dy=-8, fontSize=12, fontWeight="bold").encode(x=x, y=y, text="colour:N"),
    ]
    layers += mark_layers(rows, x, y, "user", "all", offsets=(17,))
    return drawn(layers, "Speed of all against speed of one", scenario, conditions)


def _labelled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with `label`: the load, or `8, 16` for those that lie on one spot; one label for each spot."""
    spots: list[list[dict[str, Any]]] = []
    for row in rows:
        for spot in spots:
            if near(spot[0], row, rows, ("user", "all")):
                spot.append(row)
                break
        else:
            spots.append([row])
    for spot in spots:
        numbers = list(dict.fromkeys(row["number"] for row in spot))
        for row in spot:
            row["label"] = ""
        spot[0]["label"] = ", ".join(numbers) if len(numbers) <= 3 else f"{numbers[0]} … {numbers[-1]}"
    return rows


def _row(point: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {
        "user": point["tokens_per_user"],
        "all": point["output_throughput"],
        "load": asked(point),
        "number": asked_number(point),
        "colour": setting_text(point, names),
        "front": point["on_front"],
        "marks": ", ".join(point["marks"]),
    }
