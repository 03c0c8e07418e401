"""Takes a soak's records and scrapes in any portions, gives one row of figures for each of its windows; pure, forgets records.

A request belongs to the window in which it ended, its tokens to those in which they arrived. A window's latencies are kept
until it is sealed, then their percentiles; so memory grows by a row a window, however many requests there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadgen.record import CENSORED, CONNECT, OK, RequestRecord, is_failure
from loadgen.server_metrics.sample import ServerSample
from loadgen.stats.columns import MISSING, Floats, columns
from loadgen.stats.latencies import FROM_SCHEDULE, longest_gap_ns, per_request_ns
from loadgen.stats.percentile import nearest_rank

SEAL_AFTER_NS = 15_000_000_000
"""A window is sealed so long after its end: records of remote workers may come a few seconds late."""
LATENCIES = ("ttft", "tpot", "e2el", "longest_gap")
PERCENTS = (50, 95)
RESTARTED = "the server began anew"
NO_ANSWER = "no request succeeded"
REFUSED = "connections were refused"


def _no_durations() -> dict[str, list[Floats]] | None:
    return {name: [] for name in LATENCIES}


@dataclass(slots=True, eq=False)
class _Window:
    statuses: Counter[str] = field(default_factory=Counter)
    tokens: float = 0.0
    durations_ns: dict[str, list[Floats]] | None = field(default_factory=_no_durations)
    """None once it is sealed."""
    sealed: dict[str, float | None] = field(default_factory=dict)
    late: int = 0
    kv_usage: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    memory_bytes: int | None = None
    restarts: int = 0

    def seal(self) -> None:
        if self.durations_ns is None:
            return
        for name, parts in self.durations_ns.items():
            found = nearest_rank(np.concatenate(parts) if parts else np.empty(0), PERCENTS)
            for percent, value in zip(PERCENTS, found, strict=True):
                self.sealed[f"p{percent}_{name}_ms"] = None if value is None else value / 1e6
        self.durations_ns = None
        self.kv_usage, self.waiting = _mean_of(self.kv_usage), _mean_of(self.waiting)


@dataclass(frozen=True, slots=True)
class Rest:
    """What of a soak is in no whole window."""

    duration_s: float
    """Time at its end."""
    requests: Mapping[str, int]
    """By status, those that ended after the last whole window, in its drain too."""


class SoakWindows:
    """The windows of one level."""

    def __init__(self, start_ns: int, window_ns: int, *, open_loop: bool) -> None:
        """In the controller's clock. In an open loop latencies count from the schedule."""
        self.start_ns = start_ns
        self.window_ns = window_ns
        self._open_loop = open_loop
        self._windows: list[_Window] = []
        self._unsealed = 0
        """The first window that is not sealed."""
        self._censored: dict[tuple[int, int], RequestRecord] = {}
        """Given up, and written again if they end after all."""
        self._last_sample: ServerSample | None = None
        self.newest_ns = start_ns
        """The latest end of a request so far."""
        self.longest_ns = 0
        """The longest time from a send to its end so far: tokens of a window may be told so late."""

    def add(self, records: Sequence[RequestRecord]) -> None:
        """Records in the controller's clock."""
        for record in records:
            self._censored.pop((record.level, record.index), None)
        self._censored.update({(one.level, one.index): one for one in records if one.status == CENSORED})
        self._fold([one for one in records if one.status != CENSORED])

    def _fold(self, records: Sequence[RequestRecord]) -> None:
        records = [one for one in records if one.finished_ns >= self.start_ns]
        if not records:
            return
        c = columns(records)
        self.newest_ns = max(self.newest_ns, int(c.finished_ns.max()))
        self.longest_ns = max(self.longest_ns, int((c.finished_ns - c.on_the_wire_ns)[c.ok].max(initial=0)))
        self._seal(self.newest_ns - SEAL_AFTER_NS)
        durations = {**per_request_ns(c), "longest_gap": longest_gap_ns(c)}
        if self._open_loop:
            durations |= {name: durations[scheduled] for name, scheduled in FROM_SCHEDULE.items()}
        where = (c.finished_ns - self.start_ns) // self.window_ns
        for number in np.unique(where).tolist():
            window, inside = self._window(number), where == number
            window.statuses.update(records[i].status for i in np.flatnonzero(inside).tolist())
            if window.durations_ns is None:
                window.late += int((inside & c.ok).sum())
                continue
            for name in LATENCIES:
                of_window = durations[name][inside]
                window.durations_ns[name].append(of_window[~np.isnan(of_window)])
        arrived = (c.arrivals_ns >= self.start_ns) & ~c.failed[c.request] & (c.arrivals_ns != MISSING)
        tokens = np.bincount((c.arrivals_ns[arrived] - self.start_ns) // self.window_ns, c.tokens[arrived])
        for number in np.flatnonzero(tokens).tolist():
            self._window(number).tokens += float(tokens[number])

    def add_samples(self, samples: Iterable[ServerSample]) -> None:
        """Scrapes of the server, in their order."""
        for sample in samples:
            if sample.error is not None or not sample.kind or sample.at_ns < self.start_ns:
                continue
            window = self._window((sample.at_ns - self.start_ns) // self.window_ns)
            for name, values in (("kv_usage", window.kv_usage), ("waiting", window.waiting)):
                if name in sample.gauges:
                    values.append(sample.gauges[name])
            used = [gpu.memory_used_bytes for gpu in sample.gpus if gpu.memory_used_bytes is not None]
            memory = sample.gauges.get("resident_bytes", sum(used) if used else None)
            if memory is not None:
                window.memory_bytes = max(int(memory), window.memory_bytes or 0)
            window.restarts += self._last_sample is not None and _began_anew(self._last_sample, sample)
            self._last_sample = sample

    def _window(self, number: int) -> _Window:
        while len(self._windows) <= number:
            self._windows.append(_Window())
        return self._windows[number]

    def _seal(self, before_ns: int) -> None:
        whole = min((before_ns - self.start_ns) // self.window_ns, len(self._windows))
        for number in range(self._unsealed, whole):
            self._windows[number].seal()
        self._unsealed = max(self._unsealed, whole)

    def ready(self, now_ns: int) -> int:
        """How many windows may be told by now: records of all requests that ended in them, or brought tokens, have come."""
        told_ns = now_ns - max(SEAL_AFTER_NS, self.longest_ns)
        return max(0, (told_ns - self.start_ns) // self.window_ns)

    def rows(self, first: int, beyond: int) -> list[dict[str, Any]]:
        """Rows of the windows `first` … `beyond` − 1, which are sealed by that."""
        self._window(max(0, beyond - 1))
        self._seal(self.start_ns + beyond * self.window_ns)
        return [self._row(number) for number in range(first, beyond)]

    def finish(self, end_ns: int) -> list[dict[str, Any]]:
        """Rows of all whole windows until `end_ns`, with the tokens of requests that were given up."""
        given_up, self._censored = list(self._censored.values()), {}
        self._fold(given_up)
        return self.rows(0, max(0, end_ns - self.start_ns) // self.window_ns)

    def rest(self, whole: int, end_ns: int) -> Rest:
        """What came after so many `whole` windows of a soak that ended at `end_ns`; call it after `finish`."""
        statuses: Counter[str] = Counter()
        for window in self._windows[whole:]:
            statuses.update(window.statuses)
        return Rest(max(0, end_ns - self.start_ns - whole * self.window_ns) / 1e9, dict(statuses))

    def _row(self, number: int) -> dict[str, Any]:
        window, window_s = self._windows[number], self.window_ns / 1e9
        statuses = window.statuses
        failed = sum(count for status, count in statuses.items() if is_failure(status))
        decided = statuses[OK] + failed
        mark = RESTARTED if window.restarts else REFUSED if statuses[CONNECT] else None
        mark = NO_ANSWER if failed and not statuses[OK] else mark
        return {
            "window": number,
            "start_s": number * window_s,
            "window_s": window_s,
            "requests": {OK: statuses[OK], **{k: n for k, n in sorted(statuses.items()) if k != OK and n}},
            "error_rate": failed / decided if decided else None,
            "request_throughput": statuses[OK] / window_s,
            "output_throughput": window.tokens / window_s,
            **window.sealed,
            "kv_usage": _only(window.kv_usage),
            "waiting": _only(window.waiting),
            "server_memory_bytes": window.memory_bytes,
            "server_restarts": window.restarts,
            "late_requests": window.late,
            "mark": mark,
        }


def _mean_of(values: list[float]) -> list[float]:
    return [sum(values) / len(values)] if values else []


def _only(values: list[float]) -> float | None:
    return values[0] if values else None


def _began_anew(earlier: ServerSample, later: ServerSample) -> bool:
    if earlier.started_s is not None and later.started_s is not None:
        return earlier.started_s != later.started_s
    return any(later.counters.get(name, value) < value for name, value in earlier.counters.items())
