"""Takes when requests arrived and when they ended, says whether more and more of them are under way; pure, for open loops.

In an open loop nothing holds arrivals back: where more is offered than completed, requests pile up for as long as the load
lasts, and latency says how long that was, not how fast the server is.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass

import numpy as np

from loadgen.arrivals.schedule import Schedule
from loadgen.stats.columns import Ints

LEAST_GROWTH = 0.05
"""Of the arrivals so many must have been left over before it counts."""
SIGMAS = 2.5
"""… and so many standard deviations of the number of arrivals."""
_LOOKS_A_PART = 20


class Offered:
    """The arrivals of a schedule up to an instant, drawn as time goes on; instants are of the controller's clock."""

    def __init__(self, schedule: Schedule, start_ns: int, *, all_sent: bool = True) -> None:
        """`all_sent`: whether none of them is dropped."""
        self.all_sent = all_sent
        self.gap_variation = schedule.gap_variation
        """Coefficient of variation of the gaps."""
        self._start_ns = start_ns
        self._offsets = schedule.arrivals().offsets()
        self._drawn_ns = array("q")
        self._more = True

    def before(self, instant_ns: int) -> Ints:
        """Every arrival before then, ascending."""
        while self._more and (not self._drawn_ns or self._drawn_ns[-1] < instant_ns):
            offset_s = next(self._offsets, None)
            self._more = offset_s is not None
            if offset_s is not None:
                self._drawn_ns.append(self._start_ns + round(offset_s * 1e9))
        drawn = np.array(self._drawn_ns, np.int64)
        return drawn[: np.searchsorted(drawn, instant_ns)]


@dataclass(frozen=True, slots=True)
class Backlog:
    """Requests that had arrived and had not ended, over a span of time."""

    at_start: int
    at_end: int
    arrived: int
    """In the span."""
    ended: int
    grew: bool
    """Whether it grew throughout, and by more than chance explains."""


def backlog(begun_ns: Ints, ended_ns: Ints, span: tuple[int, int], gap_variation: float = 1.0) -> Backlog:
    """`begun_ns`, `ended_ns`: of every request, in any order, also those outside [start, end).

    It *grew* where its mean rose from each third of the span to the next, and its growth from the first to the last
    third is at least `LEAST_GROWTH` of the arrivals between them and `SIGMAS` standard deviations of their number
    (that of a renewal process: n · cv²; at least one request).
    """
    begun, ended = np.sort(begun_ns), np.sort(ended_ns)
    start_ns, end_ns = span
    looks = np.linspace(start_ns, end_ns, 3 * _LOOKS_A_PART + 1)[1:]
    open_at = np.searchsorted(begun, looks) - np.searchsorted(ended, looks)
    first, second, third = open_at.reshape(3, _LOOKS_A_PART).mean(axis=1)
    arrived = int(np.searchsorted(begun, end_ns) - np.searchsorted(begun, start_ns))
    between = arrived * 2 / 3
    least = max(LEAST_GROWTH * between, SIGMAS * math.sqrt(between) * gap_variation, 1.0)
    at_start = int(np.searchsorted(begun, start_ns) - np.searchsorted(ended, start_ns))
    return Backlog(
        at_start=at_start,
        at_end=int(open_at[-1]),
        arrived=arrived,
        ended=int(np.searchsorted(ended, end_ns) - np.searchsorted(ended, start_ns)),
        grew=bool(first < second < third and third - first >= least),
    )
