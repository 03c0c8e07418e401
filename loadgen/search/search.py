"""Finds the highest load that keeps every SLO: takes the levels measured so far, gives the next load, or none; pure.

It doubles the load until one misses the SLO, halves the ratio between the highest that holds and the lowest that misses, and
repeats what its samples leave undecided. What a load says is `loadgen.stats.capacity`'s to judge, by the 95 % bounds; a level
that is invalid decides nothing. Nothing is remembered: the same levels always give the same next load, so a search can be
taken up again from a run folder.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from loadgen.stats.asked import asked
from loadgen.stats.capacity import Found, Rung, find_capacity, ladder

Level = Mapping[str, Any]
End = Literal["resolved", "undecided", "limit_not_reached", "saturated", "nothing_holds", "invalid", "levels_used_up"]

FACTOR = 2.0
"""From one load to the next while none has missed the SLO."""
EDGE_RUNS = 2
"""Runs of the load that holds and of the one that misses, before the search rests on them."""
MOST_RUNS = 3
"""Runs of a load that is undecided, or that contradicts others; narrower intervals would cost more than a nearer load."""
INVALID_RUNS = 2
"""Runs of a load whose levels are all invalid, before it is left alone."""
LEAST_GAIN = 1.03
"""Throughput that has not grown so much over `FACTOR`² times the users does not grow any more."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a search makes of the levels so far."""

    load: float | None
    """What to measure next; None when the search has ended."""
    end: End | None
    """Why it has ended."""
    found: Found


@dataclass(frozen=True, slots=True)
class Search:
    """A search over the loads of one setting of the server."""

    users: bool
    """Whether loads are whole users; else requests a second."""
    first: float
    least: float
    most: float
    precision: float = 0.05
    max_levels: int = 20

    def next(self, levels: Sequence[Level]) -> float | None:
        """The load to measure next; None when the search has ended. Interrupted levels count for nothing."""
        return self.look(levels).load

    def look(self, levels: Sequence[Level]) -> Look:
        """The next load, or why there is none."""
        measured = [level for level in levels if not level["interrupted"]]
        runs = Counter(asked(level) for level in measured)
        rungs = ladder(measured)
        usable = [rung for rung in rungs if rung.state != "invalid"]
        blocked = [rung for rung in rungs if rung.state == "invalid"]
        found = find_capacity(usable)
        load, end = self._step(found, blocked, runs)
        if load is not None and len(measured) >= self.max_levels:
            load, end = None, "levels_used_up"
        return Look(load, end, found)

    def _step(
        self, found: Found, blocked: Sequence[Rung], runs: Mapping[float, int]
    ) -> tuple[float | None, End | None]:
        for rung in blocked:
            if runs[rung.load] < INVALID_RUNS:
                return rung.load, None
        if not runs:
            return self._number(self.first), None
        upper = self._upper(found, blocked)
        if upper is None:
            return self._climb(found, runs)
        if found.best is None:
            return self._descend(found, runs, upper)
        return self._close_in(found, blocked, runs, upper)

    def _upper(self, found: Found, blocked: Sequence[Rung]) -> float | None:
        """The lowest load above the best one that misses the SLO, or that cannot be measured."""
        best = 0.0 if found.best is None else found.best.load
        loads = [rung.load for rung in blocked if rung.load > best]
        return min([*loads, *([] if found.above is None else [found.above.load])], default=None)

    def _climb(self, found: Found, runs: Mapping[float, int]) -> tuple[float | None, End | None]:
        if self._levelled_off(found.rungs):
            return self._repeat_or(found, runs, "saturated")
        top = max(runs)
        if top >= self.most:
            return self._repeat_or(found, runs, "limit_not_reached")
        return self._number(min(top * FACTOR, self.most)), None

    def _repeat_or(self, found: Found, runs: Mapping[float, int], end: End) -> tuple[float | None, End | None]:
        """The highest load again, while its samples decide nothing."""
        top = found.rungs[-1]
        if top.state == "undecided" and runs[top.load] < MOST_RUNS:
            return top.load, None
        return None, end

    def _levelled_off(self, rungs: Sequence[Rung]) -> bool:
        """Whether more users only wait longer: each of the last two loads brought as good as nothing."""
        if not self.users or len(rungs) < 3:
            return False
        before, middle, last = rungs[-3:]
        most = LEAST_GAIN * before.level["output_throughput"]
        far = last.load >= FACTOR**2 * before.load * 0.99
        return far and max(middle.level["output_throughput"], last.level["output_throughput"]) < most

    def _descend(self, found: Found, runs: Mapping[float, int], upper: float) -> tuple[float | None, End | None]:
        lowest = min(runs)
        undecided = [rung for rung in found.rungs if rung.state == "undecided" and rung.load < upper]
        for rung in undecided:
            if runs[rung.load] < MOST_RUNS:
                return rung.load, None
        if lowest <= self.least:
            bottom = found.rungs[0] if found.rungs else None
            if bottom is not None and bottom.state == "missed" and runs[bottom.load] < EDGE_RUNS:
                return bottom.load, None
            return None, "invalid" if bottom is None else "nothing_holds"
        return self._number(max(self.least, lowest / FACTOR)), None

    def _close_in(
        self, found: Found, blocked: Sequence[Rung], runs: Mapping[float, int], upper: float
    ) -> tuple[float | None, End | None]:
        assert found.best is not None
        low = found.best.load
        for rung in found.against:
            if runs[rung.load] < MOST_RUNS:
                return rung.load, None
        inside = [rung for rung in found.rungs if low < rung.load < upper]
        middle = math.sqrt(low * upper)
        for rung in sorted(inside, key=lambda rung: abs(math.log(rung.load / middle))):
            if runs[rung.load] < MOST_RUNS:
                return rung.load, None
        # Those inside are undecided for good: what is left to learn lies beside them.
        ends = [(low, inside[0].load), (inside[-1].load, upper)] if inside else [(low, upper)]
        for one, other in ends:
            if not self._near(one, other):
                return self._between(one, other), None
        if inside:
            return None, "undecided"
        if found.above is None or found.above.load > upper:
            return None, "invalid"
        for rung in (found.best, found.above):
            if runs[rung.load] < EDGE_RUNS:
                return rung.load, None
        return None, "undecided" if found.against else "resolved"

    def _near(self, low: float, high: float) -> bool:
        return high <= low * (1 + self.precision) * (1 + 1e-9) or (self.users and high - low <= 1)

    def _between(self, low: float, high: float) -> float:
        """The middle of two loads that are not near, on a logarithmic scale."""
        middle = self._number(math.sqrt(low * high))
        return min(max(middle, low + 1), high - 1) if self.users else middle

    def _number(self, load: float) -> float:
        """A load as it can be asked for: whole users, or a rate of four digits."""
        return float(round(load)) if self.users else float(f"{load:.4g}")
