"""A dataset that has been surveyed: any row by its number, read where it lies; nothing of the file stays in memory."""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadgen.datasets.errors import DatasetError, Place
from loadgen.datasets.formats import reader_of
from loadgen.datasets.rows import Row
from loadgen.datasets.survey import INDEX, INDEX_FILE, UNPACKED_FILE, Source

_CHUNK = 1 << 20


class Dataset:
    """Rows 0, 1, … of a file, those that were left out not counted. May be read by several threads at once."""

    def __init__(self, source: Source, folder: Path) -> None:
        """`folder`: where `survey` put the index. Raises DatasetError when the file is not there, OSError when the index is not."""
        self._path = source.path
        self._parse = reader_of(Path(source.path), source.format, block_tokens=source.block_tokens).parse
        self._index: np.memmap[tuple[int], np.dtype[np.void]] = np.memmap(folder / INDEX_FILE, INDEX, "r")
        unpacked = folder / UNPACKED_FILE
        self._file = os.open(unpacked if unpacked.exists() else source.path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return len(self._index)

    def row(self, number: int) -> Row:
        """Raises DatasetError when the file is no longer what was surveyed; `line` of the row is not known here and 0."""
        offset, size, _ = self._index[number].tolist()
        # At its place, whatever others read meanwhile.
        data = os.pread(self._file, size, offset)
        with contextlib.suppress(DatasetError):
            if isinstance(row := self._parse(data, Place(self._path)), Row):
                return row
        raise Place(self._path).refusal("The file has changed since it was read.", "Leave it alone during a run.")

    def row_bytes(self) -> NDArray[np.uint32]:
        """How many bytes each row takes in the file: a view of the index."""
        return self._index["bytes"]

    def line(self, number: int) -> int:
        """The line of the (unpacked) file in which a row begins, from 1."""
        left, at, ends = int(self._index[number]["offset"]), 0, 0
        while left and (data := os.pread(self._file, min(left, _CHUNK), at)):
            ends += data.count(b"\n")
            at, left = at + len(data), left - len(data)
        return 1 + ends

    def timestamps_s(self) -> NDArray[np.float64]:
        """When each row was sent, in seconds after the first: a view of the index. NaN where a row does not say."""
        return self._index["timestamp_s"]
