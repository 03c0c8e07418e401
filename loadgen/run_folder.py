"""The folder of one run: where what is kept, and reading it back as plans and records in one clock."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from loadgen.errors import UsageError
from loadgen.record import LevelPlan, RequestRecord, WorkerHealth
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
class LevelData:
    """All that is known of one level; instants are of the controller's clock."""

    plan: LevelPlan
    records: list[RequestRecord]
    health: list[WorkerHealth]


class RunFolder:
    """Paths and contents of `runs/<name>/<time>/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = path / "records"
        self.levels = path / "levels"

    @classmethod
    def create(cls, path: Path, *, scenario_yaml: str, nonce: str) -> RunFolder:
        """Makes the folder. Raises UsageError when it holds something already or cannot be made."""
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
            raise UsageError(
                f"The output folder {path} cannot be written: {error.strerror}.", hint="name another with -o"
            ) from None
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run. Raises UsageError when `path` is not one."""
        folder = cls(path)
        if not folder.journal.is_file():
            raise UsageError(
                f"{path} is not a run folder: it has no {folder.journal.relative_to(path)}.",
                hint="give the path that `loadgen run` printed as its last line",
            )
        return folder

    @property
    def journal(self) -> Path:
        return self.records / "journal.jsonl"

    def spool(self, worker: int) -> Path:
        """The file of one worker's records."""
        return self.records / f"worker-{worker}.spool"

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

    def note_level(self, plan: LevelPlan, clock_offsets_ns: dict[int, int]) -> None:
        """Appends a level to the journal; a later line for the same level replaces an earlier one."""
        line = {
            "event": "level",
            "plan": dataclasses.asdict(plan),
            "clock_offsets_ns": {str(worker): offset for worker, offset in clock_offsets_ns.items()},
        }
        with self.journal.open("ab") as file:
            file.write(orjson.dumps(line) + b"\n")

    def entries(self) -> dict[int, dict[str, Any]]:
        """The journal: {level: {"plan", "clock_offsets_ns"}}."""
        entries = {}
        for line in self.journal.read_bytes().splitlines():
            with contextlib.suppress(orjson.JSONDecodeError):  # the last line may be torn
                entry = orjson.loads(line)
                entries[entry["plan"]["level"]] = entry
        return entries


class RunReader:
    """Reads a run's spools, at once or as they grow; every block is read once."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._spools: dict[Path, SpoolReader] = {}
        self._records: dict[int, list[RequestRecord]] = {}
        self._health: dict[int, list[WorkerHealth]] = {}
        self._given: set[int] = set()

    def levels(self) -> Iterator[LevelData]:
        """Every level of the journal that has not been given yet, in order, with its records so far."""
        self._read()
        for level, entry in sorted(self._folder.entries().items()):
            if level in self._given:
                continue
            self._given.add(level)
            offsets_ns = {int(worker): offset for worker, offset in entry["clock_offsets_ns"].items()}
            records = [
                in_controllers_clock(request, offsets_ns.get(request.worker, 0))
                for request in self._records.pop(level, [])
            ]
            yield LevelData(LevelPlan(**entry["plan"]), records, self._health.pop(level, []))

    def _read(self) -> None:
        for path in sorted(self._folder.records.glob("worker-*.spool")):
            for block in self._spools.setdefault(path, SpoolReader(path)).blocks():
                if isinstance(block, WorkerHealth):
                    self._health.setdefault(block.level, []).append(block)
                else:
                    for request in block:
                        self._records.setdefault(request.level, []).append(request)


def in_controllers_clock(request: RequestRecord, offset_ns: int) -> RequestRecord:
    """The record with every instant moved by the worker's clock offset (worker minus controller)."""
    if offset_ns == 0:
        return request
    moved = {name: value - offset_ns for name in _INSTANTS if (value := getattr(request, name)) is not None}
    return dataclasses.replace(request, arrivals_ns=request.arrivals_ns - offset_ns, **moved)
