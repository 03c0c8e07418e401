"""Takes level objects and the run's conditions, gives what `loadgen run` prints at its end; computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.report.figures import (
    ABSENT,
    HOW_TO_READ,
    WEAK_MEANS,
    Conditions,
    Level,
    audit_lines,
    by_setting,
    condition_texts,
    failed,
    figure,
    mark,
    notes,
    number,
    ok,
    repeated,
    slo_mark,
)
from loadgen.stats.answers import swept_settings

_FIGURES = (
    ("TTFT\nP50 ms", "p50_ttft_ms"),
    ("TTFT\nP95 ms", "p95_ttft_ms"),
    ("TPOT\nP50 ms", "p50_tpot_ms"),
    ("TPOT\nP95 ms", "p95_tpot_ms"),
    ("E2E\nP95 ms", "p95_e2el_ms"),
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
    swept = swept_settings(levels)
    repeats = repeated(levels)
    has_slo = any(level["slo"] for level in levels)
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    for name in swept:
        made.add_column(name.replace("_", "\n", 1), justify="right")
    if repeats:
        made.add_column("\nrun", justify="right")
    for heading in ("concur-\nrency", "n\nok", "\nfailed"):
        made.add_column(heading, justify="right", no_wrap=True)
    for heading, _ in _FIGURES:
        made.add_column(heading, justify="right", no_wrap=True)
    for heading in ("total\ntok/s", "total\nreq/s"):
        made.add_column(heading, justify="right", no_wrap=True)
    if has_slo:
        made.add_column("\nSLO", no_wrap=True)
    made.add_column("\nvalid", no_wrap=True)
    for level in levels:
        made.add_row(
            *(Text(str(level["server"].get(name, ABSENT))) for name in swept),
            *([str(level["run"] + 1)] if repeats else []),
            str(level["concurrency"]),
            str(ok(level)),
            str(failed(level)),
            *(figure(level, key) for _, key in _FIGURES),
            number(level["output_throughput"]),
            number(level["request_throughput"]),
            *([_styled(slo_mark(level))] if has_slo else []),
            _styled(mark(level)),
        )
    return made


def report(levels: Sequence[Level], conditions: Conditions) -> Group:
    """The table, what the run was, how to read it, and every reason to distrust it with its remedy."""
    lines: list[RenderableType] = [] if levels else [Text("No level was measured.")]
    for setting, group in by_setting(levels).items():
        lines += [Text(setting, style="bold"), table(group)] if setting else [table(group)]
        lines.append(Text())
    lines.append(Text(" · ".join(condition_texts(conditions))))
    lines += [Text(line, style="dim") for line in HOW_TO_READ]
    if any(level["weak_percentiles"] for level in levels):
        lines.append(Text(WEAK_MEANS, style="dim"))
    lines += [Text(line) for line in audit_lines(levels)]
    for note in notes(levels):
        text = Text.assemble(
            (note.severity, _STYLES.get(note.severity, "yellow")), f" at {note.where}: {note.evidence}"
        )
        lines += [text, Text(f"  hint: {note.remedy}")]
    return Group(*lines)


def _styled(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))
