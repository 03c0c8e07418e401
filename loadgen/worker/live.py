"""What a worker has done so far, for the live display and /metrics: cumulative counts and histograms, never a result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from loadgen.metrics.live import LiveLatencies
from loadgen.record import RequestRecord, is_failure
from loadgen.worker.generator import Generator
from loadgen.worker.live_answers import LiveAnswers


class LiveSends:
    """What finished requests tell of the worker itself, since it was last asked; None where none of them told."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._send_lag_ns: int | None = None
        self._send_gap_ns: int | None = None
        self._events = self._coalesced = 0

    def add(self, records: Sequence[RequestRecord]) -> None:
        for request in records:
            if request.scheduled_ns is not None:
                lag_ns = request.dispatched_ns - request.scheduled_ns - (request.waited_ns or 0)
                self._send_lag_ns = max(self._send_lag_ns or 0, lag_ns)
            if request.send_gap_ns is not None:
                self._send_gap_ns = max(self._send_gap_ns or 0, request.send_gap_ns)
            if not is_failure(request.status):
                self._events += len(request.arrivals_ns)
                self._coalesced += int(np.count_nonzero(request.coalesced))

    def take(self) -> dict[str, Any]:
        """The longest send lag and send gap in nanoseconds, and the share of events that were coalesced."""
        share = self._coalesced / self._events if self._events else None
        taken = {"send_lag_ns": self._send_lag_ns, "send_gap_ns": self._send_gap_ns, "coalesced_share": share}
        self._begin()
        return taken


class LiveCounts:
    """Cumulative over the run. In the hub."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()
        self._input_tokens = 0
        self._output_tokens = 0
        self._reported_output_tokens = 0
        self._latencies = LiveLatencies()
        self._sends = LiveSends()
        self._answers = LiveAnswers()

    def add(self, records: Sequence[RequestRecord]) -> None:
        """Counts finished requests; only ok ones enter a latency."""
        for request in records:
            self._requests[request.status] += 1
            self._input_tokens += request.input_tokens or 0
            events = len(request.arrivals_ns)
            self._output_tokens += events if request.output_tokens is None else request.output_tokens
        self._latencies.add(records)
        self._sends.add(records)
        self._answers.add(records)

    def output_tokens(self, load: Generator) -> int:
        """Tokens so far, those of open requests included; never goes down."""
        # Even if a failed request brought less than it seemed to.
        self._reported_output_tokens = max(self._reported_output_tokens, self._output_tokens + load.events_in_flight())
        return self._reported_output_tokens

    def snapshot(self, load: Generator) -> dict[str, Any]:
        """Everything so far, with the tokens of open requests; plain data for a message.

        `client` is what the worker's own health was since the last snapshot; `begun` and `answers` are what the guards look at,
        where there are any.
        """
        guarded: dict[str, Any] = {}
        if load.plan.guarded:
            # A copy, since the hub asks while the loop goes on.
            answers = self._answers.snapshot(list(load.client.open), time.monotonic_ns(), load.plan.long_ttft_ns)
            guarded = {"begun": sum(self._requests.values()) + load.begun_and_not_taken(), "answers": answers}
        return {
            "requests": dict(self._requests),
            "input_tokens": self._input_tokens,
            "output_tokens": self.output_tokens(load),
            "in_flight": len(load.client.open),
            "client": {**load.health.take_live(), **self._sends.take()},
            "histograms": self._latencies.snapshot(),
            **guarded,
        }
