"""How late a probe was woken: takes each wake's lag, gives one sample for every instant at which the probe was due.

A probe that sleeps while its thread is held up is woken once, however long that took; counted so, a stall of a second would
weigh as much as a punctual wake. So the wakes that it missed are counted too, each with its own lag: a percentile of these
samples is one over *time*, as bytes that arrive at any instant feel it.
"""

from __future__ import annotations

from loadgen.worker.samples import Samples


class LagLog:
    """Lags of one probe that is due every `period_ns`. Written by the probe's thread; others may read at any time."""

    def __init__(self, period_ns: int) -> None:
        self.period_ns = period_ns
        self.samples_ns = Samples()
        """Since `begin`."""
        self._peak_ns: int | None = None

    def begin(self) -> None:
        """Forgets the samples so far."""
        self.samples_ns = Samples()

    def woken(self, lag_ns: int) -> None:
        """The probe was woken `lag_ns` after it was due; below 0 counts as punctual."""
        lag_ns = max(0, lag_ns)
        self._peak_ns = max(self._peak_ns or 0, lag_ns)
        self.samples_ns.append(lag_ns)
        # While it waited it was due again, period after period.
        while (lag_ns := lag_ns - self.period_ns) > 0:
            self.samples_ns.append(lag_ns)

    def take_peak_ns(self) -> int | None:
        """The longest lag since the last call, for live display; None without a wake."""
        peak_ns, self._peak_ns = self._peak_ns, None
        return peak_ns
