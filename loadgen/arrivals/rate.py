"""A request rate over time, as straight lines between points, and the inverse of the requests counted up to an instant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.arrivals.gaps import Floats


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests a second at each of `times_s`, straight lines between them, the last one for ever after.

    Two points at one time are a jump. Raises ValueError unless times begin at 0 and never fall, and rates are ≥ 0.
    """

    times_s: tuple[float, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.times_s or len(self.times_s) != len(self.rates):
            raise ValueError("a rate needs as many rates as times, and one at least")
        if self.times_s[0] != 0 or any(b < a for a, b in zip(self.times_s, self.times_s[1:], strict=False)):
            raise ValueError("the times of a rate begin at 0 and never fall")
        if min(self.rates) < 0:
            raise ValueError("a rate is never negative")

    @classmethod
    def steady(cls, rate: float) -> Rate:
        """The same rate for ever."""
        return cls((0.0,), (float(rate),))

    @property
    def length_s(self) -> float:
        """When it has reached its last point; 0 for a steady rate."""
        return self.times_s[-1]

    def counts(self, offsets_s: Sequence[float] | Floats) -> Floats:
        """Expected requests from 0 until each of `offsets_s`: the integral of the rate."""
        t, r, reached = self._pieces()
        at = np.asarray(offsets_s, np.float64)
        i = np.clip(np.searchsorted(t, at, side="right") - 1, 0, None)
        slope = _slopes(t, r)[i]
        d = at - t[i]
        return np.asarray(reached[i] + d * (r[i] + slope * d / 2), np.float64)

    def instants(self, counts: Floats) -> Floats:
        """The offsets at which the expected requests reach each of `counts` (> 0); inf where they never do.

        Within a piece c = r·d + s·d²/2, of which the root is d = 2c / (r + √(r² + 2·s·c)): no cancellation for s → 0.
        """
        t, r, reached = self._pieces()
        # Strictly above what was reached, so that a piece without requests is passed over.
        i = np.searchsorted(reached, counts, side="left") - 1
        slope, c = _slopes(t, r)[i], counts - reached[i]
        with np.errstate(divide="ignore"):
            d = 2 * c / (r[i] + np.sqrt(np.maximum(r[i] ** 2 + 2 * slope * c, 0)))
        return np.asarray(t[i] + d, np.float64)

    def mean(self, start_s: float, end_s: float) -> float:
        """Expected requests a second between two offsets."""
        before, after = self.counts([start_s, end_s])
        return float(after - before) / (end_s - start_s)

    def _pieces(self) -> tuple[Floats, Floats, Floats]:
        """Where each piece begins, its rate there, and the requests until there."""
        t, r = np.array(self.times_s), np.array(self.rates)
        return t, r, np.concatenate(([0.0], np.cumsum(np.diff(t) * (r[1:] + r[:-1]) / 2)))


def _slopes(t: Floats, r: Floats) -> Floats:
    length = np.diff(t)
    rising = np.divide(np.diff(r), length, out=np.zeros_like(length), where=length > 0)
    return np.append(rising, 0.0)
