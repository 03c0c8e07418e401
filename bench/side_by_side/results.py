"""The results file: sessions (host, date) and one entry a run; both are appended and never taken out."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
Entry = dict[str, Any]


@dataclass(slots=True)
class Results:
    """The content of one file."""

    path: Path
    sessions: list[Entry]
    runs: list[Entry]

    @classmethod
    def read(cls, path: Path) -> Results:
        """An empty one where there is no file. Raises ValueError when it is of another form."""
        if not path.exists():
            return cls(path, [], [])
        content = json.loads(path.read_text())
        if content.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"{path}: schema_version is {content.get('schema_version')!r}, not {SCHEMA_VERSION}")
        return cls(path, content["sessions"], content["runs"])

    def write(self) -> None:
        """The whole file, under another name first, so that it is never half there."""
        content = {"schema_version": SCHEMA_VERSION, "sessions": self.sessions, "runs": self.runs}
        # One line a session and a run: a new run is one new line for whoever compares two versions of the file.
        parts = [
            f'"{name}": [\n' + ",\n".join(json.dumps(entry) for entry in content[name]) + "\n]"  # type: ignore[attr-defined]
            for name in ("sessions", "runs")
        ]
        unfinished = self.path.with_suffix(".unfinished")
        unfinished.write_text(f'{{\n"schema_version": {SCHEMA_VERSION},\n' + ",\n".join(parts) + "\n}\n")
        unfinished.replace(self.path)

    def begin_session(self, *, new: bool) -> int:
        """The number of the session that goes on: the last one if it was on this host, unless a new one is asked for."""
        if new or not self.sessions or self.sessions[-1]["host"] != host():
            self.sessions.append({"date": datetime.now(UTC).date().isoformat(), "host": host()})
        return len(self.sessions) - 1

    def count(self, tool: str, rung: str, session: int) -> int:
        """How many runs of a session there are, failed ones among them."""
        return sum(1 for run in self.runs if (run["tool"], run["rung"], run["session"]) == (tool, rung, session))

    def newest(self, tool: str, rung: str) -> list[Entry]:
        """The runs of a tool on a rung in the last session that has any of that rung: only those can be compared."""
        of_rung = [run for run in self.runs if run["rung"] == rung]
        last = max((run["session"] for run in of_rung), default=None)
        return [run for run in of_rung if run["tool"] == tool and run["session"] == last]


def host() -> Entry:
    """What of the machine matters here; no names."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "cpu": model or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory_kb / 1e6),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def rounded(value: Any, digits: int = 4) -> Any:
    """The same with shorter numbers, lists and objects inside too."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {key: rounded(inner, digits) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner, digits) for inner in value]
    return value
