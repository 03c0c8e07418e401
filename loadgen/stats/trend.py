"""Takes a series cut into cycles and seasons, gives its trend and how surprising it is; pure, knows no request.

A *cycle* is a stretch after which the series may repeat itself, a *season* one part of it. Comparing only equal seasons
of different cycles keeps a swing that repeats every cycle from looking like a trend.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from loadgen.stats.columns import Floats

MOST_CYCLES = 20
"""More generations than this are joined: long cells are more nearly independent, and a trend needs no more."""
# A window may end a moment short of its last generation, whose length was only an estimate when the window was chosen.
_SHORT_OF_A_GENERATION = 0.02


def layout(generations: float) -> tuple[int, int, float] | None:
    """How to cut a stretch of `generations`: (cycles, seasons, share of the stretch that one cycle takes).

    None when it does not hold two generations. With few cycles the seasons give the test its power: a trend over three
    cycles of one season has p = 1/3 at best, over four seasons 0.0015. With many cycles one season is enough, and
    nothing within a cycle need be independent.
    """
    whole = int(generations + _SHORT_OF_A_GENERATION)
    if whole < 2:
        return None
    joined = -(-whole // MOST_CYCLES)
    cycles = whole // joined
    seasons = 4 if cycles < 8 else 2 if cycles < 15 else 1
    return cycles, seasons, min(joined / generations, 1 / cycles)


@dataclass(frozen=True, slots=True)
class Trend:
    """What one series did over its cycles."""

    slope: float
    """Change from one cycle to the next, in the series' unit."""
    p_value: float
    """Probability of a trend at least as clear, in either direction, where there is none."""


def seasonal_kendall(cells: Floats) -> Trend:
    """The trend of `cells`, shape (cycles, seasons); without seasons, shape (cycles, 1), it is Mann–Kendall's.

    Statistic: Kendall's S within each season, summed (Hirsch, Slack & Smith, "Techniques of trend analysis for monthly
    water quality data", Water Resources Research 18(1), 1982; Mann, Econometrica 13, 1945). Its distribution is the
    exact one, since few cycles are the rule here; ties only make it more careful. Cells must be about independent:
    they should be no shorter than what the series remembers. Slope: the median over all pairs within a season (Theil
    1950; Sen 1968), which a few outliers do not move. Raises ValueError for fewer than two cycles.
    """
    cycles, seasons = cells.shape
    if cycles < 2 or seasons < 1:
        raise ValueError(f"a trend needs at least two cycles of one season, not shape {cells.shape}")
    earlier, later = np.triu_indices(cycles, k=1)
    rises = cells[later] - cells[earlier]
    s = abs(int(np.sign(rises).sum()))
    slope = float(np.median(rises / (later - earlier)[:, None]))
    return Trend(slope=slope, p_value=_p_value(cycles, seasons, s))


def least_p_value(cycles: int, seasons: int) -> float:
    """The p-value of the clearest trend there can be: a series that cannot get below one's level cannot be judged."""
    return _p_value(cycles, seasons, seasons * cycles * (cycles - 1) // 2)


@lru_cache(maxsize=256)
def _p_value(cycles: int, seasons: int, s: int) -> float:
    # Inversions of a random order of n are a sum of independent uniform counts 0 … i − 1, one for each i ≤ n
    # (Kendall 1938); S = pairs − 2 · inversions, and seasons add.
    inversions = np.ones(1)
    for _ in range(seasons):
        for i in range(2, cycles + 1):
            inversions = np.convolve(inversions, np.full(i, 1 / i))
    pairs = inversions.size - 1
    at_least = np.abs(pairs - 2 * np.arange(pairs + 1)) >= s
    return min(1.0, float(inversions[at_least].sum()))
