"""Takes level objects and the run's conditions, gives what `loadgen run` prints at its end; computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.report.figures import (
    WEAK_MEANS,
    Conditions,
    Level,
    audit_lines,
    class_rows,
    condition_texts,
    failed,
    figure,
    how_to_read,
    is_open_loop,
    level_cells,
    mark,
    notes,
    number,
    ok,
    prefix_lines,
    slo_mark,
)
from loadgen.report.level_columns import table_of_levels
from loadgen.report.server_table import gpu_lines, limit_lines, outside_lines, server_table
from loadgen.report.turns import turn_lines, turn_table
from loadgen.stats.settings import by_kind, by_setting

_FIGURES = (
    ("TTFT\nP50 ms", "p50_ttft_ms"),
    ("TTFT\nP95 ms", "p95_ttft_ms"),
    ("TPOT\nP50 ms", "p50_tpot_ms"),
    ("TPOT\nP95 ms", "p95_tpot_ms"),
    ("E2E\nP95 ms", "p95_e2el_ms"),
)
_RATES = (("total\ntok/s", "output_throughput"), ("total\nreq/s", "served_request_rate"))
_OPEN_FIGURES = (
    ("TTFT\nP50 ms", "p50_ttft_from_schedule_ms"),
    ("TTFT\nP95 ms", "p95_ttft_from_schedule_ms"),
    ("TPOT\nP95 ms", "p95_tpot_ms"),
    ("E2E\nP95 ms", "p95_e2el_from_schedule_ms"),
)
_OPEN_RATES = (
    ("total\ntok/s", "output_throughput"),
    ("offer-\ned", "offered_request_rate"),
    ("\nsent", "sent_request_rate"),
    ("\ndone", "completed_request_rate"),
)
_STYLES = {
    "yes": "green",
    "doubt": "yellow",
    "NO": "bold red",
    "met": "green",
    "miss": "red",
    "INVALID": "bold red",
}


def table(levels: Sequence[Level]) -> Table:
    """One row a level. Latencies are of one request, rates of all users together; the headings say so."""
    has_slo = any(level["slo"] for level in levels)
    made = table_of_levels(levels)
    shown = _OPEN_FIGURES if is_open_loop(levels) else _FIGURES
    rates = _OPEN_RATES if is_open_loop(levels) else _RATES
    for heading in ("n\nok", "\nfailed", *(heading for heading, _ in (*shown, *rates))):
        made.add_column(heading, justify="right", no_wrap=True)
    if has_slo:
        made.add_column("\nSLO", no_wrap=True)
    made.add_column("\nvalid", no_wrap=True)
    for level in levels:
        made.add_row(
            *map(Text, level_cells(level, levels)),
            str(ok(level)),
            str(failed(level)),
            *(figure(level, key) for _, key in shown),
            *(number(level[key]) for _, key in rates),
            *([_styled(slo_mark(level))] if has_slo else []),
            _styled(mark(level)),
        )
    return made


def class_table(levels: Sequence[Level]) -> Table | None:
    """One row for each class of each level; None where the workload has only one."""
    rows = class_rows(levels)
    if not rows:
        return None
    made = table_of_levels(levels)
    made.add_column("\nclass", overflow="fold")
    shown = _OPEN_FIGURES if is_open_loop(levels) else _FIGURES
    for heading in ("n\nok", "\nfailed", *(heading for heading, _ in (*shown, *_RATES))):
        made.add_column(heading, justify="right", no_wrap=True)
    for conditions, _, one in rows:
        made.add_row(
            *conditions,
            Text(one["name"]),
            str(ok(one)),
            str(failed(one)),
            *(figure(one, key) for _, key in shown),
            *(number(one[key]) for _, key in _RATES),
        )
    return made


def report(levels: Sequence[Level], conditions: Conditions) -> Group:
    """The table, what the run was, how to read it, and every reason to distrust it with its remedy."""
    lines: list[RenderableType] = [] if levels else [Text("No level was measured.")]
    for setting, group in by_setting(levels).items():
        for kind in by_kind(group):
            lines += [Text(setting, style="bold"), table(kind)] if setting else [table(kind)]
            lines.append(Text())
    for kind in by_kind(levels):
        if (by_class := class_table(kind)) is not None:
            lines += [Text("by class", style="bold"), by_class, Text()]
    if (by_turn := turn_table(levels)) is not None:
        lines += [Text("by turn", style="bold"), by_turn, Text()]
    if (of_server := server_table(levels)) is not None:
        lines += [Text("by the server's own metrics", style="bold"), of_server, Text()]
    lines.append(Text(" · ".join(condition_texts(conditions))))
    lines += [Text(line, style="dim") for line in how_to_read(levels)]
    if any(level["weak_percentiles"] for level in levels):
        lines.append(Text(WEAK_MEANS, style="dim"))
    lines += [Text(line) for line in (*turn_lines(levels), *prefix_lines(levels), *audit_lines(levels))]
    lines += [Text(line) for line in (*limit_lines(levels), *outside_lines(levels), *gpu_lines(levels))]
    for note in notes(levels):
        text = Text.assemble(
            (note.severity, _STYLES.get(note.severity, "yellow")), f" at {note.where}: {note.evidence}"
        )
        lines += [text, Text(f"  hint: {note.remedy}")]
    return Group(*lines)


def _styled(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))
