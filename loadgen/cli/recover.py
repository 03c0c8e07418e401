"""`loadgen recover`: a run that was cut off in; what its spools still tell out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def recover(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run whose controller was killed.")],
    spools: Annotated[
        list[Path] | None,
        typer.Option("--spool", metavar="FILE", help="Spool that a remote worker printed; may be repeated."),
    ] = None,
) -> None:
    """Judge a run whose controller was killed, from the spools that its workers left.

    The level that was running is marked as interrupted. A spool of a remote worker replaces the part of it that had
    reached the run folder. Exit codes as of `loadgen run`.
    """
    from rich.console import Console

    from loadgen.outputs import write_outputs
    from loadgen.run_folder import RunFolder

    folder = RunFolder.open(run)
    for spool in spools or []:
        folder.adopt(spool)
    raise typer.Exit(write_outputs(folder, Console()).exit_code)
