"""What is to be served, and how many replicas it takes: arithmetic on rates; it knows no run."""

from __future__ import annotations

import math
from dataclasses import dataclass

_ROUNDING = 1e-9
"""A ratio this close to a whole number is that number: 40 / 8 must not become 6 replicas."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests that come, and how much of a replica is to stay free."""

    target_rps: float
    """Requests/s on average."""
    peak_factor: float = 1.0
    """The busiest time over the average."""
    headroom: float = 0.0
    """Share of a replica's capacity that is not planned with, 0 ≤ headroom < 1."""

    @property
    def peak_rps(self) -> float:
        """Requests/s at the busiest time."""
        return self.target_rps * self.peak_factor

    def replicas(self, capacity_rps: float) -> int:
        """ceil(peak / (capacity · (1 − headroom))), at least 1; ValueError for a capacity that is not above 0."""
        if capacity_rps <= 0:
            raise ValueError(f"a replica's capacity must be above 0, not {capacity_rps} requests/s")
        return max(1, math.ceil(self.peak_rps / (capacity_rps * (1 - self.headroom)) - _ROUNDING))

    def load(self, replicas: int, capacity_rps: float) -> dict[str, float]:
        """{requests_per_s, utilization} of one replica at the peak when so many share it evenly."""
        each = self.peak_rps / replicas
        return {"requests_per_s": each, "utilization": each / capacity_rps}


def per_million_tokens(cost_per_hour: float, tokens_per_s: float | None) -> float | None:
    """Price of a million tokens of what costs so much an hour; None where no token came."""
    return cost_per_hour / 3600 / tokens_per_s * 1e6 if tokens_per_s else None
