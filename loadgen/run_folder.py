"""The folder of one run: where what is kept; `loadgen.run_reader` reads it back."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import orjson

from loadgen.errors import UsageError
from loadgen.record import LevelPlan
from loadgen.server_metrics.file import FILE_NAME

NONCE_FILE = ".nonce"
RESUMED = "resumed"
"""Holds what was measured each time that the run was resumed, each with a `records` of its own."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What the controller noted of a level."""

    plan: LevelPlan
    clock_offsets_ns: dict[int, int]
    """Of each worker: its clock minus the controller's."""
    records: dict[int, int]
    """How many each worker had written when it was done with the level, since the run began."""


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
                    f"The output folder {path} is not empty.",
                    hint="name another, or go on with the run in it by `loadgen run --resume`",
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
                f"The output folder {path} cannot be written: {error.strerror}.", hint="name another folder"
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

    def parts(self) -> list[RunFolder]:
        """This folder, and one for each time that the run was resumed: whose `records` were written by one controller, on one
        clock."""
        resumed = sorted((self.path / RESUMED).glob("*"), key=lambda path: int(path.name))
        return [self, *map(RunFolder, resumed)]

    def begin_part(self, nonce: str) -> RunFolder:
        """Makes the part of a run that is resumed. Raises UsageError when it cannot be made."""
        part = RunFolder(self.path / RESUMED / str(len(self.parts())))
        try:
            part.records.mkdir(parents=True)
            (part.records / NONCE_FILE).write_text(nonce)
        except OSError as error:
            raise UsageError(f"The run folder {self.path} cannot be written: {error.strerror}.") from None
        return part

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

    @property
    def server_metrics(self) -> Path:
        return self.records / FILE_NAME

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

    def note_failure(self, server: Mapping[str, Any], level: int, kind: str, text: str) -> None:
        """Appends to the journal that the server failed, under the settings that its levels are named by."""
        line = {"event": "failure", "server": dict(server), "level": level, "kind": kind, "text": text}
        with self.journal.open("ab") as file:
            file.write(orjson.dumps(line) + b"\n")

    def failures(self) -> list[dict[str, Any]]:
        """Every failure of the server that was noted by the newest part: what failed before a run was resumed is tried again."""
        return [line for line in self.parts()[-1]._lines() if line.get("event") == "failure"]

    def _lines(self) -> Iterator[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError):  # no level had begun
            for line in self.journal.read_bytes().splitlines():
                with contextlib.suppress(orjson.JSONDecodeError):  # the last line may be torn
                    yield orjson.loads(line)

    def adopt(self, spool: Path) -> None:
        """Takes a remote worker's own spool, with its table of open requests, in place of what was shipped of it.

        Raises UsageError when the file is no worker's spool, or says less than what is here.
        """
        if not re.fullmatch(r"worker-\d+\.spool", spool.name) or not spool.is_file():
            raise UsageError(
                f"{spool} is not a worker's spool.", hint="give the file worker-N.spool that the worker printed"
            )
        whole = spool.read_bytes()
        found = {path: path.read_bytes() for part in self.parts() if (path := part.records / spool.name).exists()}
        # Of a run that was resumed, the part that has most of it.
        here = max(
            found, key=lambda path: (whole.startswith(found[path]), len(found[path])), default=self.records / spool.name
        )
        if not whole.startswith(found.get(here, b"")):
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
        entries = {line["plan"]["level"]: line for line in self._lines() if line.get("event", "level") == "level"}
        return [
            JournalEntry(
                LevelPlan(**entry["plan"]),
                {int(worker): offset for worker, offset in entry["clock_offsets_ns"].items()},
                {int(worker): count for worker, count in entry["records"].items()},
            )
            for _, entry in sorted(entries.items())
        ]
