"""`loadgen report`: a run folder in, the same judgement and files again from its records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, as `loadgen run` printed it.")],
) -> None:
    """Make summary.json, summary.csv, metrics.prom and report.html again from the records, and print the table.

    Nothing is measured. Exit codes as of `loadgen run`.
    """
    from rich.console import Console

    from loadgen.outputs import write_outputs
    from loadgen.run_choice import chosen_run
    from loadgen.run_folder import RunFolder

    raise typer.Exit(write_outputs(RunFolder.open(chosen_run(run)), Console()).exit_code)
