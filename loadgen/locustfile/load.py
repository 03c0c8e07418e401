"""What Locust's users are as a load: takes the user classes and how many there are of each, gives users or a rate; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadgen.locustfile.users import LLMUser, OpenLoopLLMUser


@dataclass(frozen=True, slots=True)
class Load:
    """One of `concurrency` and `request_rate`."""

    concurrency: int | None
    """Users of a closed loop."""
    request_rate: float | None
    """Requests a second of an open one."""
    max_in_flight: int | None
    """Most that may be in flight in it; None without a limit."""
    overflow: str | None
    """What becomes of an arrival beyond that."""

    def __bool__(self) -> bool:
        return bool(self.concurrency or self.request_rate)


def load_of(classes: Sequence[type[LLMUser]], counts: Mapping[str, int]) -> Load:
    """`counts`: users by the name of their class, of other classes too."""
    open_loops = [(one, counts.get(one.__name__, 0)) for one in classes if issubclass(one, OpenLoopLLMUser)]
    if not open_loops:
        return Load(sum(counts.get(one.__name__, 0) for one in classes), None, None, None)
    rate = sum(users * one.request_rate for one, users in open_loops)
    capped = [(one, users * one.max_in_flight) for one, users in open_loops if one.max_in_flight is not None]
    if not capped:
        return Load(None, rate, None, None)
    overflow = "drop" if any(one.overflow == "drop" for one, _ in capped) else "queue"
    return Load(None, rate, sum(most for _, most in capped), overflow)
