"""Follows the soaks of a run as its spools grow: folds records into windows and says which records may be forgotten.

A soak's own figures are of its last ten minutes at most; the windows are of all of it. So what is kept of hours is a row a window
and ten minutes of records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadgen.record import LevelPlan, RequestRecord
from loadgen.run_folder import JournalEntry
from loadgen.server_metrics.sample import ServerSample
from loadgen.stats.soak_windows import Rest, SoakWindows

JUDGED_NS = 600_000_000_000
"""Longest part of a soak, at its end, that the level's own figures are of."""


@dataclass(slots=True)
class _Soak:
    plan: LevelPlan
    offsets_ns: Mapping[int, int]
    windows: SoakWindows
    told: int = 0

    def last_ns(self) -> int:
        """The end of its window; of one that has not ended, or was never said to have, the last that is known."""
        plan = self.plan
        if plan.drained_ns is not None or plan.interrupted:
            return plan.window_end_ns
        return min(plan.window_end_ns, self.windows.newest_ns)


class SoakReader:
    """The soaks of one part of a run."""

    def __init__(self, in_clock: Callable[[RequestRecord, int], RequestRecord]) -> None:
        """`in_clock` gives a record in the controller's clock, by the worker's offset."""
        self._in_clock = in_clock
        self._soaks: dict[int, _Soak] = {}

    def see(self, journal: Sequence[JournalEntry]) -> None:
        """The journal as it stands: call it before the records of a new level are read."""
        for entry in journal:
            plan = entry.plan
            if plan.soak_window_s is None:
                continue
            known = self._soaks.get(plan.level)
            if known is None:
                windows = SoakWindows(
                    plan.window_start_ns, round(plan.soak_window_s * 1e9), open_loop=plan.concurrency is None
                )
                self._soaks[plan.level] = _Soak(plan, entry.clock_offsets_ns, windows)
            else:
                known.plan = plan

    @property
    def any(self) -> bool:
        """Whether there is a soak at all."""
        return bool(self._soaks)

    def offset_ns(self, worker: int) -> int:
        """A worker's clock minus the controller's, by the last soak."""
        return next(reversed(self._soaks.values())).offsets_ns.get(worker, 0)

    def add(self, records: Sequence[RequestRecord]) -> None:
        """Records as the spool has them, in their worker's clock."""
        for soak in self._soaks.values():
            moved = [self._in_clock(one, soak.offsets_ns.get(one.worker, 0)) for one in records]
            end_ns = soak.plan.window_end_ns
            soak.windows.add([one for one in moved if one.dispatched_ns < end_ns])

    def add_samples(self, samples: Iterable[ServerSample]) -> None:
        samples = list(samples)
        for soak in self._soaks.values():
            soak.windows.add_samples(one for one in samples if one.at_ns < soak.plan.window_end_ns)

    def needs(self, ended_ns: int) -> bool:
        """Whether a request that ended at this instant of the controller's clock is needed for a level's own figures."""
        return any(
            ended_ns >= min(soak.windows.newest_ns, soak.plan.window_end_ns) - JUDGED_NS
            and (soak.plan.drained_ns is None or ended_ns <= soak.plan.drained_ns)
            for soak in self._soaks.values()
        )

    def samples_since_ns(self) -> int:
        """Scrapes before this instant are needed no more."""
        return min(min(soak.windows.newest_ns, soak.plan.window_end_ns) - JUDGED_NS for soak in self._soaks.values())

    def fresh(self, now_ns: int) -> list[tuple[int, list[dict[str, Any]]]]:
        """(level, rows) of windows that are complete by now and were not given before."""
        found = []
        for level, soak in self._soaks.items():
            whole = (soak.plan.window_end_ns - soak.plan.window_start_ns) // soak.windows.window_ns
            beyond = min(soak.windows.ready(now_ns), whole)
            if beyond > soak.told:
                found.append((level, soak.windows.rows(soak.told, beyond)))
                soak.told = beyond
        return found

    def cut(self, plan: LevelPlan) -> LevelPlan:
        """The plan; of a soak whose controller was killed in it, up to the last instant of which all is known: before it lie no
        requests that were under way at the end, whose records never came."""
        soak = self._soaks.get(plan.level)
        if soak is None or plan.drained_ns is not None or plan.interrupted:
            return plan
        end_ns = soak.last_ns() - min(soak.windows.longest_ns, JUDGED_NS // 2)
        if end_ns <= plan.window_start_ns:
            end_ns = soak.last_ns()
        return replace(plan, interrupted=True, window_end_ns=end_ns)

    def finished(self, plan: LevelPlan) -> tuple[list[dict[str, Any]], Rest] | tuple[None, None]:
        """All rows of a level that has ended, and what is in none of them; None of one that is no soak."""
        soak = self._soaks.get(plan.level)
        if soak is None:
            return None, None
        rows = soak.windows.finish(plan.window_end_ns)
        return rows, soak.windows.rest(len(rows), soak.last_ns())

    def judged_part(self, plan: LevelPlan) -> LevelPlan:
        """The plan of the part of a soak that its own figures are of; of another level the plan itself."""
        soak = self._soaks.get(plan.level)
        if soak is None:
            return plan
        kept_ns = max(plan.window_end_ns, soak.last_ns()) - JUDGED_NS
        return replace(plan, window_start_ns=max(plan.window_start_ns, kept_ns))
