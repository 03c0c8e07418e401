"""Takes a figure twice, with intervals where there are any, gives how much it changed and what that is worth; pure.

The interval of the change is MOVER's (G. Zou and A. Donner, "Construction of confidence limits about effect measures",
Statistics in Medicine 27, 2008): the two intervals' arms add in squares. Of ratios it is taken on the logarithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from loadgen.comparison.figures import Figure

Interval = tuple[float, float]

REGRESSED = "regressed"
IMPROVED = "improved"
SAME = "same"
UNCLEAR = "unclear"
NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure of one level."""

    value: float | None
    interval: Interval | None = None
    """95 %."""
    weak: bool = False
    """Fewer than five samples lie beyond the percentile."""


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a figure. A change is a share of the baseline, of a share itself a difference; above 0 is more."""

    change: float | None
    interval: Interval | None
    verdict: str
    text: str
    """Why, where it is not plain."""


def change(figure: Figure, baseline: Measured, run: Measured) -> Change:
    """Regressed: worse by more than the tolerance, and the interval of the change leaves out no change at all; improved alike.
    Same: the whole interval lies within the tolerance. What is neither is unclear.

    Without intervals the tolerance alone decides, but not for a percentile that too few samples carry. What was 0 and is 0
    (no request failed in either) is the same, however few requests that rests on.
    """
    if baseline.value is None or run.value is None:
        side = "the baseline" if baseline.value is None else "the run"
        return Change(None, None, NOT_MEASURED, f"not measured in {side}")
    changed = _changed(figure, baseline.value, run.value)
    if changed is None:
        return Change(None, None, UNCLEAR, "the baseline is 0, so there is no share of it")
    interval = _interval(figure, baseline, run)
    worse = -changed if figure.higher_is_better else changed
    if baseline.value == run.value == 0:
        return Change(changed, interval, SAME, "")
    if interval is None and None not in (baseline.interval, run.interval):
        return Change(changed, None, UNCLEAR, "the baseline's interval reaches 0, so there is no share of it")
    if interval is None and (baseline.weak or run.weak):
        return Change(changed, None, UNCLEAR, "too few samples lie beyond this percentile")
    if abs(changed) <= figure.tolerance:
        if interval is None or max(-interval[0], interval[1]) <= figure.tolerance:
            return Change(changed, interval, SAME, "")
        return Change(changed, interval, UNCLEAR, "may be more than the tolerance")
    if interval is not None and interval[0] <= 0 <= interval[1]:
        return Change(changed, interval, UNCLEAR, "chance alone may do so, as the interval of the change holds 0")
    return Change(changed, interval, REGRESSED if worse > 0 else IMPROVED, "" if interval else "by its tolerance alone")


def _changed(figure: Figure, old: float, new: float) -> float | None:
    if figure.absolute:
        return new - old
    if old == 0:
        return 0.0 if new == 0 else None
    return new / old - 1


def _interval(figure: Figure, baseline: Measured, run: Measured) -> Interval | None:
    if baseline.interval is None or run.interval is None or baseline.value is None or run.value is None:
        return None
    if figure.absolute:
        return _mover((baseline.value, *baseline.interval), (run.value, *run.interval))
    old, new = (baseline.value, *baseline.interval), (run.value, *run.interval)
    if min(old) <= 0:
        return None
    if new[0] <= 0:
        return -1.0, new[2] / old[1] - 1  # there is no logarithm of 0; the bounds' own ratio is wider
    low, high = _mover(_logs(old), _logs(new))
    return math.exp(low) - 1, math.exp(high) - 1


Three = tuple[float, float, float]


def _logs(of: Three) -> Three:
    """A bound of 0 is no bound: −100 %."""
    value, low, high = of
    return math.log(value), math.log(low) if low > 0 else -math.inf, math.log(high)


def _mover(old: Three, new: Three) -> Interval:
    """Interval of new − old; each is (value, low, high)."""
    difference = new[0] - old[0]
    down = math.hypot(new[0] - new[1], old[2] - old[0])
    up = math.hypot(new[2] - new[0], old[0] - old[1])
    return difference - down, difference + up


def wilson(failures: int, decided: int) -> Interval | None:
    """95 % interval of a share of independent trials (E. B. Wilson, 1927); None without a trial."""
    if not decided:
        return None
    z, share = 1.96, failures / decided
    middle = share + z * z / (2 * decided)
    arm = z * math.sqrt(share * (1 - share) / decided + z * z / (4 * decided * decided))
    below = 1 + z * z / decided
    return max(0.0, (middle - arm) / below), min(1.0, (middle + arm) / below)
