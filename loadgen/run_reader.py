"""Reads a run folder back as plans and records, those of a level in one clock; at once, or as it grows."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from loadgen.audit_reader import AuditReader
from loadgen.audit_trail import AuditTrail
from loadgen.open_table import read_open
from loadgen.record import CENSORED, LevelPlan, RequestRecord, WorkerHealth
from loadgen.run_folder import JournalEntry, RunFolder
from loadgen.server_metrics.file import SampleReader
from loadgen.server_metrics.sample import ServerSample
from loadgen.soak_reader import SoakReader
from loadgen.spool import SpoolReader
from loadgen.stats.soak_windows import Rest

# The scrape at the window's end may be asked for a little after the last worker was done.
_LAST_SCRAPE_NS = 500_000_000
# Records of a soak are thinned out when there are so many, or twice as many as the last time left.
_THIN_AT = 4096
_INSTANTS = (
    "dispatched_ns",
    "finished_ns",
    "scheduled_ns",
    "sent_ns",
    "response_started_ns",
    "first_token_ns",
    "first_visible_ns",
    "last_token_ns",
)


@dataclass(frozen=True, slots=True)
class LevelData:
    """All that is known of one level; instants are of the controller's clock."""

    plan: LevelPlan
    records: list[RequestRecord]
    health: list[WorkerHealth]
    audit: AuditTrail | None = None
    """Of an audited run: the packets."""
    server: Sequence[ServerSample] = ()
    """The server's own metrics, from the window's start to the drain's end."""
    soak: list[dict[str, Any]] | None = None
    """Of a soak: a row for each of its windows. The plan is then that of its last part, which the records are of."""
    soak_rest: Rest | None = None
    """Of a soak: what is in none of them."""


class PartReader:
    """Reads the spools of one controller, at once or as they grow; every block is read once.

    A level gets every request that was begun in it, and those of other levels that were under way in its window: their
    tokens arrived there, and they were part of its load.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._audit = AuditReader(folder.records)
        self._server = SampleReader(folder.server_metrics)
        self._spools: dict[Path, SpoolReader] = {}
        self._records: dict[tuple[int, int], RequestRecord] = {}
        """By (level, index). A request that was given up as censored is written again at its real end: the last counts."""
        self._health: dict[int, list[WorkerHealth]] = {}
        self._given: set[int] = set()
        self._count: Counter[Path] = Counter()
        """Records read of each spool."""
        self._read_at: dict[tuple[int, int], int] = {}
        """By (worker, level): records read when the worker's health of the level came, which it writes last."""
        self._done: dict[int, tuple[int, int]] = {}
        """By worker: (records said, records read) up to the level given last."""
        self._soaks = SoakReader(in_controllers_clock)
        self._thin_at = _THIN_AT

    def soak_windows(self, now_ns: int) -> list[tuple[int, list[dict[str, Any]]]]:
        """While the run goes on: (level, rows) of a soak's windows that are complete by now and were not given before."""
        self._read()
        return self._soaks.fresh(now_ns)

    def drained(self) -> Iterator[LevelData]:
        """While the run goes on: every level that has drained and was not given before, with its records."""
        self._read()
        for entry in self._folder.plans():
            if entry.plan.drained_ns is not None and entry.plan.level not in self._given:
                self._given.add(entry.plan.level)
                yield self._data(entry)
                self._forget_before(entry)

    def all(self) -> Iterator[LevelData]:
        """After the run: every level of which anything was measured, with what its workers had under way at their end."""
        self._read()
        self._add_open()
        for entry in self._folder.plans():
            data = self._data(entry)
            plan = data.plan
            if plan.drained_ns is None and not plan.interrupted:
                # The controller was killed in this level: it ends with the last that is known of it.
                last_ns = max((request.finished_ns for request in data.records), default=0)
                plan = replace(plan, interrupted=True, window_end_ns=min(plan.window_end_ns, last_ns))
                data = replace(data, plan=plan)
            if plan.window_end_ns > plan.window_start_ns:
                yield data
            self._forget_before(entry)

    def plans(self) -> list[JournalEntry]:
        """The journal's levels in order."""
        return self._folder.plans()

    def lost_bytes(self) -> dict[Path, int]:
        """{file: bytes} of the spools that are torn or damaged."""
        found = {path: spool.lost_bytes() for path, spool in self._spools.items()}
        return {path: count for path, count in found.items() if count}

    def _data(self, entry: JournalEntry) -> LevelData:
        offsets_ns, whole = entry.clock_offsets_ns, self._soaks.cut(entry.plan)
        plan = self._soaks.judged_part(whole)
        missing = sum(self._missing(worker, plan.level, said) for worker, said in entry.records.items())
        plan = replace(plan, missing_records=missing)
        records = []
        for request in self._records.values():
            offset_ns = offsets_ns.get(request.worker, 0)
            begun_before_its_end = request.dispatched_ns - offset_ns < plan.window_end_ns
            ended_after_its_start = request.finished_ns - offset_ns > plan.window_start_ns
            # Of a long soak only its last part is kept, however it was read.
            is_its_own = request.level == plan.level and plan.window_start_ns == whole.window_start_ns
            if is_its_own or (begun_before_its_end and ended_after_its_start):
                records.append(in_controllers_clock(request, offset_ns))
        server = self._server.between(
            plan.window_start_ns, max(plan.drained_ns or 0, plan.window_end_ns) + _LAST_SCRAPE_NS
        )
        soak, rest = self._soaks.finished(whole)
        return LevelData(
            plan, records, self._health.get(plan.level, []), self._audit.trail(plan, records), server, soak, rest
        )

    def _missing(self, worker: int, level: int, said: int) -> int:
        """Records that a worker said it had written since the level before and that were not read."""
        said_before, read_before = self._done.get(worker, (0, 0))
        read = self._read_at.get((worker, level), read_before)
        self._done[worker] = (said, read)
        return max(0, (said - said_before) - (read - read_before))

    def _forget_before(self, entry: JournalEntry) -> None:
        """Drops what no later level can need, so that a long sweep keeps little more than one level."""
        offsets_ns, plan = entry.clock_offsets_ns, entry.plan
        self._health.pop(plan.level, None)
        self._audit.forget_before(plan)
        for key, request in list(self._records.items()):
            ended_ns = request.finished_ns - offsets_ns.get(request.worker, 0)
            if request.level <= plan.level and ended_ns <= plan.window_end_ns:
                del self._records[key]

    def _read(self) -> None:
        self._soaks.see(self._folder.plans())
        for path, block in self._blocks():
            if isinstance(block, WorkerHealth):
                self._health.setdefault(block.level, []).append(block)
                self._read_at[block.worker, block.level] = self._count[path]
            else:
                self._count[path] += len(block)
                self._records.update(((request.level, request.index), request) for request in block)
                if self._soaks.any:
                    self._soaks.add(block)
                    self._thin()
        if self._soaks.any:
            self._soaks.add_samples(self._server.fresh())
            self._server.forget_before(self._soaks.samples_since_ns())

    def _blocks(self) -> Iterable[tuple[Path, list[RequestRecord] | WorkerHealth]]:
        """The new blocks of every spool, one spool after another; of a soak in order of time, since it forgets as it goes."""
        spools = []
        for path in sorted(self._folder.records.glob("worker-*.spool")):
            spools.append(self._timed(path, self._spools.setdefault(path, SpoolReader(path))))
        each = heapq.merge(*spools, key=lambda one: one[0]) if self._soaks.any else chain.from_iterable(spools)
        for _, path, block in each:
            yield path, block

    def _timed(self, path: Path, spool: SpoolReader) -> Iterator[tuple[int, Path, list[RequestRecord] | WorkerHealth]]:
        last_ns = 0
        for block in spool.blocks():
            if self._soaks.any and not isinstance(block, WorkerHealth) and block:
                last = block[-1]
                last_ns = max(last_ns, last.finished_ns - self._soaks.offset_ns(last.worker))
            yield last_ns, path, block

    def _thin(self) -> None:
        """Of a soak: drops records that are folded into windows and that the level's own figures do not need, now and then."""
        if len(self._records) < self._thin_at:
            return
        self._records = {
            key: request
            for key, request in self._records.items()
            if self._soaks.needs(request.finished_ns - self._soaks.offset_ns(request.worker))
        }
        self._thin_at = max(_THIN_AT, 2 * len(self._records))

    def _add_open(self) -> None:
        """A request that was begun and is in no spool: its worker was killed before it could say how it ended."""
        for path in sorted(self._folder.records.glob("worker-*.open")):
            worker = int(path.stem.removeprefix("worker-"))
            for level, kind, index, dispatched_ns in read_open(path):
                cut_off = RequestRecord(
                    level=level,
                    index=index,
                    user=-1,
                    worker=worker,
                    status=CENSORED,
                    reason="its worker ended before it did",
                    dispatched_ns=dispatched_ns,
                    finished_ns=dispatched_ns,
                    kind=kind,
                )
                self._records.setdefault((level, index), cut_off)


class RunReader:
    """Reads a run: its levels in the order of running, one that was run again when the run was resumed as it was then."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._parts = [PartReader(part) for part in folder.parts()]

    def drained(self) -> Iterator[LevelData]:
        """While the run goes on: every level that has drained since it was begun or resumed, and was not given before."""
        return self._parts[-1].drained()

    def all(self) -> Iterator[LevelData]:
        """After the run: every level of which anything was measured, with what its workers had under way at their end."""
        for number, part in enumerate(self._parts):
            again = {entry.plan.level for later in self._parts[number + 1 :] for entry in later.plans()}
            for data in part.all():
                if data.plan.level not in again:
                    yield data

    def soak_windows(self, now_ns: int) -> list[tuple[int, list[dict[str, Any]]]]:
        """While the run goes on: (level, rows) of a soak's windows that are complete by now and were not given before."""
        return self._parts[-1].soak_windows(now_ns)

    def lost_bytes(self) -> dict[str, int]:
        """{path of the file in the run folder: bytes} of the spools that are torn or damaged; what stood there is lost."""
        root = self._folder.path
        return {str(path.relative_to(root)): lost for part in self._parts for path, lost in part.lost_bytes().items()}


def in_controllers_clock(request: RequestRecord, offset_ns: int) -> RequestRecord:
    """The record with every instant moved by the worker's clock offset (worker minus controller)."""
    if offset_ns == 0:
        return request
    moved = {name: value - offset_ns for name in _INSTANTS if (value := getattr(request, name)) is not None}
    return replace(request, arrivals_ns=request.arrivals_ns - offset_ns, **moved)
