"""How long a closed loop's user waits after an answer before it asks again; seeded, no clock."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ThinkTime:
    """A time in seconds, always the same or exponentially distributed around its mean."""

    mean_s: float
    distribution: Literal["fixed", "exponential"] = "fixed"
    seed: int = 0
    """Of the run; every user has its own stream of it."""

    def next_s(self, rng: random.Random) -> float:
        """The next one."""
        return rng.expovariate(1 / self.mean_s) if self.distribution == "exponential" else self.mean_s

    def at(self, u: float) -> float:
        """The time below which a share `u` of all times lies, in seconds; 0 ≤ u < 1."""
        return -self.mean_s * math.log1p(-u) if self.distribution == "exponential" else self.mean_s

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a message."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ThinkTime:
        """What `to_dict` was called on."""
        return cls(**data)
