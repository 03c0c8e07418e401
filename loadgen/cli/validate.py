"""`loadgen validate`: a scenario in, the same with every default written out, or every problem; reads a dataset, starts nothing."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadgen.cli.options import scenario_command
from loadgen.scenario.json_schema import scenario_schema
from loadgen.scenario.model import Scenario
from loadgen.scenario.quantities import format_duration

if TYPE_CHECKING:
    from loadgen.datasets.plan import SurveyedDataset


@scenario_command
def validate(
    scenario: Scenario,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of scenarios, for editors.")] = False,
) -> None:
    """Check a scenario, and every line of its dataset, and print it with every default written out; starts nothing.

    What it prints is a scenario itself. Exit code 0, or 2 with every problem on standard error.
    """
    if schema:
        typer.echo(json.dumps(scenario_schema(), indent=1, ensure_ascii=False))
        return
    with tempfile.TemporaryDirectory(prefix="loadgen-") as folder:
        dataset = _surveyed(scenario, Path(folder) / "dataset")
        windows_s = _windows_s(scenario, dataset)
    load = scenario.load
    load_s = sum(load.least_s(window_s) for window_s in windows_s)
    least = "at least " if load.given_warmup_s is None or None in windows_s else ""
    typer.echo(scenario.to_yaml(), nl=False)
    typer.echo(
        f"# {_counted(len(windows_s), 'level')}: {least}{format_duration(load_s)} of warm-up and measuring, without drains."
    )
    if load.searches:
        typer.echo(
            f"# The search goes on from there, with at most {load.search.max_levels} levels for each setting of the server."
        )
    if dataset is not None:
        typer.echo(f"# {dataset.in_words()}")


def _windows_s(scenario: Scenario, dataset: SurveyedDataset | None) -> list[float | None]:
    """How long each level's window is; None where that follows from the work."""
    levels, load = scenario.levels(), scenario.load
    if not load.open_loop:
        return [load.duration] * len(levels)
    # Numpy again.
    from loadgen.scenario.schedules import given_window_s, schedules

    replays = load.replay_speed is not None and dataset is not None
    made = schedules(scenario.with_seed(), dataset.timestamps_s() if replays and dataset is not None else None)
    return [given_window_s(load, made[level.level]) for level in levels]


def _surveyed(scenario: Scenario, folder: Path) -> SurveyedDataset | None:
    if scenario.workload.dataset.path is None:
        return None
    # Not before it is needed: it brings numpy, and a scenario is often checked by an editor, as it is typed.
    from loadgen.datasets.plan import surveyed_dataset

    return surveyed_dataset(scenario, folder)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
