"""The charts of a soak's windows: what the verdict looks at over time, with gaps where there is nothing to join."""

from __future__ import annotations

import itertools
import re
from typing import Any

from loadgen.report.html import page
from loadgen.report.soak_chart import MOST_POINTS, marked_lines, marked_spans, runs, soak_charts
from loadgen.stats.answers import answers
from loadgen.stats.soak import soak_object
from tests.unit.test_report_html import CONDITIONS, NASTY, Page, level

_TTFT = "Time to first token over the soak"
MARK = "no request succeeded"


def row(number: int, *, window_s: float = 60.0, **changed: Any) -> dict[str, Any]:
    return {
        "window": number,
        "start_s": number * window_s,
        "window_s": window_s,
        "requests": {"ok": 100},
        "error_rate": 0.0,
        "request_throughput": 2.0,
        "output_throughput": 128.0 + number % 2,
        **{f"p{p}_{name}_ms": 10.0 + p + number % 3 for p in (50, 95) for name in ("ttft", "tpot", "e2el")},
        "kv_usage": None,
        "waiting": None,
        "server_memory_bytes": None,
        "server_restarts": 0,
        "late_requests": 0,
        "mark": None,
        **changed,
    }


def soak(rows: list[dict[str, Any]], number: int = 0, **changed: Any) -> dict[str, Any]:
    found = soak_object(rows, window_s=60.0, max_drift=0.1, judged_s=60.0 * len(rows))
    return {**level(number, 4), "soak": found, **changed}


def drawn(*levels: dict[str, Any]) -> dict[str, str]:
    """Each chart by its title."""
    found = soak_charts(levels, "night", CONDITIONS)
    return {re.search(r">([^<>]*) – night<", chart)[1]: chart for chart in found}  # type: ignore[index]


def lines(chart: str) -> list[list[tuple[float, float]]]:
    """The points of every path of more than one point that is a line with a colour of its own."""
    paths = re.findall(r'<path[^>]*? d="(M[^"Zz]*?)"[^>]*? stroke="#[0-9a-f]{6}" stroke-width="(?:2|1\.2)"', chart)
    return [
        [(float(x), float(y)) for x, y in re.findall(r"([-\d.]+),([-\d.]+)", path)] for path in paths if "L" in path
    ]


def test_a_line_ends_at_a_marked_window_and_at_one_without_the_figure() -> None:
    rows = [row(0), row(1), row(2, mark=MARK), row(3), row(4, p95_ttft_ms=None), row(5), row(6)]
    assert [[one["window"] for one in run] for run in runs(rows, "p95_ttft_ms")] == [[0, 1], [3], [5, 6]]
    assert [[one["window"] for one in run] for run in runs(rows, "p50_ttft_ms")] == [[0, 1], [3, 4, 5, 6]]
    # A window that was never written is a gap too.
    assert [[one["window"] for one in run] for run in runs([row(0), row(2)], "p50_ttft_ms")] == [[0], [2]]


def test_no_drawn_line_crosses_a_gap() -> None:
    whole = lines(drawn(soak([row(n) for n in range(12)]))["Output throughput over the soak"])
    assert [len(line) for line in whole] == [12]
    torn = lines(
        drawn(soak([row(n, mark=MARK if n in (4, 5) else None) for n in range(12)]))["Output throughput over the soak"]
    )
    assert sorted(len(line) for line in torn) == [4, 6]
    step = whole[0][1][0] - whole[0][0][0]
    for line in torn:
        for (x, _), (further, _) in itertools.pairwise(line):
            assert abs(further - x - step) < 0.01


def test_a_window_between_two_gaps_is_a_point_even_where_there_are_many() -> None:
    rows = [row(n, mark=MARK if n in (69, 71) else None) for n in range(140)]
    chart = drawn(soak(rows))["Output throughput over the soak"]
    plain = drawn(soak([row(n) for n in range(140)]))["Output throughput over the soak"]
    assert "mark-symbol" not in plain
    # The lonely one, and what is known of the two that are marked.
    assert chart.count('<g class="mark-symbol') == 2
    assert [len(line) for line in lines(chart)] == [69, 68]


def test_marked_windows_are_shaded_and_listed_with_their_marks() -> None:
    again = "the server began anew"
    rows = [row(n, mark={60: MARK, 61: again, 90: again}.get(n)) for n in range(100)]
    found = soak(rows)
    assert [(one["window"], other["window"]) for one, other in marked_spans(rows)] == [(60, 61), (90, 90)]
    chart = drawn(found)["Time to first token over the soak"]
    assert len(re.findall('<path[^>]*d="M[^"]*Z"[^>]*fill="#8a8f98"', chart)) == 2
    assert marked_lines([found]) == [f"From 1:00:00 to 1:02:00: {MARK}; {again}.", f"From 1:30:00 to 1:31:00: {again}."]
    text = Page(page("night", [found], CONDITIONS, answers([found]))).text()
    assert f"Marked windows: From 1:00:00 to 1:02:00: {MARK}; {again}." in text


def test_what_was_not_measured_has_no_chart_and_what_never_failed_none_either() -> None:
    bare = [row(n) for n in range(10)]
    titles = [f"{name} over the soak" for name in ("Time to first token", "Time per output token", "Output throughput")]
    assert list(drawn(soak(bare))) == titles
    more = [row(n, error_rate=0.01, kv_usage=0.5, server_memory_bytes=10**9) for n in range(10)]
    assert list(drawn(soak(more)))[3:] == [
        "Failed requests over the soak",
        "KV cache of the server over the soak",
        "Memory of the server over the soak",
    ]


def test_a_clear_drift_has_its_slope_as_a_dashed_line() -> None:
    rising = soak([row(n, p95_ttft_ms=100.0 + 2 * n) for n in range(40)])
    assert rising["soak"]["figures"]["p95_ttft_ms"]["drift"] == "yes"
    charts = drawn(rising)
    assert charts["Time to first token over the soak"].count('stroke-dasharray="6,4"') == 1
    dashed = re.search(r'd="M([-\d.]+),([-\d.]+)L([-\d.]+),([-\d.]+)"[^>]*stroke-dasharray="6,4"', charts[_TTFT])
    drawn_points = lines(charts[_TTFT])[-1]
    assert dashed is not None and abs(float(dashed[1]) - drawn_points[0][0]) < 0.5  # not half a window beside them
    assert "stroke-dasharray" not in charts["Time per output token over the soak"]


def test_the_axis_has_times_in_the_unit_of_the_soaks_length() -> None:
    for minutes, unit in ((2, "s"), (90, "min"), (600, "h")):
        chart = drawn(soak([row(n) for n in range(minutes)]))["Output throughput over the soak"]
        assert f"time since the warm-up ({unit})" in chart


def test_of_many_windows_the_highest_and_lowest_are_drawn_and_the_file_stays_small() -> None:
    peak = 5000
    rows = [row(n, output_throughput=900.0 if n == peak else 128.0 + n % 2) for n in range(10_080)]
    chart = drawn(soak(rows))["Output throughput over the soak"]
    (line,) = lines(chart)
    assert MOST_POINTS / 2 < len(line) <= MOST_POINTS + 2
    assert line == sorted(line)
    highest = min(line, key=lambda point: point[1])  # of a picture y grows downwards
    assert abs(highest[0] / line[-1][0] - peak / 10_080) < 0.002
    assert len(chart) < 25_000


def test_ttft_of_an_open_loop_is_said_to_count_from_the_schedule() -> None:
    rows = [row(n) for n in range(10)]
    assert "TTFT from the schedule (ms)" in drawn(soak(rows, concurrency=None, request_rate=2.0))[_TTFT]
    assert not any("schedule" in chart for chart in drawn(soak(rows)).values())


def test_soaks_of_several_loads_are_told_apart_and_other_levels_have_none() -> None:
    rows = [row(n) for n in range(10)]
    two = drawn(soak(rows), soak(rows, 1, concurrency=8), level(2, 16))
    assert "Output throughput over the soak, concurrency 4" in two
    assert "Output throughput over the soak, concurrency 8" in two
    assert len(two) == 6
    assert soak_charts([level(0, 4), {**level(1, 8), "soak": None}], "night", CONDITIONS) == []


def test_a_soak_that_ended_before_its_first_window_has_the_charts_of_a_level() -> None:
    levels = [soak([])]
    text = page("night", levels, CONDITIONS, answers(levels))
    assert "<h2>Soak</h2>" not in text
    assert "<h2>Charts</h2>" in text


def test_charts_of_a_soak_escape_what_they_name_and_need_nothing_from_anywhere() -> None:
    levels = [soak([row(n, mark=NASTY if n == 3 else None) for n in range(10)])]
    text = page(NASTY, levels, {"target": NASTY, "seed": 1}, answers(levels))
    assert "<script" not in text
    made = Page(text)
    assert made.links == []
    assert f"From 0:03:00 to 0:04:00: {NASTY}." in made.text()
    assert "<h2>Charts</h2>" not in text  # one load has no curve
