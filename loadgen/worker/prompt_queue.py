"""Requests built ahead of need: the hub fills the queue, the event loop takes from it and is kept free of the building."""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

_SLICE_NS = 2_000_000


class Numbered(Protocol):
    """What is sent: a request, or a conversation with the number of its first one."""

    @property
    def k(self) -> int: ...


Built = TypeVar("Built", bound=Numbered)


class PromptQueue(Generic[Built]):
    """Requests, or conversations, w, w + W, w + 2 W, … of one level for worker w of W."""

    def __init__(
        self, build: Callable[[int, int], Built], *, level: int, worker: int, workers: int, depth: int
    ) -> None:
        """`build` gives number n of a level, as `loadgen.workload.planned.Workload.build`."""
        self._build_one = build
        self._level = level
        self._numbers = itertools.count(worker, workers)
        self._depth = depth
        self._ready: collections.deque[Built] = collections.deque()
        self.built_late = 0
        """Requests that had to be built on the loop because the queue was empty."""

    def fill(self) -> bool:
        """Builds for at most two milliseconds; True when the queue is full. In the hub only."""
        until_ns = time.monotonic_ns() + _SLICE_NS
        while len(self._ready) < self._depth:
            if time.monotonic_ns() > until_ns:
                return False
            self._ready.append(self._build())
        return True

    def take(self) -> Built:
        """The next one. On the loop only."""
        try:
            return self._ready.popleft()
        except IndexError:
            self.built_late += 1
            return self._build()

    def skip(self) -> int:
        """Leaves out the next one; gives its number. On the loop only."""
        try:
            return self._ready.popleft().k
        except IndexError:
            return next(self._numbers)

    def _build(self) -> Built:
        k = next(self._numbers)  # atomic: hub and loop may both be building
        return self._build_one(self._level, k)
