"""Stops a run that goes too far: takes what the workers and the server told so far, raises where a limit of `safety` is passed.

Pure but for the clock, which is passed in; it sends nothing. What is under way when it stops is drained like that of a run that
was interrupted.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from loadgen.errors import SafetyStopError
from loadgen.record import OK, is_failure
from loadgen.scenario.safety import Safety
from loadgen.server_metrics.sample import Buckets, ServerSample

FEWEST = 10
"""Requests that must have ended over the period before a share of them says anything."""
_LOOK_S = 0.5


class Guard:
    """Looks back over `safety.period`."""

    def __init__(self, safety: Safety, clock: Callable[[], float] = time.monotonic) -> None:
        self._safety = safety
        self._clock = clock
        self._looked_s = -_LOOK_S
        self._counts: deque[tuple[float, int, int]] = deque()
        """(when, requests that ended ok, failed ones) since the run began."""
        self._ttft: deque[tuple[float, float | None, Buckets]] = deque()
        """(when, the server's process, its histogram of TTFT)."""
        self._stopped = False

    def look(self, live: Iterable[Mapping[str, Any]], sample: ServerSample | None) -> None:
        """`live`: what each worker last told; `sample`: the server's last scrape. Raises SafetyStopError, once."""
        now_s = self._clock()
        if self._stopped or now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        statuses: Counter[str] = Counter()
        for one in live:
            statuses.update(one.get("requests", {}))
        failed = sum(count for status, count in statuses.items() if is_failure(status))
        self._counts.append((now_s, statuses[OK], failed))
        # One entry at or before the period's beginning stays: from there the counts rose.
        while len(self._counts) > 1 and self._counts[1][0] <= now_s - self._safety.period:
            self._counts.popleft()
        self._look_at_requests()
        self._look_at_server(sample, now_s)

    def _look_at_requests(self) -> None:
        safety = self._safety
        (began_s, ok_before, failed_before), (now_s, ok, failed) = self._counts[0], self._counts[-1]
        rose, errors = (ok + failed) - (ok_before + failed_before), failed - failed_before
        if rose < FEWEST:
            return
        limit = safety.stop_on_error_rate
        if limit is not None and errors / rose > limit:
            self._stop(
                f"{errors} of {rose} requests failed over the last {now_s - began_s:.0f} s, more than "
                f"safety.stop_on_error_rate, {limit:.3g}",
                "see the error reasons in the report; the server may be overloaded, or gone",
            )
        rate = safety.max_request_rate
        whole = now_s - began_s >= safety.period * 0.9
        if rate is not None and whole and rose / (now_s - began_s) > rate * 1.1:
            self._stop(
                f"{rose / (now_s - began_s):.3g} requests a second ended over the last {now_s - began_s:.0f} s, more than "
                f"safety.max_request_rate, {rate:g}",
                "users ask again at once: give load.think_time, or an open loop's load.request_rate",
            )

    def _look_at_server(self, sample: ServerSample | None, now_s: float) -> None:
        limit = self._safety.stop_on_server_ttft
        if limit is None or sample is None or "ttft" not in sample.histograms:
            return
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

    def _stop(self, why: str, hint: str) -> None:
        self._stopped = True
        raise SafetyStopError(f"The run stops: {why}.", hint=hint)
