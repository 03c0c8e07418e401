"""From a run folder to what is said of the run: a pure function of the records, the same at the end of a run and later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from loadgen.run_folder import LevelData, RunFolder
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario
from loadgen.stats.level import level_object


def scenario_of(folder: RunFolder) -> Scenario:
    """The scenario as it was run, every default written out."""
    return load_scenario(folder.path / "scenario.yaml")


def judge(levels: Iterable[LevelData], scenario: Scenario) -> Iterator[dict[str, Any]]:
    """The level object of each level."""
    slo = limits(scenario) or None
    for data in levels:
        yield level_object(data.plan, data.records, data.health, slo=slo, audit=data.audit)


def limits(scenario: Scenario) -> dict[str, float]:
    """The scenario's SLOs in the units of a level object: milliseconds, and a share for `error_rate`."""
    return {
        objective.name: objective.limit if objective.percentile is None else objective.limit * 1e3
        for objective in scenario.slo.objectives()
    }
