"""Takes a run folder, gives what was measured in it as one value: for commands that answer from runs without making one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.judgement import judge, scenario_of, server_settings
from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from loadgen.scenario.model import Scenario
from loadgen.scenario.slo import Slo
from loadgen.search.course import planned_levels, search_of
from loadgen.stats.answers import answers, verdict
from loadgen.stats.limit import with_limits


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What a run measured, judged afresh from its records."""

    path: Path
    scenario: Scenario
    """With the limits that it was judged by."""
    provenance: Mapping[str, Any]
    levels: list[dict[str, Any]]
    answers: Mapping[str, Any]
    verdict: Mapping[str, Any]
    planned_levels: int = 0
    """Levels that the run should have; of a search one more than it has, where it had not ended."""

    @property
    def target(self) -> Mapping[str, Any]:
        """What the target said of itself; empty where the run noted nothing."""
        return dict(self.provenance.get("target") or {})

    def server_settings(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Every setting of the server of a level, see `loadgen.judgement.server_settings`."""
        return server_settings(self.scenario, named)

    @property
    def cut_off(self) -> bool:
        """Whether levels that the scenario planned were not measured."""
        return len(self.levels) < self.planned_levels


def read_run(path: Path, *, slo: Slo | None = None) -> MeasuredRun:
    """Judges the run by its own limits, or by `slo`. Raises UsageError for a folder that is no run or still goes on."""
    folder = RunFolder.open(path)
    scenario = scenario_of(folder)
    if slo is not None:
        scenario = scenario.model_copy(update={"slo": slo})
    provenance = folder.provenance()
    levels = with_limits(list(judge(RunReader(folder).all(), scenario, provenance)))
    failures = folder.failures()
    said = answers(levels, search=search_of(scenario), failures=failures)
    planned = planned_levels(scenario, levels, failures)
    return MeasuredRun(
        path, scenario, provenance, levels, said, verdict(levels, fail_on_drift=scenario.soak.fail_on_drift), planned
    )
