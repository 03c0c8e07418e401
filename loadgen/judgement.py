"""From a run folder to what is said of the run: a pure function of the records, the same at the end of a run and later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from loadgen.locustfile.conditions import names_of
from loadgen.locustfile.names import named_kinds, renumbered
from loadgen.run_folder import RunFolder
from loadgen.run_reader import LevelData
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario
from loadgen.scenario.request_rules import streams
from loadgen.scenario.workload import RequestClass
from loadgen.stats.classes import RequestKind
from loadgen.stats.level import level_object
from loadgen.stats.soak import soak_object


def scenario_of(folder: RunFolder) -> Scenario:
    """The scenario as it was run, every default written out."""
    return load_scenario(folder.path / "scenario.yaml")


def judge(
    levels: Iterable[LevelData], scenario: Scenario, provenance: Mapping[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """The level object of each level. `provenance` knows whether tasks of a locustfile have named the requests."""
    slo = limits(scenario) or None
    kinds = kinds_of(scenario)
    names = names_of(provenance or {})
    for data in levels:
        if names is not None:
            kinds, data = named_kinds(names), replace(data, records=renumbered(data.records, names))
        yield level_object(
            data.plan,
            data.records,
            data.health,
            slo=slo,
            audit=data.audit,
            kinds=kinds,
            server=data.server,
            settings=server_settings(scenario, data.plan.server),
            shared_target=scenario.target.shared,
            soak=_soak(data, scenario),
        )


def _soak(data: LevelData, scenario: Scenario) -> dict[str, Any] | None:
    plan = data.plan
    if data.soak is None or plan.soak_window_s is None:
        return None
    return soak_object(
        data.soak,
        window_s=plan.soak_window_s,
        max_drift=scenario.soak.max_drift,
        judged_s=(plan.window_end_ns - plan.window_start_ns) / 1e9,
        rest=data.soak_rest,
    )


def server_settings(scenario: Scenario, named: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting that a server of ours was started with, of which a level's `server` names only some; those alone for a
    server that was there."""
    matching = (
        one
        for one in scenario.server_combinations()
        if all(name in one and one[name] == value for name, value in named.items())
    )
    return {**next(matching, {}), **named}


def kinds_of(scenario: Scenario) -> list[RequestKind]:
    """The classes of the scenario's workload, in the order in which records number them; none where a file has the
    requests, of which nobody says what they share."""
    workload = scenario.workload
    if workload.dataset.path is not None:
        return []  # what its prompts share is not known
    target = scenario.target
    return [
        RequestKind(one.name, one.share, one.prefix_tokens(), one.model, streams(target, one))
        if isinstance(one, RequestClass)
        else RequestKind("all", 1.0, one.prefix_tokens(), streamed=streams(target, one))
        for one in workload.kinds()
    ]


def limits(scenario: Scenario) -> dict[str, float]:
    """The scenario's SLOs in the units of a level object: milliseconds, and a share for `error_rate`."""
    return {
        objective.name: objective.limit if objective.percentile is None else objective.limit * 1e3
        for objective in scenario.slo.objectives()
    }
