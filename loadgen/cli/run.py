"""`loadgen run`: a scenario in; a table, a run folder and an exit code out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from loadgen.cli.options import scenario_command
from loadgen.errors import UsageError
from loadgen.scenario.model import Scenario


@scenario_command
def run(
    scenario: Scenario,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Folder of this run; default: runs/NAME/TIME. Must be empty."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Go on with the run of this folder, which was cut off: what is measured stays, the rest is run. "
            "Without a SCENARIO it is the run's own.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the levels in their order, the time and the servers, and start nothing."),
    ] = False,
    continue_on_error: Annotated[
        bool,
        typer.Option(
            "--continue-on-error",
            help="Go on with the other settings of the server when it does not start with one of them.",
        ),
    ] = False,
) -> None:
    """Load the target at each level, print the table, write the run folder.

    The last line on standard output is `run folder: PATH`. Exit codes: 0 all good; 1 it could not be run, or every
    request failed; 2 the scenario or the command line is wrong; 3 no level is valid; 99 a soak drifted for
    the worse and soak.fail_on_drift is set; 130 interrupted.
    """
    if resume is not None and output_dir not in (None, resume):
        raise UsageError(
            f"Both --resume {resume} and -o {output_dir} are given.",
            hint="A run goes on in its own folder: leave -o out.",
        )
    if dry_run:
        from loadgen.cli.dry_run import print_plan

        print_plan(scenario, resume)
        return
    # Nothing of ours needs Locust to patch the standard library, and the metrics endpoint wants a real thread.
    os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"
    import locust  # noqa: F401  (before aiohttp: it warns otherwise)

    from loadgen.controller.run import run as run_scenario

    raise typer.Exit(run_scenario(scenario, output_dir, resume=resume, continue_on_error=continue_on_error))
