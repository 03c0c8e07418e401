"""The samples of a run in its folder: one line of JSON a sample, written as they come, read back as often as wanted."""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from loadgen.server_metrics.sample import ServerSample

FILE_NAME = "server-metrics.jsonl"


class SampleWriter:
    """Appends to the file, which it makes where need be."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, sample: ServerSample) -> None:
        """One line, by one write. Raises OSError when the disk is full."""
        os.write(self._fd, orjson.dumps(sample.to_dict(), option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        os.close(self._fd)


class SampleReader:
    """Reads the file as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._samples: list[ServerSample] = []
        self._seen = 0
        """How many of them were fresh once."""

    def between(self, start_ns: int, end_ns: int) -> list[ServerSample]:
        """The samples asked for in [start, end], in their order."""
        self._read()
        return [sample for sample in self._samples if start_ns <= sample.asked_ns <= end_ns]

    def fresh(self) -> list[ServerSample]:
        """The samples that came since the last call, in their order."""
        self._read()
        fresh, self._seen = self._samples[self._seen :], len(self._samples)
        return fresh

    def forget_before(self, instant_ns: int) -> None:
        """Drops samples that were asked for before this instant and were fresh once."""
        kept = [one for k, one in enumerate(self._samples) if k >= self._seen or one.asked_ns >= instant_ns]
        self._seen -= len(self._samples) - len(kept)
        self._samples = kept

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")  # the last line may be torn, or still being written
        except FileNotFoundError:  # nothing was sampled
            return
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            try:
                self._samples.append(ServerSample.from_dict(orjson.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # a line that was torn by a killed controller, with another one's after it
