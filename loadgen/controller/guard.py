"""Stops a run that goes too far: takes what the workers and the server told so far, raises where a limit of `safety` is passed.

Pure but for the clock, which is passed in; it sends nothing. What is under way when it stops is drained like that of a run that
was interrupted.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection

from loadgen.controller.look_back import LookBack, Telling, quiet_since_s, waiting_long
from loadgen.errors import SafetyStopError, UsageError
from loadgen.record import OK, is_failure
from loadgen.scenario.safety import RATE_MARGIN, Safety
from loadgen.server_metrics.sample import Buckets, ServerSample

FEWEST = 10
"""Requests that must have ended over the period before a share of them, or a mean, says anything."""
BLIND_S = 15.0
"""Histograms of the server are read every 10 s: for so long beyond the period there may be none."""
_LOOK_S = 0.5


class Guard:
    """Looks back over `safety.period`."""

    def __init__(self, safety: Safety, *, open_loop: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """`open_loop`: whether a schedule, and not users, says when requests are sent."""
        self._safety = safety
        self._open_loop = open_loop
        self._clock = clock
        self._looked_s = -_LOOK_S
        self._counts: deque[tuple[float, int, int]] = deque()
        """(when, requests that ended ok, failed ones) since the run began."""
        self._begun = LookBack(safety.period)
        self._tokens = LookBack(safety.period)
        """Of the level that is loaded."""
        self._level: int | None = None
        """The one that is loaded, and since when."""
        self._loaded_s = 0.0
        self._ttft: deque[tuple[float, float | None, Buckets]] = deque()
        """(when, the server's process, its histogram of TTFT)."""
        self._sample: ServerSample | None = None
        """The last that told one."""
        self._stopped = False

    def look(self, workers: Collection[Telling], sample: ServerSample | None, level: int | None) -> None:
        """`sample`: the server's last scrape; `level`: the one that is under load, None in a drain and between levels.
        Raises SafetyStopError, once."""
        now_s = self._clock()
        if level != self._level:
            self._level, self._loaded_s = level, now_s
            self._tokens.clear()
        if self._stopped or now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        self._look_at_errors(workers, now_s)
        self._look_at_rate(workers)
        self._look_at_server(sample, now_s)
        if level is not None:
            self._look_for_stall(workers)
            self._look_at_ttft(workers, now_s)

    def _look_at_errors(self, workers: Collection[Telling], now_s: float) -> None:
        statuses: Counter[str] = Counter()
        for worker in workers:
            statuses.update(worker.live.get("requests", {}))
        ended_badly = sum(count for status, count in statuses.items() if is_failure(status))
        self._counts.append((now_s, statuses[OK], ended_badly))
        # One entry at or before the period's beginning stays: from there the counts rose.
        while len(self._counts) > 1 and self._counts[1][0] <= now_s - self._safety.period:
            self._counts.popleft()
        (began_s, ok_before, failed_before), (now_s, ok, failed) = self._counts[0], self._counts[-1]
        rose, errors = (ok + failed) - (ok_before + failed_before), failed - failed_before
        limit = self._safety.stop_on_error_rate
        if limit is not None and rose >= FEWEST and errors / rose > limit:
            self._stop(
                f"{errors} of {rose} requests failed over the last {now_s - began_s:.0f} s, more than "
                f"safety.stop_on_error_rate, {limit * 100:.4g} %",
                "see the error reasons in the report; the server may be overloaded, or gone",
            )

    def _look_at_rate(self, workers: Collection[Telling]) -> None:
        cap = self._safety.max_request_rate
        if cap is None:
            return
        self._begun.take(workers)
        rate = self._begun.begun_rate()
        if rate is None or rate <= cap * RATE_MARGIN:
            return
        self._stop(
            f"{rate:.3g} requests a second were sent over the last {self._safety.period:g} s, more than "
            f"safety.max_request_rate, {cap:g}",
            "arrivals that had to wait are sent together when they may: give load.overflow drop, a higher cap or a longer "
            "safety.period"
            if self._open_loop
            else "users ask again at once: give load.think_time, fewer users, or an open loop's load.request_rate",
        )

    def _look_for_stall(self, workers: Collection[Telling]) -> None:
        limit, quiet = self._safety.stop_on_stall, quiet_since_s(workers)
        if limit is None or quiet is None:
            return
        since_s, known_s = quiet
        quiet_s = known_s - max(since_s, self._loaded_s)
        if quiet_s < limit:
            return
        in_flight = sum(worker.live.get("in_flight", 0) for worker in workers if not worker.lost)
        self._stop(
            f"with {_count(in_flight, 'request')} in flight the target has sent no token and no answer for {quiet_s:.1f} s; "
            f"safety.stop_on_stall is {limit:g} s",
            "it hangs, or what lies before it does: look at its log and at what it runs before it is loaded again",
        )

    def _look_at_ttft(self, workers: Collection[Telling], now_s: float) -> None:
        limit = self._safety.stop_on_ttft
        if limit is None:
            return
        self._tokens.take(workers)
        came, came_s = self._tokens.first_tokens()
        waiting, waiting_s = waiting_long(workers)
        count, span_s = came + waiting, min(self._safety.period, now_s - self._loaded_s)
        if count < FEWEST and (not count or span_s < self._safety.period):
            return
        mean_s = (came_s + waiting_s) / count
        if mean_s > limit:
            self._stop(
                f"the mean TTFT was {mean_s:.3g} s over the last {span_s:.0f} s, longer than safety.stop_on_ttft, {limit:g} s: "
                f"{_count(came, 'first token')} came, and {_count(waiting, 'request')} had waited longer than that without one",
                "look at the server's queue and at what lies before it (gateway, proxy), then load it less",
            )

    def _look_at_server(self, sample: ServerSample | None, now_s: float) -> None:
        limit = self._safety.stop_on_server_ttft
        if limit is None:
            return
        if sample is None or sample is self._sample or "ttft" not in sample.histograms:
            self._look_whether_blind(now_s)
            return
        self._sample = sample
        if self._ttft and self._ttft[-1][1] != sample.started_s:
            self._ttft.clear()  # it began anew, and its counts with it
        self._ttft.append((now_s, sample.started_s, sample.histograms["ttft"]))
        while len(self._ttft) > 1 and self._ttft[1][0] <= now_s - self._safety.period:
            self._ttft.popleft()
        earlier, later = self._ttft[0][2], self._ttft[-1][2]
        count = later.counts[-1] - earlier.counts[-1]
        mean_s = (later.sum_s - earlier.sum_s) / count if count >= FEWEST else 0.0
        if mean_s > limit:
            self._stop(
                f"the server's own mean TTFT, of everybody's requests, was {mean_s:.3g} s over the last "
                f"{now_s - self._ttft[0][0]:.0f} s, longer than safety.stop_on_server_ttft, {limit:g} s",
                "load it less: others wait as long",
            )

    def _look_whether_blind(self, now_s: float) -> None:
        """A server whose metrics stay away while it is loaded is one that nobody watches."""
        if self._level is None:
            return
        blind_s = now_s - max(self._loaded_s, self._ttft[-1][0] if self._ttft else 0.0)
        if blind_s > self._safety.period + BLIND_S:
            self._stop(
                f"the server's own metrics have told no TTFT for {blind_s:.0f} s, and safety.stop_on_server_ttft rests on them",
                "see why its /metrics does not answer any more, or give safety.stop_on_ttft, which rests on what is measured here",
            )

    def _stop(self, why: str, hint: str) -> None:
        self._stopped = True
        raise SafetyStopError(f"The run stops: {why}.", hint=hint)


def check_server_ttft(safety: Safety, url: str | None, first: ServerSample | None) -> None:
    """Raises UsageError where the server's metrics cannot tell what a stop wants to know. `first`: the first scrape of `url`,
    after a request of ours; None where none came."""
    if safety.stop_on_server_ttft is None:
        return
    if first is None:
        why = f"{url} has not answered yet"
    elif first.error is not None:
        why = first.error
    elif "ttft" not in first.histograms:
        why = f"{url} has no histogram of it"
    else:
        return
    raise UsageError(
        f"safety.stop_on_server_ttft is {safety.stop_on_server_ttft:g} s, and the server's metrics tell no TTFT: {why}.",
        hint="give the address of the server's metrics (--server-metrics URL), or --stop-on-ttft, which looks at what is "
        "measured here",
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
