"""The folder of one run: where what is kept, and reading it back as plans and records in one clock."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import orjson

from loadgen.audit_reader import AuditReader
from loadgen.audit_trail import AuditTrail
from loadgen.errors import UsageError
from loadgen.open_table import read_open
from loadgen.record import CENSORED, LevelPlan, RequestRecord, WorkerHealth
from loadgen.spool import SpoolReader

NONCE_FILE = ".nonce"
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
class JournalEntry:
    """What the controller noted of a level."""

    plan: LevelPlan
    clock_offsets_ns: dict[int, int]
    """Of each worker: its clock minus the controller's."""
    records: dict[int, int]
    """How many each worker had written when it was done with the level, since the run began."""


@dataclass(frozen=True, slots=True)
class LevelData:
    """All that is known of one level; instants are of the controller's clock."""

    plan: LevelPlan
    records: list[RequestRecord]
    health: list[WorkerHealth]
    audit: AuditTrail | None = None
    """Of an audited run: the packets."""


class RunFolder:
    """Paths and contents of `runs/<name>/<time>/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = path / "records"
        self.levels = path / "levels"

    @classmethod
    def create(cls, path: Path, *, scenario_yaml: str, nonce: str) -> RunFolder:
        """Makes the folder. Raises UsageError when it holds something already or cannot be made."""
        existed = path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise UsageError(
                    f"The output folder {path} is not empty.", hint="name another with -o, or remove what is in it"
                )
            folder = cls(path)
            folder.records.mkdir()
            folder.levels.mkdir()
            (path / "scenario.yaml").write_text(scenario_yaml)
            (folder.records / NONCE_FILE).write_text(nonce)
        except OSError as error:
            if path.is_dir() and os.access(path, os.W_OK):
                cls(path).discard(keep=existed)
            raise UsageError(
                f"The output folder {path} cannot be written: {error.strerror}.", hint="name another with -o"
            ) from None
        return folder

    def discard(self, *, keep: bool) -> None:
        """Removes what a run that never began has left, and the folder itself unless it was there before."""
        for entry in self.path.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        if not keep:
            self.path.rmdir()

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run. Raises UsageError when `path` is not one."""
        folder = cls(path)
        if not (folder.records / NONCE_FILE).is_file():
            raise UsageError(
                f"{path} is not a run folder: it has no {(folder.records / NONCE_FILE).relative_to(path)}.",
                hint="give the path that `loadgen run` printed as its last line",
            )
        folder._check_ended()
        return folder

    @property
    def journal(self) -> Path:
        return self.records / "journal.jsonl"

    def lock(self) -> TextIO:
        """Says that the run goes on, for as long as the given file is open; the kernel forgets it with the process."""
        held = (self.records / NONCE_FILE).open()
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return held

    def _check_ended(self) -> None:
        with (self.records / NONCE_FILE).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"The run in {self.path} is still going on.", hint="wait until it has ended, or end it with Ctrl-C"
                ) from None

    def spool(self, worker: int) -> Path:
        """The file of one worker's records."""
        return self.records / f"worker-{worker}.spool"

    def open_table(self, worker: int) -> Path:
        """The file of one worker's requests that are under way."""
        return self.records / f"worker-{worker}.open"

    @property
    def segments(self) -> Path:
        """The file of an audited run's packets."""
        return self.records / "segments.audit"

    def answers(self, worker: int) -> Path:
        """The file in which an audited worker says where its events lie in their connections."""
        return self.records / f"worker-{worker}.audit"

    def nonce(self) -> str | None:
        """What proves to a worker that it sees the controller's folder and not one of the same name."""
        with contextlib.suppress(OSError):
            return (self.records / NONCE_FILE).read_text()
        return None

    def write_provenance(self, provenance: dict[str, Any]) -> None:
        (self.path / "provenance.json").write_bytes(orjson.dumps(provenance, option=orjson.OPT_INDENT_2))

    def provenance(self) -> dict[str, Any]:
        """What the run noted about itself; empty when it never came so far."""
        with contextlib.suppress(FileNotFoundError):
            return dict(orjson.loads((self.path / "provenance.json").read_bytes()))
        return {}

    def note_level(
        self, plan: LevelPlan, clock_offsets_ns: dict[int, int], records: dict[int, int] | None = None
    ) -> None:
        """Appends a level to the journal; a later line for the same level replaces an earlier one.

        `records`: how many records each worker had written when it was done with the level, since the run began.
        """
        line = {
            "event": "level",
            "plan": dataclasses.asdict(plan),
            "clock_offsets_ns": {str(worker): offset for worker, offset in clock_offsets_ns.items()},
            "records": {str(worker): count for worker, count in (records or {}).items()},
        }
        with self.journal.open("ab") as file:
            file.write(orjson.dumps(line) + b"\n")

    def adopt(self, spool: Path) -> None:
        """Takes a remote worker's own spool, with its table of open requests, in place of what was shipped of it.

        Raises UsageError when the file is no worker's spool, or says less than what is here.
        """
        if not re.fullmatch(r"worker-\d+\.spool", spool.name) or not spool.is_file():
            raise UsageError(
                f"{spool} is not a worker's spool.", hint="give the file worker-N.spool that the worker printed"
            )
        here = self.records / spool.name
        shipped = here.read_bytes() if here.exists() else b""
        if not spool.read_bytes().startswith(shipped):
            raise UsageError(
                f"{spool} is not the whole of {here}: it does not begin with it.",
                hint="give the spool of the same run and the same worker",
            )
        shutil.copyfile(spool, here)
        table = spool.with_suffix(".open")
        if table.is_file():
            shutil.copyfile(table, here.with_suffix(".open"))

    def plans(self) -> list[JournalEntry]:
        """Every level of the journal in order."""
        entries = {}
        with contextlib.suppress(FileNotFoundError):  # no level had begun
            for line in self.journal.read_bytes().splitlines():
                with contextlib.suppress(orjson.JSONDecodeError):  # the last line may be torn
                    entry = orjson.loads(line)
                    entries[entry["plan"]["level"]] = entry
        return [
            JournalEntry(
                LevelPlan(**entry["plan"]),
                {int(worker): offset for worker, offset in entry["clock_offsets_ns"].items()},
                {int(worker): count for worker, count in entry["records"].items()},
            )
            for _, entry in sorted(entries.items())
        ]


class RunReader:
    """Reads a run's spools, at once or as they grow; every block is read once.

    A level gets every request that was begun in it, and those of other levels that were under way in its window: their
    tokens arrived there, and they were part of its load.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._audit = AuditReader(folder.records)
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

    def lost_bytes(self) -> dict[str, int]:
        """{file name: bytes} of the spools that are torn or damaged; what stood there is lost."""
        found = {path.name: spool.lost_bytes() for path, spool in self._spools.items()}
        return {name: count for name, count in found.items() if count}

    def _data(self, entry: JournalEntry) -> LevelData:
        offsets_ns, plan = entry.clock_offsets_ns, entry.plan
        missing = sum(self._missing(worker, plan.level, said) for worker, said in entry.records.items())
        plan = replace(plan, missing_records=missing)
        records = []
        for request in self._records.values():
            offset_ns = offsets_ns.get(request.worker, 0)
            begun_before_its_end = request.dispatched_ns - offset_ns < plan.window_end_ns
            ended_after_its_start = request.finished_ns - offset_ns > plan.window_start_ns
            if request.level == plan.level or (begun_before_its_end and ended_after_its_start):
                records.append(in_controllers_clock(request, offset_ns))
        return LevelData(plan, records, self._health.get(plan.level, []), self._audit.trail(plan, records))

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
        for path in sorted(self._folder.records.glob("worker-*.spool")):
            for block in self._spools.setdefault(path, SpoolReader(path)).blocks():
                if isinstance(block, WorkerHealth):
                    self._health.setdefault(block.level, []).append(block)
                    self._read_at[block.worker, block.level] = self._count[path]
                else:
                    self._count[path] += len(block)
                    self._records.update(((request.level, request.index), request) for request in block)

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


def in_controllers_clock(request: RequestRecord, offset_ns: int) -> RequestRecord:
    """The record with every instant moved by the worker's clock offset (worker minus controller)."""
    if offset_ns == 0:
        return request
    moved = {name: value - offset_ns for name in _INSTANTS if (value := getattr(request, name)) is not None}
    return replace(request, arrivals_ns=request.arrivals_ns - offset_ns, **moved)
