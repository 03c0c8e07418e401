"""Reads a rate over time from a CSV file: a line is a time in seconds and a rate in requests a second."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from loadgen.arrivals.rate import Rate
from loadgen.errors import UsageError


def read_rate(path: Path) -> Rate:
    """The rate of a file; a first line of words is a heading. Times begin anywhere and count from the first one.

    Raises UsageError naming file, line and reason.
    """
    points: list[tuple[float, float]] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.reader(file), 1):
                if not row or (number == 1 and not _is_number(row[0])):
                    continue
                points.append(_point(path, number, row, points[-1][0] if points else None))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", hint="load.rate_file names a CSV file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text.", hint="load.rate_file names a CSV file") from None
    if not points or not any(rate for _, rate in points):
        raise UsageError(f"{path} asks for no request.", hint="a line is a time in s and a rate, such as 60,2.5")
    first_s = points[0][0]
    return Rate(tuple(time_s - first_s for time_s, _ in points), tuple(rate for _, rate in points))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _point(path: Path, number: int, row: list[str], latest_s: float | None) -> tuple[float, float]:
    hint = "a line is a time in s and a rate, such as 60,2.5"
    if len(row) < 2 or not _is_number(row[0]) or not _is_number(row[1]):
        raise UsageError(f"{path}:{number}: {','.join(row)!r} is not a time and a rate.", hint=hint)
    time_s, rate = float(row[0]), float(row[1])
    if rate < 0:
        raise UsageError(f"{path}:{number}: the rate {rate:g} is negative.", hint=hint)
    if latest_s is not None and time_s < latest_s:
        raise UsageError(
            f"{path}:{number}: the time {time_s:g} s lies before {latest_s:g} s, the line ahead.", hint=hint
        )
    return time_s, rate
