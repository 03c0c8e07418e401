"""How often and how long the garbage collector stopped this process: counts from `gc.callbacks`, never collects itself.

A collection holds the interpreter lock, so whichever thread it began in, the event loop stands still.
"""

from __future__ import annotations

import gc
import time
from typing import Any


class GcPauses:
    """Counts from `begin` on, until `stop`; collections of any generation, on purpose or not."""

    def __init__(self) -> None:
        self._started_ns: int | None = None
        self._peak_ns = 0
        self.begin()
        gc.callbacks.append(self._on_gc)

    def begin(self) -> None:
        """Forgets what was counted so far."""
        self.count = 0
        self.total_ns = 0
        self.max_ns: int | None = None
        """The longest; None when there was none."""

    def take_peak_ns(self) -> int:
        """The longest pause since the last call, for live display; 0 when there was none."""
        peak_ns, self._peak_ns = self._peak_ns, 0
        return peak_ns

    def stop(self) -> None:
        """Ends the counting; a second call does nothing."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        now_ns = time.monotonic_ns()
        if phase == "start":
            self._started_ns = now_ns
        elif self._started_ns is not None:
            pause_ns, self._started_ns = now_ns - self._started_ns, None
            self.count += 1
            self.total_ns += pause_ns
            self.max_ns = max(self.max_ns or 0, pause_ns)
            self._peak_ns = max(self._peak_ns, pause_ns)
