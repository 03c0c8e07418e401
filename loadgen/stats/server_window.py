"""Takes the samples of a level, gives those that bound and fill its window, and whether one server gave them all; pure.

A counter's rise is taken between two scrapes, and whatever it is compared with over the very same time: the scrape at the
window's start, or the first one in it, and the one at its end, or the last one before that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadgen.server_metrics.sample import ServerSample

LEAST_SHARE = 0.5
"""Of the window that must lie between the first and the last scrape."""
LATEST_END_NS = 1_000_000_000
"""How long after the window's end a scrape may still stand for it: the load goes on, and the next one comes in a second."""
MOST_FALLS = 2
"""A server that restarts oftener within a level is more likely several servers that answer in turn."""


@dataclass(frozen=True, slots=True)
class ServerWindow:
    """The scrapes of one window, in their order."""

    samples: Sequence[ServerSample]
    """From the first to the last, both included; all of them were answered."""
    after: Sequence[ServerSample]
    """Those of the drain."""
    restarts: int
    """How often the server began anew from the first of these to the last of the drain."""
    failed: int
    """Scrapes of the window that were not answered."""

    @property
    def first(self) -> ServerSample:
        return self.samples[0]

    @property
    def last(self) -> ServerSample:
        return self.samples[-1]

    @property
    def span_ns(self) -> tuple[int, int]:
        """[from the first scrape, to the last)."""
        return self.first.at_ns, self.last.at_ns

    def rise(self, counter: str) -> float | None:
        """By how much a counter rose; None where it is not told or began anew."""
        start, end = self.first.counters.get(counter), self.last.counters.get(counter)
        return None if self.restarts or start is None or end is None else end - start


def server_window(
    samples: Sequence[ServerSample], window: tuple[int, int], drained_ns: int | None
) -> tuple[ServerWindow | None, str | None]:
    """(the window's scrapes, None), or (None, why there are none, in words)."""
    start_ns, end_ns = window
    answered = [one for one in samples if one.error is None and one.kind and one.at_ns >= start_ns]
    inside = [one for one in answered if one.at_ns < end_ns]
    beyond = [one for one in answered if one.at_ns >= end_ns]
    closing = [one for one in beyond[:1] if one.at_ns <= end_ns + LATEST_END_NS]
    chosen = [*inside, *closing]
    if len(chosen) < 2 or chosen[-1].at_ns - chosen[0].at_ns < LEAST_SHARE * (end_ns - start_ns):
        return None, _why_none(samples, window)
    after = [one for one in beyond[len(closing) :] if one.at_ns <= (drained_ns or end_ns)]
    falls = sum(_began_anew(earlier, later) for earlier, later in pairwise([*chosen, *after]))
    if falls > MOST_FALLS or _returns([*chosen, *after]):
        return None, "several servers answer in turn at the address of the metrics"
    failed = sum(one.error is not None and start_ns <= one.asked_ns <= end_ns for one in samples)
    return ServerWindow(chosen, after, falls, failed), None


def _why_none(samples: Sequence[ServerSample], window: tuple[int, int]) -> str:
    errors = Counter(one.error for one in samples if one.error is not None and one.answered_ns >= window[0])
    if errors:
        return str(errors.most_common(1)[0][0])
    return "the server's metrics were not sampled" if not samples else "too few samples of the server's metrics"


def _began_anew(earlier: ServerSample, later: ServerSample) -> bool:
    if earlier.started_s is not None and later.started_s is not None and earlier.started_s != later.started_s:
        return True
    fell = any(later.counters.get(name, value) < value for name, value in earlier.counters.items())
    return fell or any(
        name in later.histograms and later.histograms[name].counts[-1] < one.counts[-1]
        for name, one in earlier.histograms.items()
    )


def _returns(samples: Sequence[ServerSample]) -> bool:
    """Whether a process answers again that another one had followed: they live side by side."""
    started = [one.started_s for one in samples if one.started_s is not None]
    return any(later < earlier for earlier, later in pairwise(started))
