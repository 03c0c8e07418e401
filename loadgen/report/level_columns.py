"""The beginning of every table in the terminal: columns that say which level a row is of."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from loadgen.report.figures import Level, mixed, repeated
from loadgen.stats.asked import is_open
from loadgen.stats.settings import swept_settings


def table_of_levels(levels: Sequence[Level]) -> Table:
    """Without rows: a column for each swept setting of the server, the repeat where there are any, and the load."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    for name in swept_settings(levels):
        made.add_column(name.replace("_", "\n", 1), justify="right")
    if repeated(levels):
        made.add_column("\nrun", justify="right")
    made.add_column(
        "\nload" if mixed(levels) else "asked\nreq/s" if levels and is_open(levels[0]) else "concur-\nrency",
        justify="right",
        no_wrap=True,
    )
    return made
