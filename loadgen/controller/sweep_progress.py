"""Where a sweep is, for the display: which level, which phase, how long it will take; computes no figure."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from loadgen.scenario.model import Level

_LOADED = ("ramp", "warm-up", "settling", "window")


@dataclass(slots=True)
class Progress:
    """Where a sweep is, for the display."""

    levels: int | None
    """How many there will be; None while nobody knows."""
    named_keys: tuple[str, ...] = ()
    """Settings of the server that a level is named by."""
    level: Level | None = None
    phase: str = "starting"
    phase_began: float = 0.0
    phase_s: float | None = None
    """How long the phase lasts, where that is known."""
    remaining_s: float = 0.0
    """Warm-ups and windows still to come after this phase."""

    def enter(self, phase: str, phase_s: float | None = None) -> None:
        self.phase, self.phase_s, self.phase_began = phase, phase_s, time.monotonic()
        if phase_s is not None:
            self.remaining_s = max(0.0, self.remaining_s - phase_s)

    @property
    def loaded_level(self) -> int | None:
        """The level that is under load and whose drain has not begun; None where there is none."""
        return self.level.level if self.level is not None and self.phase in _LOADED else None

    def elapsed_s(self) -> float:
        """Seconds in this phase so far."""
        return time.monotonic() - self.phase_began

    def place(self, level: int) -> str:
        """Which level it is, for people: `3/6`, or `3` where nobody knows how many there will be."""
        return str(level + 1) if self.levels is None else f"{level + 1}/{self.levels}"

    def named(self, level: Level) -> dict[str, Any]:
        """The settings of the server that a level is named by."""
        return {key: level.server[key] for key in self.named_keys}

    def left_s(self) -> float:
        """Estimated seconds until the sweep ends; drains are not foreseen."""
        here = 0.0
        if self.phase_s is not None:
            here = max(0.0, self.phase_s - self.elapsed_s())
        return here + self.remaining_s
