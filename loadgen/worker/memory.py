"""The memory of a worker whose garbage collector is off: how much it is, and when it has to be collected after all.

A long level may leave cycles behind that only a collection frees. A pause in a window is bad and is reported; a worker that
is killed for its memory is worse.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable
from pathlib import Path

import gevent

_LOOK_S = 1.0
LEAST_GROWTH_BYTES = 256 << 20
"""More than a worker of 512 streams needs altogether (90 to 150 MB): growth that its load does not explain."""


def resident_bytes() -> int | None:
    """Resident memory of this process; None where the system does not tell (it does on Linux)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def collection_due(resident: int, lowest: int) -> bool:
    """Whether memory of `resident` bytes asks for a collection, when `lowest` was the least since the last one.

    Long answers under way may need as much, and a collection frees nothing of them. So the growth that is borne rises with
    what there is: n collections in vain need memory of 1.5 to the power of n.
    """
    return resident - lowest > max(LEAST_GROWTH_BYTES, lowest // 2)


class MemoryGuard:
    """Collects when memory has grown too far. In the hub; the interpreter lock makes it a pause of the loop all the same."""

    def __init__(
        self,
        resident: Callable[[], int | None] = resident_bytes,
        collect: Callable[[], object] = gc.collect,
    ) -> None:
        self._resident = resident
        self._collect = collect
        self._lowest: int | None = None

    def begin_level(self) -> None:
        """A level begins, with a collection of its own: growth counts from here."""
        self._lowest = self._resident()

    def look_forever(self) -> None:
        """Looks once a second, until the greenlet is killed."""
        while True:
            gevent.sleep(_LOOK_S)
            self.look()

    def look(self) -> None:
        """Collects if it has to be; where memory is not known it never does."""
        resident = self._resident()
        if resident is None:
            return
        self._lowest = resident if self._lowest is None else min(self._lowest, resident)
        if collection_due(resident, self._lowest):
            self._collect()
            # Also when it freed little: the same memory must not be collected in vain again.
            self._lowest = self._resident()
