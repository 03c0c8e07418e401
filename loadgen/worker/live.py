"""What a worker has done so far, for the live display and /metrics: cumulative counts and histograms, never a result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from loadgen.metrics.live import LiveLatencies
from loadgen.record import RequestRecord
from loadgen.worker.generator import Generator


class LiveCounts:
    """Cumulative over the run. In the hub."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()
        self._input_tokens = 0
        self._output_tokens = 0
        self._reported_output_tokens = 0
        self._latencies = LiveLatencies()

    def add(self, records: Sequence[RequestRecord]) -> None:
        """Counts finished requests; only ok ones enter a latency."""
        for request in records:
            self._requests[request.status] += 1
            self._input_tokens += request.input_tokens or 0
            events = len(request.arrivals_ns)
            self._output_tokens += events if request.output_tokens is None else request.output_tokens
        self._latencies.add(records)

    def output_tokens(self, load: Generator) -> int:
        """Tokens so far, those of open requests included; never goes down."""
        # Even if a failed request brought less than it seemed to.
        self._reported_output_tokens = max(self._reported_output_tokens, self._output_tokens + load.events_in_flight())
        return self._reported_output_tokens

    def snapshot(self, load: Generator) -> dict[str, Any]:
        """Everything so far, with the tokens of open requests; plain data for a message."""
        return {
            "requests": dict(self._requests),
            "input_tokens": self._input_tokens,
            "output_tokens": self.output_tokens(load),
            "in_flight": len(load.client.open),
            "loop_lag_ns": load.health.latest_lag_ns,
            "histograms": self._latencies.snapshot(),
        }
