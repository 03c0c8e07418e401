"""Takes a judged run, gives what one replica can do within the limits, for each server setting; never from an invalid level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.stats.asked import asked, asked_number, asked_of
from loadgen.stats.capacity import capacities as judged_capacities
from loadgen.stats.prefill import PrefillCost, prefill_cost
from loadgen.stats.settings import headline, setting_text, swept_settings

Level = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest load of one server setting at which every limit held with its 95 % bound."""

    level: Level | None
    """None where no valid level keeps the limits so."""
    server: Mapping[str, Any]
    setting: str
    """The swept settings in words; empty where none is swept."""
    text: str
    """The answer in words."""
    resolved: bool
    """Whether the next possible load misses a limit."""
    above: Level | None
    """The lowest load above it that misses a limit; None where none was measured."""
    next_level: Level | None
    """The lowest level above it that was measured at all."""
    prefill: PrefillCost
    """What a prompt takes of the server, by the levels of the setting."""

    @property
    def rps(self) -> float:
        """Requests/s served at it; 0 where there is none."""
        return 0.0 if self.level is None else float(self.level["served_request_rate"] or 0)

    @property
    def most_rps(self) -> float:
        """The upper end of its 95 % interval; without one the value itself."""
        found = self.interval("served_request_rate")
        return self.rps if found is None else found[1]

    @property
    def output_tps(self) -> float:
        """Output tokens/s at it."""
        return 0.0 if self.level is None else float(self.level["output_throughput"] or 0)

    def interval(self, field: str) -> tuple[float, float] | None:
        """95 % interval of a field of its level; None where there is none."""
        low_high = ((self.level or {}).get("intervals") or {}).get(field)
        return None if low_high is None or None in low_high else (float(low_high[0]), float(low_high[1]))

    def unresolved(self) -> str | None:
        """Why the capacity may be more than measured, in words; None where it is not, or where there is none."""
        if self.level is None or self.resolved:
            return None
        here = asked_of(self.level)
        if self.next_level is None:
            return f"the limit was not reached: no level above {here} was measured, so a replica may do more"
        if not self.next_level["valid"]:
            where = f"the capacity was not resolved above {here}"
            return f"{where}, because the level at {asked_number(self.next_level)} is invalid"
        if self.above is None:
            return (
                f"the limit was not reached: no level above {here} misses a limit for certain, so a replica may do more"
            )
        return f"the capacity was not resolved between {here} and {asked_number(self.above)}, where a limit is missed"


def capacities(levels: Sequence[Level]) -> list[Capacity]:
    """One for each server setting of the run, in the order of the run; empty without limits."""
    levels = headline(levels)
    names = swept_settings(levels)
    return [_capacity(one, levels, names) for one in judged_capacities(levels)]


def _capacity(answer: Mapping[str, Any], levels: Sequence[Level], names: Sequence[str]) -> Capacity:
    setting = setting_text(answer, names)
    same = [level for level in levels if setting_text(level, names) == setting]
    level = next((one for one in same if one["level"] == answer["level"]), None)
    higher = [] if level is None else sorted((one for one in same if asked(one) > asked(level)), key=asked)
    return Capacity(
        level=level,
        server=answer["server"],
        setting=setting,
        text=answer["text"],
        resolved=answer["resolved"],
        above=next((one for one in higher if one["valid"] and asked(one) == answer["interval"][1]), None),
        next_level=higher[0] if higher else None,
        prefill=prefill_cost(same),
    )
