"""Takes the instants of scrapes and who came, gives how long an endpoint should stay for them; reads no clock.

A scraper that finds nobody after a run has missed the last level, so the endpoint waits for the slowest one twice.
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

LONGEST_S = 120.0
"""Nobody is waited for any longer: twice Prometheus' own default interval."""
_INTERVALS = 2
# A scraper that stayed away for so many of its intervals has gone. The floor is for a controller that is too busy to
# answer for some seconds, as it is while it draws a report.
_GONE_INTERVALS = 3
_GONE_S = 10.0
# Whoever does not say that it is a scraper must have come more often than a curious person with curl.
_VISITS_OF_A_SCRAPER = 3
_VISITS_KEPT = 64


@dataclass(frozen=True, slots=True)
class Linger:
    """How long to stay after the run's end, and why, as the middle of a sentence."""

    seconds: float
    reason: str


@dataclass(slots=True)
class _Visitor:
    address: str
    announced: bool
    visits_s: deque[float] = field(default_factory=lambda: deque(maxlen=_VISITS_KEPT))

    def interval_s(self) -> float | None:
        """Median time between visits; None after a single one."""
        gaps = [later - earlier for earlier, later in pairwise(self.visits_s)]
        return statistics.median(gaps) if gaps else None

    def was_here(self, end_s: float) -> bool:
        """Whether it is a scraper that was still coming at the instant `end_s`."""
        before = [visit_s for visit_s in self.visits_s if visit_s <= end_s]
        if len(before) < (1 if self.announced else _VISITS_OF_A_SCRAPER):
            return False
        gaps = [later - earlier for earlier, later in pairwise(before)]
        gone_s = max(_GONE_S, _GONE_INTERVALS * statistics.median(gaps)) if gaps else LONGEST_S
        return end_s - before[-1] <= gone_s


class Scrapes:
    """Who came to an endpoint, and when. Noted on the endpoint's threads, asked from another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._visitors: dict[tuple[str, str], _Visitor] = {}

    def note(self, address: str, agent: str, at_s: float, *, announced: bool) -> None:
        """Someone asked for the metrics at the monotonic instant `at_s`; `announced`: it said that it is a scraper."""
        with self._lock:
            visitor = self._visitors.setdefault((address, agent), _Visitor(address, announced))
            visitor.announced |= announced
            visitor.visits_s.append(at_s)

    def linger(self, end_s: float) -> Linger | None:
        """How long to stay after the run's end at the monotonic instant `end_s`; None when no scraper was coming then.

        A scraper that had come only once has no interval yet: it gets one with its next visit, so ask again.
        """
        with self._lock:
            scrapers = [(one.address, one.interval_s()) for one in self._visitors.values() if one.was_here(end_s)]
        if not scrapers:
            return None
        address, interval_s = max(scrapers, key=lambda scraper: scraper[1] or float("inf"))
        if interval_s is None:
            return Linger(LONGEST_S, f"the scraper at {address} has come only once, so its interval is not known yet")
        seconds = min(LONGEST_S, _INTERVALS * interval_s)
        return Linger(seconds, f"the scraper at {address} comes every {round(interval_s, 1):g} s")
