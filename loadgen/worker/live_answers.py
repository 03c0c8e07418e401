"""What a worker hears of the target, told with each live report for the guards of `safety`; never a result. In the hub.

Ages and counts only, since the controller's clock is another: it takes ages from the instant at which a report came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from loadgen import record
from loadgen.record import RequestRecord
from loadgen.wire.exchange import Exchange

_NOT_ANSWERED = frozenset(
    {
        record.TIMEOUT_CONNECT,
        record.TIMEOUT_FIRST_BYTE,
        record.TIMEOUT_FIRST_TOKEN,
        record.TIMEOUT_BETWEEN_TOKENS,
        record.TIMEOUT_TOTAL,
        record.CONNECT,
        record.TRANSPORT,
        record.TRUNCATED,
        *record.UNDECIDED,
    }
)
"""Ends that the target did not bring about by an answer; what tokens came before still came."""
# A user waits up to a second after failures in a row: its next request goes on with the wait of the one that timed out.
_GAP_NS = 2_000_000_000


class LiveAnswers:
    """When the target was last heard, since when it owes an answer, and how long first tokens took; cumulative over the run."""

    def __init__(self) -> None:
        self._heard_ns: int | None = None
        """When the last token, or the end of an answer, came."""
        self._asked_ns: int | None = None
        """When the first of the requests was sent that have ended without an answer since the target was last heard."""
        self._asked_until_ns = 0
        self._first_tokens = 0
        self._ttft_ns = 0
        self._counted: set[tuple[int, int]] = set()
        """(level, index) of open requests whose first token is counted."""

    def add(self, records: Sequence[RequestRecord]) -> None:
        """Takes requests that have ended."""
        for request in records:
            if request.last_token_ns is not None:
                self._hear(request.last_token_ns)
            if request.status not in _NOT_ANSWERED:
                self._hear(request.finished_ns)
            key = (request.level, request.index)
            if key in self._counted:
                self._counted.discard(key)
            elif request.streamed and request.first_token_ns is not None and request.sent_ns is not None:
                self._count(request.first_token_ns - request.sent_ns)
        for request in records:
            if request.status in _NOT_ANSWERED - record.UNDECIDED and request.finished_ns > (self._heard_ns or 0):
                self._asked_ns = self._since(request.dispatched_ns)
                self._asked_until_ns = max(self._asked_until_ns, request.finished_ns)

    def _hear(self, instant_ns: int) -> None:
        if self._heard_ns is None or instant_ns > self._heard_ns:
            self._heard_ns, self._asked_ns, self._asked_until_ns = instant_ns, None, 0

    def _count(self, ttft_ns: int) -> None:
        self._first_tokens += 1
        self._ttft_ns += ttft_ns

    def _since(self, dispatched_ns: int) -> int:
        """Since when an answer is owed, if a request was sent then: no earlier where nothing was in flight in between."""
        if self._asked_ns is None or dispatched_ns > self._asked_until_ns + _GAP_NS:
            return dispatched_ns
        return min(self._asked_ns, dispatched_ns)

    def snapshot(self, open_requests: Iterable[Exchange], now_ns: int, long_ns: int | None) -> dict[str, Any]:
        """For a report, in nanoseconds:

        `heard_ago_ns`: since the target was last heard, None before that; `owed_ns`: since it owes an answer, None where no
        request is open; `first_tokens`, `ttft_ns`: how many have come, and their TTFT in all; `waiting_long`,
        `waiting_long_ns`: requests that have waited longer than `long_ns` for theirs, and how long in all.
        """
        first_ns: int | None = None
        waiting = waiting_ns = 0
        for exchange in open_requests:
            begun_ns, sent_ns = exchange.dispatched_ns, _sent_ns(exchange)
            first_ns = begun_ns if first_ns is None else min(first_ns, begun_ns)
            if exchange.last_event_ns is not None:
                self._hear(exchange.last_event_ns)
            if sent_ns is None:
                continue
            if exchange.first_token_ns is not None:
                key = (exchange.level, exchange.index)
                if key not in self._counted:
                    self._counted.add(key)
                    self._count(exchange.first_token_ns - sent_ns)
            elif long_ns is not None and exchange.streamed and now_ns - sent_ns > long_ns:
                waiting, waiting_ns = waiting + 1, waiting_ns + now_ns - sent_ns
        return {
            "heard_ago_ns": None if self._heard_ns is None else max(0, now_ns - self._heard_ns),
            "owed_ns": None if first_ns is None else max(0, now_ns - self._since(first_ns)),
            "first_tokens": self._first_tokens,
            "ttft_ns": self._ttft_ns,
            "waiting_long": waiting,
            "waiting_long_ns": waiting_ns,
        }


def _sent_ns(exchange: Exchange) -> int | None:
    wire = exchange.wire  # read once: the loop takes it away when the request ends
    return exchange.sent_ns if exchange.sent_ns is not None or wire is None else wire.sent_ns
