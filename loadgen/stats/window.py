"""Takes a level's pace, gives how long it must be measured; pure, computed once, before the window opens.

The window's end is told to the workers ahead of time, so that nobody has to act at it; it rests on what was seen while
the level settled. An estimate that was too high (the server slowed down) gives a window with fewer requests than meant:
the validity rules `too_few_samples` and `few_samples` count what really came and say so. One that was too low only
costs time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from loadgen.stats.digits import digits

COMPLETIONS = 200
"""Requests that a window should see the end of: then P95 has ten samples beyond it, twice what makes it weak."""
GENERATIONS = 3.0
"""Times that a long request should fit into it: with fewer nobody can tell a trend from a swing (stats.stationarity)."""
LEAST_S = 15.0
"""What is measured on one machine wobbles over seconds, whatever the requests' length."""
MOST_S = 120.0


class WindowLength(NamedTuple):
    """How long to measure, and why so long, in words."""

    window_s: float
    reason: str
    capped: bool
    """Whether the work asked for more than the cap allows."""


def window_length(
    completed_rate: float | None,
    e2e_p95_s: float | None,
    *,
    completions: int = COMPLETIONS,
    generations: float = GENERATIONS,
    least_s: float = LEAST_S,
    most_s: float = MOST_S,
) -> WindowLength:
    """The longest of: the time of `completions` at `completed_rate` a second, `generations` × `e2e_p95_s`, `least_s`.

    At most `most_s`, also when nothing is known (None or 0: no request has completed); a most_s below least_s wins.
    Whole tenths of a second, rounded up.
    """
    if not completed_rate or not e2e_p95_s:
        return WindowLength(most_s, f"no request has completed yet, so the longest, {most_s:g} s", capped=True)
    wanted, reason = max(
        (least_s, f"{least_s:g} s is the least"),
        (completions / completed_rate, f"{completions} requests at {digits(completed_rate, 3)} completed a second"),
        (generations * e2e_p95_s, f"{generations:g} × {e2e_p95_s:.3g} s, the P95 of E2E latency"),
    )
    wanted = math.ceil(wanted * 10 - 1e-6) / 10
    if wanted > most_s:
        return WindowLength(most_s, f"{most_s:g} s is the most; {wanted:g} s were wanted for {reason}", capped=True)
    return WindowLength(wanted, reason, capped=False)
