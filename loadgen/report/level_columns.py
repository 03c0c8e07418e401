"""The beginning of every table by level: columns that say which level a row is of."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from loadgen.report.figures import Level, mixed, repeated
from loadgen.stats.asked import is_open
from loadgen.stats.settings import swept_settings


def level_headings(levels: Sequence[Level]) -> list[str]:
    """Of the cells that say which level a row is of (`figures.level_cells`), each in two lines."""
    load = "\nload" if mixed(levels) else "asked\nreq/s" if levels and is_open(levels[0]) else "concur-\nrency"
    settings = [name.replace("_", "\n", 1) for name in swept_settings(levels)]
    return [*settings, *(["\nrun"] if repeated(levels) else []), load]


def table_of_levels(levels: Sequence[Level]) -> Table:
    """Without rows: a column for each swept setting of the server, the repeat where there are any, and the load."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    for heading in level_headings(levels):
        made.add_column(heading, justify="right")
    made.columns[-1].no_wrap = True
    return made
