"""Takes level objects, gives the table by turn of a conversation and what to say of it; computes nothing.

For terminal and HTML alike: rows of text, the headings in two lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from loadgen.report.figures import ABSENT, Level, failed, figure, level_cells, number, ok
from loadgen.report.level_columns import level_headings
from loadgen.stats.asked import is_open

_FIGURES = (
    ("TTFT\nP50 ms", "p50_ttft_ms"),
    ("TTFT\nP95 ms", "p95_ttft_ms"),
    ("TPOT\nP95 ms", "p95_tpot_ms"),
    ("E2E\nP95 ms", "p95_e2el_ms"),
)
_OPEN_FIGURES = (
    ("TTFT\nP50 ms", "p50_ttft_from_schedule_ms"),
    ("TTFT\nP95 ms", "p95_ttft_from_schedule_ms"),
    ("TPOT\nP95 ms", "p95_tpot_ms"),
    ("E2E\nP95 ms", "p95_e2el_from_schedule_ms"),
)
_MEANS = (
    "By turn of a conversation; later is every turn but the first. given before: share of the prompt that the server got in "
    "the turn before, or in other requests; so much a prefix cache could save."
)


def turn_headings(levels: Sequence[Level]) -> list[str]:
    """One a column."""
    return [
        *level_headings(levels),
        "\nturn",
        "n\nok",
        "\nfailed",
        "prompt\ntokens",
        "given\nbefore",
        *(heading for heading, _ in _FIGURES),  # those of an open loop are called the same
    ]


def turn_rows(levels: Sequence[Level]) -> list[list[str]]:
    """One row for each turn, or group of later ones, of each level; none where requests stand alone."""
    return [
        [
            *level_cells(level, levels),
            group["name"],
            str(ok(group)),
            str(failed(group)),
            number(group["mean_input_tokens"]),
            _percent(group["intended_prefix_share"]),
            *(figure(group, key) for _, key in (_OPEN_FIGURES if is_open(level) else _FIGURES)),
        ]
        for level in levels
        for group in (level["turns"] or {"by_turn": ()})["by_turn"]
    ]


def turn_table(levels: Sequence[Level]) -> Table | None:
    """The rows as a table for the terminal; None where requests stand alone."""
    rows = turn_rows(levels)
    if not rows:
        return None
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    for heading in turn_headings(levels):
        made.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def turn_lines(levels: Sequence[Level]) -> list[str]:
    """What the table means, and how the server counted its own answers when it got them back."""
    of_turns = [level["turns"] for level in levels if level["turns"]]
    if not of_turns:
        return []
    lines = [_MEANS]
    if carried := sum(turns["carried_answers"] for turns in of_turns):
        recounted = sum(turns["carried_answers_recounted"] or 0 for turns in of_turns)
        total = sum((turns["mean_recount_tokens"] or 0.0) * turns["carried_answers"] for turns in of_turns)
        same = f"Each of {carried} answers had as many tokens when it came back in a prompt as when it was generated."
        changed = (
            f"{recounted} of {carried} answers had another number of tokens when they came back in a prompt than when they were "
            f"generated ({total / carried:+.2g} on average): from there on a prefix cache cannot know them."
        )
        lines.append(changed if recounted else same)
    return lines


def _percent(share: float | None) -> str:
    return ABSENT if share is None else f"{share * 100:.0f}%"
