"""Takes a series in order of time, gives how far its mean may lie from the long-run mean; pure, draws no random number.

Neighbouring requests share the server's queue and batch, so n of them say less than n independent ones would. The
variance of the mean is the one that a block bootstrap gives, in closed form (overlapping batch means: Meketon & Schmeiser,
WSC 1984; its equality with the moving-block bootstrap: Künsch, Annals of Statistics 17, 1989), so a report repeats exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from loadgen.stats.columns import Floats

CONFIDENCE = 0.95
MOST_CELLS = 2048
"""A longer series is joined into so many means of neighbours: correlation over less than that need not be resolved."""
_FEWEST_BLOCKS = 5
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


@dataclass(frozen=True, slots=True)
class MeanError:
    """Of the mean of a series."""

    standard_error: float
    freedom: float
    """Degrees of freedom that the standard error was estimated with."""
    block: int
    """Length of the blocks, in entries of the series (of its joined cells)."""

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval."""
        return t_quantile(self.freedom) * self.standard_error


def mean_error(series: Floats, *, least_block: int = 1) -> MeanError | None:
    """The error of the mean of `series`, shape (n,), in order of time; None with fewer than three entries.

    Blocks are twice as long as Politis & White's rule asks for: theirs make the error of the variance least, which is
    reached with some bias downwards, and an interval for 95 % would hold 86 % where memory is long. They are no shorter than
    `least_block`, and at least five fit.
    """
    cells = _joined(series)
    n = cells.size
    if n < 3:
        return None
    largest = float(np.max(np.abs(cells)))
    if float(np.ptp(cells)) <= 1e-9 * largest:
        return MeanError(0.0, n - 1.0, 1)
    block = max(1, min(max(2 * block_length(cells), least_block), n // _FEWEST_BLOCKS))
    variance = _overlapping_batch_means(cells, block)
    return MeanError(math.sqrt(variance / n), max(2.0, n / block - 1), block)


def _joined(series: Floats) -> Floats:
    together = -(-series.size // MOST_CELLS)
    if together <= 1:
        return np.asarray(series, np.float64)
    whole = series.size // together * together
    means: Floats = series[:whole].reshape(-1, together).mean(axis=1)
    return means


def _overlapping_batch_means(series: Floats, block: int) -> float:
    """The long-run variance: n times the variance of the mean of n entries."""
    n = series.size
    sums = np.cumsum(np.concatenate(([0.0], series)))
    means = (sums[block:] - sums[:-block]) / block
    around = means - series.mean()
    return float(around @ around) * n * block / ((n - block + 1) * (n - block))


def block_length(series: Floats) -> int:
    """The length of blocks that makes the error of the block bootstrap's variance least; at least 1.

    Politis & White, Econometric Reviews 23, 2004, as corrected by Patton, Politis & White in 28, 2009.
    """
    n = series.size
    correlation = autocorrelation(series)
    if correlation is None:
        return 1
    lag = _last_that_matters(correlation, n)
    most = min(2 * lag, correlation.size - 1)
    if most < 1:
        return 1
    lags = np.arange(1, most + 1)
    # The flat-top window: 1 up to the half, then falling to 0.
    window = np.clip(2 * (1 - lags / most), 0, 1)
    weighted = window * correlation[1 : most + 1]
    long_run = 1 + 2 * float(weighted.sum())
    bias = 2 * float((lags * weighted).sum())
    if long_run <= 0:
        return most  # a wave: what it does within its period evens out in blocks that hold it
    return max(1, math.ceil(math.cbrt(2 * bias**2 / (4 / 3 * long_run**2) * n)))


def _last_that_matters(correlation: Floats, n: int) -> int:
    """The smallest lag m after which a stretch of autocorrelations cannot be told from 0."""
    threshold = 2 * math.sqrt(math.log10(n) / n)
    stretch = max(5, math.ceil(math.sqrt(math.log10(n))))
    most = min(correlation.size - 1, math.ceil(math.sqrt(n)) + stretch)
    small = np.abs(correlation[1 : most + 1]) < threshold
    run = 0
    for position, one in enumerate(small.tolist()):
        run = run + 1 if one else 0
        if run == stretch:
            return position - stretch + 1
    large = np.flatnonzero(~small)
    return int(large[-1]) + 1 if large.size else 0


def autocorrelation(series: Floats) -> Floats | None:
    """Autocorrelations at lags 0, 1, …, n/2, shape (n // 2 + 1,); None for a constant series."""
    n = series.size
    centred = series - series.mean()
    spectrum = np.abs(np.fft.rfft(centred, 2 * n)) ** 2
    covariance = np.fft.irfft(spectrum)[: n // 2 + 1]
    return None if covariance[0] <= 0 else covariance / covariance[0]


def t_quantile(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, right to 2 % from two degrees of freedom on (Fisher & Cornish, 1960)."""
    z, v = _Z, freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def share_interval(share: float, n: float) -> tuple[float, float]:
    """The 95 % interval of a share that was seen among `n` independent trials (Wilson, JASA 22, 1927)."""
    centre = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)
