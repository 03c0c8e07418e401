"""What a level asked for, in words and as a number: users of a closed loop, or requests a second of an open one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.stats.digits import digits

Level = Mapping[str, Any]


def asked_text(concurrency: int | None, request_rate: float | None) -> str:
    """`concurrency 8`, or `4 requests/s`; with neither, a rate that changes."""
    if concurrency is not None:
        return f"concurrency {concurrency}"
    return "a changing request rate" if request_rate is None else f"{digits(request_rate)} requests/s"


def is_open(level: Level) -> bool:
    """Whether requests came by a schedule."""
    return level["concurrency"] is None


def asked(level: Level) -> float:
    """The number that levels of a sweep are ordered by."""
    return float(level["request_rate"] if is_open(level) else level["concurrency"])


def asked_exactly(level: Level) -> float | int:
    """That number as it was asked for: users are whole."""
    number: float | int = level["request_rate"] if is_open(level) else level["concurrency"]
    return number


def asked_number(level: Level) -> str:
    """That number as people write it."""
    return f"{level['request_rate']:.4g}" if is_open(level) else str(level["concurrency"])


def asked_of(level: Level) -> str:
    """`concurrency 8`, or `4 requests/s`, of a level object."""
    return asked_text(level["concurrency"], level["request_rate"])


def asked_of_several(numbers: str, *, open_loop: bool) -> str:
    """The same of several levels' numbers: `concurrency 8, 16`, or `4, 8 requests/s`."""
    return f"{numbers} requests/s" if open_loop else f"concurrency {numbers}"
