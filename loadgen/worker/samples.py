"""Samples of a stream that may go on for days, in bounded memory: takes integers, gives a fair part of them and the maximum.

Up to `MOST` every sample is kept. Then every second one is let go, and of what comes only every second is kept; then every
fourth, and so on: the same share of every stretch of time, so a percentile of what is kept is one over all of it.
"""

from __future__ import annotations

from array import array

MOST = 65_536
"""At least half as many are kept of a longer stream: of its P99 some 330 samples lie beyond."""


class Samples:
    """Written by one thread; others may read at any time."""

    def __init__(self) -> None:
        self.kept: array[int] = array("q")
        self.max: int | None = None
        """Of all samples, kept or not; None without one."""
        self._stride = 1
        self._until_next = 1

    def append(self, value: int) -> None:
        if self.max is None or value > self.max:
            self.max = value
        self._until_next -= 1
        if self._until_next:
            return
        if len(self.kept) == MOST:
            self.kept = self.kept[::2]
            self._stride *= 2
        self._until_next = self._stride
        self.kept.append(value)
