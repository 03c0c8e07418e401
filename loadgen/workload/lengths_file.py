"""Reads pairs of lengths from a CSV or JSONL file, line by line; what is wrong is told with file and line."""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import orjson

from loadgen.errors import UsageError
from loadgen.workload.request_class import Observed

COLUMNS = ("input_tokens", "output_tokens")
MOST_PAIRS = 200_000
"""Distinct pairs; all of them travel to every worker."""

_HINT = (
    "a CSV file has the heading input_tokens,output_tokens (or none) and two whole numbers a line; a line of a JSONL file "
    'is {"input_tokens": 512, "output_tokens": 128}'
)


def read_lengths(path: Path) -> Observed:
    """The pairs of a file. Raises UsageError when there is no such file, no pair, or a line that is none."""
    counts: Counter[tuple[int, int]] = Counter()
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            for number, one in _pairs(path, lines):
                counts[_checked(path, number, one)] += 1
                if len(counts) > MOST_PAIRS:
                    raise UsageError(
                        f"{path} has more than {MOST_PAIRS:,} distinct pairs of lengths.",
                        hint="round the lengths, or take a sample of the lines",
                    )
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise UsageError(
            f"workload.lengths_file {path} cannot be read: {reason}.",
            hint="a relative path counts from the scenario's folder, or from the current one on the command line",
        ) from None
    if not counts:
        raise UsageError(f"{path} holds no pair of lengths.", hint=_HINT)
    pairs = sorted(counts)
    return Observed(tuple(pairs), tuple(counts[pair] for pair in pairs))


def _pairs(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, tuple[object, object]]]:
    """(number of the line, what stands where the two lengths should)."""
    numbered = ((number, line.strip()) for number, line in enumerate(lines, 1))
    filled = ((number, line) for number, line in numbered if line)
    first = next(filled, None)
    if first is None:
        return
    read = _of_json if first[1].startswith("{") else _of_csv
    yield from read(path, itertools.chain([first], filled))


def _of_json(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, tuple[object, object]]]:
    for number, line in lines:
        try:
            told = orjson.loads(line)
            yield number, (told[COLUMNS[0]], told[COLUMNS[1]])
        except orjson.JSONDecodeError as error:
            raise _wrong(path, number, f"it is not JSON ({error})") from None
        except (KeyError, TypeError):
            raise _wrong(path, number, f"it is not an object with {COLUMNS[0]} and {COLUMNS[1]}") from None


def _of_csv(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, tuple[object, object]]]:
    places: tuple[int, int] | None = None
    for number, line in lines:
        cells = [cell.strip() for cell in next(csv.reader([line]))]
        if places is None:
            places = (0, 1)
            if not cells[0].lstrip("+-").isdigit():  # a heading
                try:
                    places = (cells.index(COLUMNS[0]), cells.index(COLUMNS[1]))
                except ValueError:
                    raise _wrong(path, number, f"its heading has no {COLUMNS[0]} and {COLUMNS[1]}") from None
                continue
        if len(cells) <= max(places):
            raise _wrong(path, number, f"it has {len(cells)} column{'s' * (len(cells) != 1)}")
        yield number, (cells[places[0]], cells[places[1]])


def _checked(path: Path, number: int, pair: tuple[object, object]) -> tuple[int, int]:
    found = []
    for name, value in zip(COLUMNS, pair, strict=True):
        text = str(value)
        if isinstance(value, bool) or not text.isascii() or not text.isdigit() or int(text) < 1:
            raise _wrong(path, number, f"{name} is {text[:40]!r}, and must be a whole number of at least 1")
        found.append(int(text))
    return found[0], found[1]


def _wrong(path: Path, number: int, why: str) -> UsageError:
    return UsageError(f"{path}:{number} is no pair of lengths: {why}.", hint=_HINT)
