"""From a run folder to what is said of the run: a pure function of the records, the same at the end of a run and later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from loadgen.run_folder import LevelData, RunFolder
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario
from loadgen.stats.classes import RequestKind
from loadgen.stats.level import level_object


def scenario_of(folder: RunFolder) -> Scenario:
    """The scenario as it was run, every default written out."""
    return load_scenario(folder.path / "scenario.yaml")


def judge(levels: Iterable[LevelData], scenario: Scenario) -> Iterator[dict[str, Any]]:
    """The level object of each level."""
    slo = limits(scenario) or None
    kinds = kinds_of(scenario)
    for data in levels:
        yield level_object(data.plan, data.records, data.health, slo=slo, audit=data.audit, kinds=kinds)


def kinds_of(scenario: Scenario) -> list[RequestKind]:
    """The classes of the scenario's workload, in the order in which records number them; none where a file has the
    requests, of which nobody says what they share."""
    workload = scenario.workload
    if workload.dataset.path is not None:
        return []
    if workload.dataset.path is not None:
        return []  # what its prompts share is not known
    if not workload.classes:
        return [RequestKind("all", 1.0, workload.prefix_tokens())]
    return [RequestKind(one.name, one.share, one.prefix_tokens()) for one in workload.classes]


def limits(scenario: Scenario) -> dict[str, float]:
    """The scenario's SLOs in the units of a level object: milliseconds, and a share for `error_rate`."""
    return {
        objective.name: objective.limit if objective.percentile is None else objective.limit * 1e3
        for objective in scenario.slo.objectives()
    }
