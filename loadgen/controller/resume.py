"""Takes a run folder up again: what is measured in it stays, the level that was cut off is run again; measures nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.judgement import judge, scenario_of
from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from loadgen.scenario.model import Scenario
from loadgen.search.course import Course
from loadgen.stats.limit import with_limits

_FREE_TO_CHANGE = ("metrics.", "name")
"""Keys that say nothing of what is measured."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """A run that goes on."""

    folder: RunFolder
    scenario: Scenario
    levels: list[dict[str, Any]]
    """What is measured already and stays."""


def resumed(path: Path, given: Scenario) -> Resumed:
    """The run in `path`, which goes on as `given` asks. Raises UsageError when it asks for something else than the run did,
    when `path` is no run or it still goes on, and when nothing is left to run."""
    folder = RunFolder.open(path)
    before = scenario_of(folder)
    if given.seed is None:
        given = given.model_copy(update={"seed": before.seed})
    _check_equal(path, before, given)
    measured = with_limits(list(judge(RunReader(folder).all(), given, folder.provenance())))
    levels = [level for level in measured if not level["interrupted"] or level["interrupted_by"]]
    if Course(given).next(levels) is None:
        raise UsageError(
            f"Nothing is left to run in {path}: each of its levels is measured.",
            hint=f"`loadgen report {path}` makes its reports again",
        )
    return Resumed(folder, given, levels)


def _check_equal(path: Path, before: Scenario, given: Scenario) -> None:
    one, other = (dict(_flat(scenario.model_dump(mode="json"))) for scenario in (before, given))
    differ = [
        key
        for key in one.keys() | other.keys()
        if not key.startswith(_FREE_TO_CHANGE) and one.get(key) != other.get(key)
    ]
    if differ:
        told = ", ".join(f"{key} ({one.get(key)}, now {other.get(key)})" for key in sorted(differ)[:4])
        raise UsageError(
            f"The run in {path} was made with another scenario: {told}{' and more' if len(differ) > 4 else ''}.",
            hint="give --resume alone, which takes the run's own scenario; or begin another run",
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def with_resumption(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of a run that was resumed: as it began, with `resumed`, what it is now each time that it went on."""
    if not before:
        return dict(now)
    return {**before, "resumed": [*before.get("resumed", []), dict(now)]}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Sentences about what is not as it was when the run began, and may make its levels differ."""
    found = []
    for what, key in (("model", "model"), ("version of the server", "server_version")):
        one, other = (side.get("target", {}).get(key) for side in (before, now))
        if one is not None and other is not None and one != other:
            found.append(f"warning: the {what} was {one} when the run began, and is {other} now")
    one, other = ((side.get("controller") or {}).get("cpu") for side in (before, now))
    if one is not None and one != other:
        found.append(f"warning: the run began on a host with {one}, and goes on with {other}")
    if len(before.get("workers", [])) not in (0, len(now.get("workers", []))):
        found.append(
            f"warning: the run began with {len(before['workers'])} workers, and goes on with {len(now['workers'])}"
        )
    return found
