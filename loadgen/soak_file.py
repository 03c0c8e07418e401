"""The windows of a soak in the run folder: one line of JSON a window, written as the soak goes on; a torn end is tolerated.

At the run's end, and by `loadgen report`, the file is made anew from the records, which are the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

FILE_NAME = "soak-windows.jsonl"


def append_windows(run: Path, level: int, rows: Iterable[Mapping[str, Any]]) -> None:
    """Adds the rows of a level, a line each, by one write. Raises OSError when the disk is full."""
    with (run / FILE_NAME).open("ab") as file:
        file.write(b"".join(_line(level, row) for row in rows))


def write_windows(run: Path, levels: Sequence[Mapping[str, Any]]) -> None:
    """Replaces the file by the windows of these levels, whole or not at all; without a soak there is none. Raises OSError."""
    soaks = [level for level in levels if level.get("soak") is not None]
    if not soaks:
        return
    new = run / f".{FILE_NAME}"
    with new.open("wb") as file:
        for level in soaks:
            file.writelines(_line(level["level"], row) for row in level["soak"]["windows"])
    new.replace(run / FILE_NAME)


def read_windows(run: Path) -> list[dict[str, Any]]:
    """Every whole line; none where there is no file. A torn or damaged line is passed over."""
    try:
        lines = (run / FILE_NAME).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            continue
    return found


def _line(level: int, row: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"level": level, **row}, option=orjson.OPT_APPEND_NEWLINE)
