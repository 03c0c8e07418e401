"""When Locust's load is steady enough to be a level: takes what a master sees of its users, gives windows; pure.

A window opens when all users that were asked for are there, and ends with the next change or the stop. Steps of a shape
that are too short to be measured are no levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

AHEAD_NS = 100_000_000
"""A window opens so long after it was seen that it can: the workers must have been told."""
LEAST_NS = 5_000_000_000
"""A step of a shape with a shorter window is no level."""


@dataclass(frozen=True, slots=True)
class Opened:
    """All users are there."""

    start_ns: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The window that was open has ended."""

    start_ns: int
    end_ns: int
    kept: bool
    """Whether it is a level."""
    changed: bool
    """Whether the number of users was changed; else the test was stopped."""


class Steps:
    """Looks at one test from its start to its stop."""

    def __init__(self, *, warmup_ns: int, least_ns: int = LEAST_NS) -> None:
        """`warmup_ns`: left out at the beginning of each window."""
        self._warmup_ns = warmup_ns
        self._least_ns = least_ns
        self._start_ns: int | None = None
        self._steady_ns = 0
        """When it was last seen that nothing had changed."""
        self._asked = 0
        self._counts: dict[str, int] = {}
        self.kept = 0
        self.left_out = 0
        """Windows that were too short."""

    def look(self, now_ns: int, *, steady: bool, asked: int, counts: Mapping[str, int]) -> Opened | Closed | None:
        """What has happened since the last look.

        `steady`: whether Locust is done with spawning; `asked`: how many users it was last asked for; `counts`: users of each
        class, which count when it is done.
        """
        if self._start_ns is None:
            if not steady or not asked:
                return None
            self._asked, self._counts, self._steady_ns = asked, dict(counts), now_ns
            self._start_ns = now_ns + AHEAD_NS + self._warmup_ns
            return Opened(self._start_ns)
        if asked != self._asked or (steady and dict(counts) != self._counts):
            return self._close(self._steady_ns, changed=True)
        if steady:
            self._steady_ns = now_ns
        return None

    def stop(self, now_ns: int, *, steady: bool) -> Closed | None:
        """The test is stopped; None when no window was open."""
        if self._start_ns is None:
            return None
        return self._close(now_ns if steady else self._steady_ns, changed=False)

    def _close(self, end_ns: int, *, changed: bool) -> Closed:
        assert self._start_ns is not None
        length_ns = end_ns - self._start_ns
        # The only window of a test is measured however short it is: rules say whether it tells anything.
        kept = length_ns >= self._least_ns or (length_ns > 0 and not changed and not self.kept)
        closed = Closed(self._start_ns, max(end_ns, self._start_ns), kept, changed)
        self._start_ns = None
        self.kept += kept
        self.left_out += not kept
        return closed
