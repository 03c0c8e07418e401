"""Which level comes next in a run: takes its scenario, the levels so far and what failed, gives a level, or none; pure.

Nothing is remembered, so a run that was cut off goes on where its folder says that it ended. A level is finished when it was
measured to its end, valid or not; one that was interrupted is run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from loadgen.scenario.model import Level, Scenario
from loadgen.search.failures import Failure, has_failed
from loadgen.search.search import Search
from loadgen.stats.asked import asked, is_open
from loadgen.stats.capacity import find_capacity, ladder

LevelObject = Mapping[str, Any]
_CONFIRM_RUNS = 2


def search_of(scenario: Scenario) -> Search | None:
    """The search that the scenario asks for; None for a list of levels."""
    load = scenario.load
    if not load.searches:
        return None
    first, least, most = load.search_bounds
    return Search(
        users=load.concurrency is not None,
        first=first,
        least=least,
        most=most,
        precision=load.search.precision,
        max_levels=load.search.max_levels,
    )


class Course:
    """The levels of one run as they come."""

    def __init__(self, scenario: Scenario) -> None:
        """The scenario has its seed."""
        self._scenario = scenario
        self._listed = scenario.levels()
        self._search = search_of(scenario)
        self.named_keys = named_keys(self._listed)
        """Settings of the server that a level is named by."""

    def named(self, server: Mapping[str, Any]) -> dict[str, Any]:
        """Of every setting of a server those that a level is named by."""
        return {key: server[key] for key in self.named_keys}

    def next(self, levels: Sequence[LevelObject], failures: Sequence[Failure] = ()) -> Level | None:
        """The level to run now; None when all have been run."""
        number = 1 + max([-1, *(level["level"] for level in levels), *(failure["level"] for failure in failures)])
        for server in self._scenario.server_combinations():
            named = self.named(server)
            if has_failed(named, failures):
                continue
            mine = [level for level in levels if _runs_with(level, named) and not level["interrupted"]]
            found = self._next_of(server, mine) or self._confirming(server, mine)
            if found is not None:
                return replace(found, level=number)
        return None

    def _next_of(self, server: dict[str, Any], mine: Sequence[LevelObject]) -> Level | None:
        if self._search is None:
            done = {_step(level) for level in mine}
            left = (level for level in self._listed if level.server == server and level.step not in done)
            return next(left, None)
        searched = [level for level in mine if is_open(level) is not self._search.users]
        load = self._search.next(searched)
        if load is None:
            return None
        run = sum(asked(level) == load for level in searched)
        if self._search.users:
            return Level(0, round(load), run, server)
        return Level(0, None, run, server, request_rate=load)

    def _confirming(self, server: dict[str, Any], mine: Sequence[LevelObject]) -> Level | None:
        """The capacity of users once more, as arrivals at the rate that they were served."""
        opened = [level for level in mine if is_open(level)]
        if not self._scenario.load.confirm or len(opened) >= _CONFIRM_RUNS or any(level["valid"] for level in opened):
            return None
        best = find_capacity(ladder([level for level in mine if not is_open(level)])).best
        if best is None or not best.level["served_request_rate"]:
            return None
        return Level(0, None, len(opened), server, request_rate=float(f"{best.level['served_request_rate']:.4g}"))

    def listed(self, levels: Sequence[LevelObject], failures: Sequence[Failure] = ()) -> list[Level]:
        """Levels that are still to come, as far as the scenario lists them: none of a search or a confirmation."""
        if self._search is not None:
            return []
        done = {_step(level) for level in levels if not level["interrupted"]}
        return [
            level
            for level in self._listed
            if level.step not in done and not has_failed(self.named(level.server), failures)
        ]

    @property
    def open_ended(self) -> bool:
        """Whether nobody knows how many levels there will be."""
        return self._search is not None or self._scenario.load.confirm


def planned_levels(scenario: Scenario, levels: Sequence[LevelObject], failures: Sequence[Failure] = ()) -> int:
    """How many levels the run should have: those that the scenario lists; of a search or a confirmation those that it has, and
    one more where it had not ended."""
    course = Course(scenario)
    if not course.open_ended:
        return len(scenario.levels())
    return len(levels) + (course.next(levels, failures) is not None)


def named_keys(levels: Sequence[Level]) -> tuple[str, ...]:
    """Settings of our server that every level states: those that are swept, and the one that people tune."""
    settings = levels[0].server
    return tuple(
        key for key in settings if key == "max_num_seqs" or len({repr(level.server[key]) for level in levels}) > 1
    )


def _runs_with(level: LevelObject, named: Mapping[str, Any]) -> bool:
    return all(level["server"].get(key) == value for key, value in named.items())


def _step(level: LevelObject) -> int:
    step = level.get("step")
    return int(level["level"] if step is None else step)
