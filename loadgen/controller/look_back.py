"""What workers told over the last while: takes their live reports, gives rises of their counts and ages; pure.

Each worker's counts are held against its own earlier ones, at the instants at which its reports came: reports are a second
apart, and a difference taken at other instants would be of a longer or shorter time than it says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class Telling(Protocol):
    """A worker, as far as its reports go; `loadgen.controller.worker.Worker`."""

    @property
    def index(self) -> int: ...
    @property
    def live(self) -> Mapping[str, Any]: ...
    @property
    def live_s(self) -> float: ...
    @property
    def lost(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Told:
    """The counts of one report, and when it came."""

    at_s: float
    begun: int
    first_tokens: int
    ttft_ns: int


class LookBack:
    """The reports of the last `period_s`, and of each worker the one before."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._told: dict[int, deque[Told]] = {}

    def clear(self) -> None:
        """Forgets what was told."""
        self._told.clear()

    def take(self, workers: Iterable[Telling]) -> None:
        """Notes what each has told since the last call; one that is lost or gone is forgotten."""
        present = telling(workers)
        self._told = {worker.index: self._told.get(worker.index, deque()) for worker in present}
        for worker in present:
            told, answers = self._told[worker.index], worker.live["answers"]
            if told and told[-1].at_s >= worker.live_s:
                continue
            told.append(Told(worker.live_s, worker.live["begun"], answers["first_tokens"], answers["ttft_ns"]))
            while len(told) > 1 and told[1].at_s <= worker.live_s - self._period_s:
                told.popleft()

    def begun_rate(self) -> float | None:
        """Requests a second that were begun over the period, not one more than surely; None until all have told a whole one.

        The first request of each worker lies at the edge of the period: of n that are evenly spaced there are n - 1 gaps.
        """
        rate = 0.0
        for told in self._told.values():
            span_s = told[-1].at_s - told[0].at_s
            if span_s < self._period_s:
                return None
            rate += max(0, told[-1].begun - told[0].begun - 1) / span_s
        return rate if self._told else None

    def first_tokens(self) -> tuple[int, float]:
        """(first tokens that came over the period, their TTFT in all in seconds)."""
        rises = [
            (told[-1].first_tokens - told[0].first_tokens, told[-1].ttft_ns - told[0].ttft_ns)
            for told in self._told.values()
        ]
        return sum(count for count, _ in rises), sum(ttft_ns for _, ttft_ns in rises) / 1e9


def telling(workers: Iterable[Telling]) -> list[Telling]:
    """Those that are there and have told of requests. What a lost one said last would stay true for ever."""
    return [worker for worker in workers if not worker.lost and "answers" in worker.live]


def waiting_long(workers: Iterable[Telling]) -> tuple[int, float]:
    """(requests that have waited for their first token longer than they may, how long in all in seconds)."""
    answers = [worker.live["answers"] for worker in telling(workers)]
    return sum(one["waiting_long"] for one in answers), sum(one["waiting_long_ns"] for one in answers) / 1e9


def quiet_since_s(workers: Iterable[Telling]) -> tuple[float, float] | None:
    """(since when the target owes every answer and none was heard, until when that is known), on the controller's clock.

    None where nothing is in flight. What one worker hears is an answer of the same target for all of them, and none knows
    more than its last report.
    """
    present = telling(workers)
    owed_s = [
        w.live_s - w.live["answers"]["owed_ns"] / 1e9 for w in present if w.live["answers"]["owed_ns"] is not None
    ]
    if not owed_s:
        return None
    heard_s = [
        w.live_s - w.live["answers"]["heard_ago_ns"] / 1e9
        for w in present
        if w.live["answers"]["heard_ago_ns"] is not None
    ]
    return max(min(owed_s), *heard_s, float("-inf")), min(worker.live_s for worker in present)
