"""`loadgen run`: a scenario in; a table, a run folder and an exit code out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from loadgen.cli.options import scenario_command
from loadgen.scenario.model import Scenario


@scenario_command
def run(
    scenario: Scenario,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Folder of this run; default: runs/NAME/TIME. Must be empty."),
    ] = None,
) -> None:
    """Load the target at each level, print the table, write the run folder.

    The last line on standard output is `run folder: PATH`. Exit codes: 0 all good; 1 it could not be run, or every
    request failed; 2 the scenario or the command line is wrong; 3 no level is valid; 130 interrupted.
    """
    # Nothing of ours needs Locust to patch the standard library, and the metrics endpoint wants a real thread.
    os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"
    import locust  # noqa: F401  (before aiohttp: it warns otherwise)

    from loadgen.controller.run import run as run_scenario

    raise typer.Exit(run_scenario(scenario, output_dir))
