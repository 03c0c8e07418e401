"""Reads a whole dataset once: checks every row, notes where each lies, and says what the file holds; keeps no row.

Memory is bounded whatever the file's size: the index, 20 bytes a row, goes into a file of its own as it grows.
"""

from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from loadgen.datasets.errors import Place
from loadgen.datasets.formats import opened, reader_of
from loadgen.datasets.rows import LeftOut, Row
from loadgen.errors import LoadgenError

INDEX = np.dtype([("offset", "<u8"), ("bytes", "<u4"), ("timestamp_s", "<f8")])
"""Where a row lies in the (unpacked) file, and when it was sent: seconds after the first row, NaN where nobody says."""
INDEX_FILE, UNPACKED_FILE, DIGEST_FILE = "rows.index", "unpacked", "digest"
_ROWS_AT_ONCE = 4096
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """Which rows of which file are meant."""

    path: str
    format: str = "auto"
    max_tokens: int | None = None
    """Rows whose two lengths together are more are left out."""
    block_tokens: int = 512
    """Of a Mooncake trace."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What a dataset holds."""

    format: str
    rows: int
    """Rows that can be sent."""
    left_out: Mapping[str, int]
    """Rows that cannot, by reason."""
    size_bytes: int
    digest: str
    """BLAKE2b of the file as it lies on the disk, 32 hexadecimal digits."""
    timed: bool
    """Whether every row says when it was sent."""
    span_s: float | None
    """From the first row's instant to the last one's; None where rows have none."""
    longest: tuple[int, int, int] | None
    """Line, prompt and answer tokens of the row with the most of both; None where no row gives a prompt's length. An
    answer whose length the row leaves open counts as none."""
    short_inputs: Mapping[int, int] = field(default_factory=dict)
    """How many rows give a prompt of so many tokens, for lengths below `SHORT_TOKENS`."""
    most_output_tokens: int = 0
    """Of the row that asks for the longest answer; rows that leave it open count as none."""

    def to_dict(self) -> dict[str, Any]:
        """For the run's provenance."""
        told = asdict(self)
        del told["short_inputs"], told["most_output_tokens"]
        return told


SHORT_TOKENS = 512
"""No chat template alone is as long."""


def survey(
    source: Source,
    folder: Path,
    *,
    check: Callable[[Row, Place], object] = lambda row, place: None,
    pause: Callable[[float], object] = lambda share: None,
) -> Survey:
    """Reads the file of `source` and writes its index into `folder`, with the unpacked content where it is gzip.

    `check` sees every row that is not left out and raises DatasetError where it is of no use. `pause` is called every few
    thousand rows with the share of the file that has been read. Raises DatasetError, naming file and line.
    """
    path = Path(source.path)
    reader = reader_of(path, source.format, block_tokens=source.block_tokens)
    size_bytes = path.stat().st_size
    notes = _Notes(source)
    with _unpacked(path, folder, pause) as content, (folder / INDEX_FILE).open("wb", buffering=0) as index:
        whole = max(1, content.seek(0, 2))
        content.seek(0)
        batch: list[tuple[int, int, float]] = []
        for unit in reader.units(content, source.path):
            place = Place(source.path, unit.line)
            row = notes.note(reader.parse(unit.data, place), place)
            if row is None:
                continue
            check(row, place)
            batch.append((unit.offset, len(unit.data), notes.after_the_first_s(row)))
            if len(batch) == _ROWS_AT_ONCE:
                _append(index, batch)
                pause(unit.offset / whole)
        _append(index, batch)
    found = notes.result(reader.format, size_bytes, digest_of(path, pause))
    (folder / DIGEST_FILE).write_text(f"{found.digest} {size_bytes}", encoding="ascii")
    return found


def _append(index: FileIO, batch: list[tuple[int, int, float]]) -> None:
    """Adds the entries of the batch to the index and empties it."""
    try:
        rest = np.array(batch, INDEX).tobytes()
        while rest:  # the last bytes of a disk take a part of it
            rest = rest[index.write(rest) :]
    except OSError as error:
        raise LoadgenError(
            f"The index of the dataset cannot be written: {error.strerror or error}.",
            hint="make room where the run folder lies; the index has 20 bytes a row",
        ) from None
    batch.clear()


def digest_of(path: Path, pause: Callable[[float], object] = lambda share: None) -> str:
    """BLAKE2b of a file, 32 hexadecimal digits. Raises OSError."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            pause(1.0)
    return digest.hexdigest()


@contextmanager
def _unpacked(path: Path, folder: Path, pause: Callable[[float], object]) -> Iterator[BinaryIO]:
    """The file in which rows are found by their offsets: itself, or, where it is gzip, a copy in `folder`."""
    with opened(path) as content:
        if not isinstance(content, gzip.GzipFile):
            yield content
            return
        with (folder / UNPACKED_FILE).open("w+b") as copy:
            while chunk := content.read(_CHUNK):
                copy.write(chunk)
                pause(0.0)
            yield copy


class _Notes:
    """What is known of the rows so far."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._rows = 0
        self._left_out: Counter[str] = Counter()
        self._short_inputs: Counter[int] = Counter()
        self._longest: tuple[int, int, int] | None = None
        self._most_output_tokens = 0
        self._timed = 0
        self._first_s = 0.0
        self._last: tuple[float, int] | None = None
        """Instant and line of the latest row that had one."""

    def note(self, row: Row | LeftOut, place: Place) -> Row | None:
        """The row, if it is to be sent. Raises DatasetError when it was sent before the one above it."""
        if isinstance(row, LeftOut):
            self._left_out[row.reason] += 1
            return None
        lengths = (row.input_tokens or 0) + (row.output_tokens or 0)
        most = self._source.max_tokens
        if most is not None and row.input_tokens is not None and lengths > most:
            self._left_out["more tokens than workload.dataset.max_tokens"] += 1
            return None
        if row.timestamp_s is not None:
            self._note_instant(row.timestamp_s, place)
        self._rows += 1
        self._most_output_tokens = max(self._most_output_tokens, row.most_output_tokens or 0)
        if row.input_tokens is not None:
            if self._longest is None or lengths > sum(self._longest[1:]):
                self._longest = (row.line, row.input_tokens, row.output_tokens or 0)
            if row.input_tokens < SHORT_TOKENS:
                self._short_inputs[row.input_tokens] += 1
        return row

    def _note_instant(self, timestamp_s: float, place: Place) -> None:
        if self._last is None:
            self._first_s = timestamp_s
        elif timestamp_s < self._last[0]:
            raise place.refusal(
                f"The trace is out of order: this row was sent {self._last[0] - timestamp_s:.6g} s before the one in line "
                f"{self._last[1]}.",
                "Sort the file by its instants.",
            )
        self._last = timestamp_s, place.line or 0
        self._timed += 1

    def after_the_first_s(self, row: Row) -> float:
        return float("nan") if row.timestamp_s is None else row.timestamp_s - self._first_s

    def result(self, format: str, size_bytes: int, digest: str) -> Survey:
        """Raises DatasetError when there is no row."""
        if not self._rows:
            left_out = ", ".join(f"{count} with {reason}" for reason, count in self._left_out.items())
            raise Place(self._source.path).refusal(
                f"No row of it can be sent: {left_out or 'it has none'}.", "Give a file with at least one request."
            )
        return Survey(
            format=format,
            rows=self._rows,
            left_out=dict(self._left_out),
            size_bytes=size_bytes,
            digest=digest,
            timed=self._timed == self._rows,
            span_s=None if self._last is None else self._last[0] - self._first_s,
            longest=self._longest,
            short_inputs=dict(self._short_inputs),
            most_output_tokens=self._most_output_tokens,
        )
