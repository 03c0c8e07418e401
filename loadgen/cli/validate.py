"""`loadgen validate`: a scenario in, the same with every default written out, or every problem; starts nothing."""

from __future__ import annotations

import typer

from loadgen.cli.options import scenario_command
from loadgen.scenario.model import Scenario
from loadgen.scenario.quantities import format_duration


@scenario_command
def validate(scenario: Scenario) -> None:
    """Check a scenario and print it with every default written out; starts nothing.

    What it prints is a scenario itself. Exit code 0, or 2 with every problem on standard error.
    """
    levels = scenario.levels()
    load = scenario.load
    load_s = len(levels) * load.least_s()
    least = "" if load.warmup is not None and load.duration is not None else "at least "
    typer.echo(scenario.to_yaml(), nl=False)
    typer.echo(
        f"# {_counted(len(levels), 'level')}: {least}{format_duration(load_s)} of warm-up and measuring, without drains."
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
