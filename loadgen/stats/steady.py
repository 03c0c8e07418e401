"""Takes what workers tell of a running level, says whether it has settled and at what pace it runs; never reads a clock.

Online and cheap: the controller asks about four times a second until the window may open. Whether the window itself was
stationary is judged afterwards, from the records, by `loadgen.stats.stationarity`.
"""

from __future__ import annotations

import collections
import math
from array import array
from dataclasses import dataclass

import numpy as np

from loadgen.stats.backlog import Offered, backlog
from loadgen.stats.columns import Flags, Floats, Ints
from loadgen.stats.digits import digits
from loadgen.stats.percentile import nearest_rank
from loadgen.stats.progress import BIN_NS, Progress

MOST_S = 120.0
BATCH = 5
"""Observations that MSER-5 takes the mean of: five bins of 100 ms, or five requests."""
FEWEST_BATCHES = 10
"""Fewer say nothing of a trend (Hoad, Robinson & Davies 2010 begin with as many)."""
FLAT = 0.01
"""A series whose standard deviation is at most this share of its mean has nothing left to settle."""
FEWEST_GENERATIONS = 2.0
"""The steady part must hold so many times the mean time of a request: one to compare with the other."""
MOST_CHANGE = 0.03
"""Of throughput, between the two halves of the steady part."""
_NO_TTFT = -1
_LEAST_GROWING_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the window may open, and why."""

    settled: bool
    measure: bool
    """Open the window now: it has settled, or waiting longer is pointless (then `settled` is False)."""
    reason: str
    """A clause without a full stop."""
    since_s: float | None
    """Seconds after all users were there at which the steady part began; None while it has not been found."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast requests ended in the steady part, for `loadgen.stats.window`; None where none ended ok."""

    completed_rate: float | None
    """Ok requests a second."""
    e2e_p95_s: float | None
    n: int
    """Requests behind it."""


def mser5_truncation(values: Floats) -> int | None:
    """How many of the first `values` to leave out as start-up; None when more must be seen to tell.

    MSER-5: of the means of five consecutive observations Y_1 … Y_n leave out the d that minimises
    Σ_{i>d} (Y_i − mean_{i>d})² / (n − d)², the marginal standard error of the mean of what is kept (White, "An
    effective truncation heuristic for bias reduction in simulation output", Simulation 69(6), 1997; White, Cobb &
    Spratt, WSC 2000). Where that d is not in the first half, n is too small to tell (Franklin & White, WSC 2008); the
    last five means are no candidates, since a few that happen to be alike would win (Hoad, Robinson & Davies,
    J. Oper. Res. Soc. 61, 2010). What varies by less than `FLAT` is kept in any case: without noise an exponential
    approach would never end.
    """
    n = values.size // BATCH
    if n < FEWEST_BATCHES:
        return None
    means = values[: n * BATCH].reshape(n, BATCH).mean(axis=1)
    kept = np.arange(n, 0, -1)
    sums = np.cumsum((means - means.mean())[::-1])[::-1]
    squares = np.cumsum(((means - means.mean()) ** 2)[::-1])[::-1]
    variance = np.maximum(squares / kept - (sums / kept) ** 2, 0.0)
    candidates = n - BATCH + 1
    flat = variance <= (FLAT * (means.mean() + sums / kept)) ** 2
    d = int(np.argmin((variance / kept)[:candidates]))
    if flat[:candidates].any():
        d = min(d, int(np.argmax(flat)))
    return d * BATCH if d < n / 2 else None


class SettleDetector:
    """Watches one level from the instant when all its users are there. One method call a report, one a question.

    Settled means: every user has finished a request that it began in this level, or a conversation's worth of them (before
    that, the start itself is what is seen: empty queues, users in lockstep, first turns only); MSER-5 finds the start-up of both token throughput and TTFT in the first
    half of what was seen; what is left holds two generations, a generation being the mean time of a request; and
    throughput is about the same in both its halves, cut at whole generations: a swing within them hides from MSER-5
    what changes from one to the next.
    """

    def __init__(
        self,
        *,
        workers: int,
        users: int,
        began_ns: int,
        all_there_ns: int,
        most_s: float = MOST_S,
        arrivals: Offered | None = None,
        requests_each: int = 1,
    ) -> None:
        """`began_ns`: requests dispatched earlier belong to the level before. `most_s`: when to measure regardless.
        `requests_each`: how many every user must have finished.

        `arrivals`: of an open loop, whose `users` are one a worker. Instants are of the controller's monotonic clock.
        """
        self._arrivals = arrivals
        self._workers = workers
        self._users = users
        self._began_ns = began_ns
        self._all_there_ns = all_there_ns
        self._most_s = most_s
        self._first_bin = -(-all_there_ns // BIN_NS)
        self._tokens: list[float] = []
        self._told: dict[int, int] = {}
        self._requests_each = requests_each
        self._done: collections.Counter[tuple[int, int]] = collections.Counter()
        self._first_e2e_ns: dict[tuple[int, int], int] = {}
        self._finished_ns, self._e2e_ns, self._ttft_ns = array("q"), array("q"), array("q")

    def update(self, worker: int, progress: Progress) -> None:
        """Takes one worker's next report. What belongs to an earlier level, or was told before, is left out."""
        known = self._told.get(worker, self._first_bin)
        for number, tokens in enumerate(progress.tokens, progress.first_bin):
            if number >= known:
                place = number - self._first_bin
                self._tokens.extend([0.0] * (place + 1 - len(self._tokens)))
                self._tokens[place] += tokens
        self._told[worker] = max(known, progress.first_bin + len(progress.tokens))
        for user, dispatched_ns, finished_ns, ttft_ns in zip(
            progress.user, progress.dispatched_ns, progress.finished_ns, progress.ttft_ns, strict=True
        ):
            if dispatched_ns >= self._began_ns:
                e2e_ns = finished_ns - dispatched_ns
                self._done[worker, user] += 1
                if ttft_ns is not None:
                    self._first_e2e_ns.setdefault((worker, user), e2e_ns)
                self._finished_ns.append(finished_ns)
                self._e2e_ns.append(e2e_ns)
                self._ttft_ns.append(_NO_TTFT if ttft_ns is None else ttft_ns)

    def settled(self, now_ns: int) -> Verdict:
        """Whether the level has settled by what has been told so far."""
        since_ns, reason = self._steady_since()
        watched_s = (now_ns - self._all_there_ns) / 1e9
        if since_ns is not None:
            return Verdict(True, True, reason, (since_ns - self._all_there_ns) / 1e9)
        if grown := self._grown():
            return Verdict(False, True, grown, None)
        if watched_s >= self._most_s:
            return Verdict(False, True, f"not settled after {self._most_s:g} s: {reason}", None)
        return Verdict(False, False, reason, None)

    def pace(self) -> Pace:
        """How fast requests end, in the steady part if there is one, else in the second half of what was seen."""
        horizon_ns = self._horizon_ns()
        since_ns, _ = self._steady_since()
        if since_ns is None:
            since_ns = (self._all_there_ns + horizon_ns) // 2
        finished_ns, e2e_ns, ttft_ns = self._ended()
        ok = ttft_ns != _NO_TTFT
        counted = ok & (finished_ns < horizon_ns)
        if not (counted & (finished_ns >= since_ns)).any():
            since_ns = self._all_there_ns
        n = int((counted & (finished_ns >= since_ns)).sum())
        if n == 0:
            return Pace(None, None, 0)
        # The long requests of a short time are those still running. Only every user's first one is complete, so it
        # bounds the estimate from below.
        firsts_ns = np.fromiter(self._first_e2e_ns.values(), np.int64)
        p95_ns = max(
            value for values in (firsts_ns, e2e_ns[ok]) if (value := nearest_rank(values, [95])[0]) is not None
        )
        return Pace(n / ((horizon_ns - since_ns) / 1e9), p95_ns / 1e9, n)

    def _steady_since(self) -> tuple[int | None, str]:
        """(when the steady part began, why that is so), or (None, what it waits for)."""
        bins = (self._horizon_ns() // BIN_NS) - self._first_bin
        if bins < FEWEST_BATCHES * BATCH:
            return None, f"the users have been there for {max(0, bins) / 10:.1f} s"
        done = sum(count >= self._requests_each for count in self._done.values())
        if done < self._users:
            who = "users have" if self._arrivals is None else "workers have"
            what = (
                "a request" if self._requests_each == 1 else f"{self._requests_each} requests, a conversation's worth"
            )
            return None, f"{done} of {self._users} {who} finished {what}"
        finished_ns, e2e_ns, ttft_ns = self._ended()
        inside: Flags = finished_ns >= self._all_there_ns
        ok = ttft_ns != _NO_TTFT
        if not ok.any():
            return self._all_there_ns, "every request so far has failed"
        tokens_from = mser5_truncation(np.array(self._tokens[:bins]))
        if tokens_from is None:
            return None, "throughput is still changing (MSER-5)"
        since_ns = max(self._all_there_ns, (self._first_bin + tokens_from) * BIN_NS)
        measured: Ints = np.flatnonzero(inside & ok)
        if measured.size >= FEWEST_BATCHES * BATCH:
            ttft_from = mser5_truncation(ttft_ns[measured].astype(np.float64))
            if ttft_from is None:
                return None, "TTFT is still changing (MSER-5)"
            since_ns = max(since_ns, int(finished_ns[measured[ttft_from]]) if ttft_from else since_ns)
        generation_s = float(e2e_ns[ok].mean()) / 1e9
        steady_s = (self._horizon_ns() - since_ns) / 1e9
        if steady_s < FEWEST_GENERATIONS * generation_s:
            needed_s = FEWEST_GENERATIONS * generation_s
            return None, f"steady for {steady_s:.1f} s of the {needed_s:.1f} s that two requests one after another take"
        half_s = int(steady_s / generation_s / 2) * generation_s
        change = self._change(bins, half_s)
        if abs(change) > self._most_change(half_s, int((finished_ns[ok] >= since_ns).sum()) / steady_s):
            direction = "risen" if change > 0 else "fallen"
            return None, f"throughput has {direction} by {abs(change):.0%} within {steady_s:.1f} s"
        return since_ns, f"steady for {steady_s:.1f} s, {steady_s / generation_s:.1f} requests long (MSER-5)"

    def _most_change(self, half_s: float, completed_rate: float) -> float:
        """Of an open loop the two halves may differ as much as their numbers of arrivals do by chance (two sigma)."""
        if self._arrivals is None:
            return MOST_CHANGE
        n = max(1.0, completed_rate * half_s)
        return max(MOST_CHANGE, 2 * self._arrivals.gap_variation * math.sqrt(2 / n), 1 / n)

    def _grown(self) -> str | None:
        """Of an open loop: that more is offered than completed. It will not settle, however long one waits."""
        horizon_ns = self._horizon_ns()
        watched_ns = horizon_ns - self._all_there_ns
        if (
            self._arrivals is None
            or not self._arrivals.all_sent
            or watched_ns < _LEAST_GROWING_NS
            or not len(self._e2e_ns)
        ):
            return None
        # Filling up is growth too: the first third must have seen requests through.
        if watched_ns / 3 < np.mean(self._e2e_ns):
            return None
        finished_ns, _, _ = self._ended()
        span = (self._all_there_ns, horizon_ns)
        seen = backlog(self._arrivals.before(horizon_ns), finished_ns, span, self._arrivals.gap_variation)
        if not seen.grew:
            return None
        rate = 1e9 / watched_ns
        return (
            f"more is offered than completed: {digits(seen.arrived * rate, 3)} against {digits(seen.ended * rate, 3)} requests/s, and "
            f"{seen.at_end} are under way after {watched_ns / 1e9:.0f} s"
        )

    def _change(self, end: int, half_s: float) -> float:
        """Throughput of the last `half_s` seconds before bin `end` against the half before, as a share of their mean."""
        arrived = np.concatenate(([0.0], np.cumsum(self._tokens[:end])))
        half = half_s * 1e9 / BIN_NS
        before, between, after = np.interp([end - 2 * half, end - half, end], np.arange(end + 1), arrived)
        mean = float(after - before) / 2
        return float(after - 2 * between + before) / mean if mean > 0 else 0.0

    def _horizon_ns(self) -> int:
        """Until when every worker has told its tokens."""
        if len(self._told) < self._workers:
            return self._all_there_ns
        return max(self._all_there_ns, min(self._told.values()) * BIN_NS)

    def _ended(self) -> tuple[Ints, Ints, Ints]:
        """Of every finished request of the level, in order: when it finished, how long it took, its TTFT."""
        columns = np.array([self._finished_ns, self._e2e_ns, self._ttft_ns], np.int64)
        finished_ns, e2e_ns, ttft_ns = columns[:, np.lexsort(columns[::-1])]
        return finished_ns, e2e_ns, ttft_ns
