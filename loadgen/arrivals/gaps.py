"""Gaps between arrivals with mean 1, of a pattern and a seed; how long a gap is in seconds is the rate's affair.

The numbers come from numpy's frozen `RandomState` on a counter-based generator (Philox): the same seed gives the same
gaps on every host and with every version of numpy (NEP 19), so workers need not be told the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loadgen.arrivals.pattern import Pattern

Floats = NDArray[np.float64]

_BLOCK = 1024
# Keeps the arrivals' numbers apart from any other use of the same seed.
_PURPOSE = 0xA221BA15


class Gaps(Protocol):
    """A stationary stream of gaps with mean 1."""

    def blocks(self) -> Iterator[Floats]:
        """Arrays of gaps, one after another without end."""
        ...


@dataclass(frozen=True, slots=True)
class ConstantGaps:
    """Every gap is 1, but for the first, which is half of it: so a span of any length has as many as its rate says."""

    def blocks(self) -> Iterator[Floats]:
        yield np.array([0.5])
        while True:
            yield np.ones(_BLOCK)


@dataclass(frozen=True, slots=True)
class GammaGaps:
    """Gamma-distributed gaps of shape `burstiness` and mean 1; the coefficient of variation is 1 / √burstiness.

    As in vLLM's benchmark: 1 is a Poisson process, less comes in clumps, more is more regular.
    """

    burstiness: float
    seed: int
    level: int

    def blocks(self) -> Iterator[Floats]:
        random = np.random.RandomState(np.random.Philox(np.random.SeedSequence([_PURPOSE, self.seed, self.level])))
        while True:
            if self.burstiness == 1:
                yield random.standard_exponential(_BLOCK)
            else:
                yield random.standard_gamma(self.burstiness, _BLOCK) / self.burstiness


def gaps_of(pattern: Pattern, burstiness: float, *, seed: int, level: int) -> Gaps:
    """The gaps of a pattern; `burstiness` counts for gamma alone."""
    if pattern == "constant":
        return ConstantGaps()
    return GammaGaps(burstiness if pattern == "gamma" else 1.0, seed, level)
