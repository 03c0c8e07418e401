"""A monotonic and a wall clock that move only when told to."""

from __future__ import annotations


class Clocks:
    """Both in nanoseconds; set either to step it."""

    def __init__(self) -> None:
        self.monotonic = 5_000_000_000
        self.wall = 1_700_000_000_000_000_000

    def advance(self, ns: int) -> None:
        self.monotonic += ns
        self.wall += ns
