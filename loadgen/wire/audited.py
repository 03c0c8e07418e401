"""For an audited run: keeps the raw bytes of each answer beside its exchange, to find where its events lie in the stream.

Only then: without an audit the plain handler is used, and nothing here runs. On the hot path it costs one append a read;
the rest is done when the answer has ended.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np

from loadgen.audit_trail import UNKNOWN_PEER, HeardAnswer
from loadgen.wire.exchange import Exchange
from loadgen.wire.handler import StampingHandler
from loadgen.wire.http_framing import body_ends_in_answer
from loadgen.wire.transport import WireTransport


class _Reads:
    """The reads of one answer so far."""

    __slots__ = ("before", "data", "wire")

    def __init__(self, wire: WireTransport) -> None:
        self.wire = wire
        self.before: int | None = None
        """Bytes that the connection had brought before the answer."""
        self.data: list[bytes] = []

    def add(self, data: bytes) -> None:
        if self.before is None:
            self.before = self.wire.received_bytes - len(data)
        self.data.append(data)


class AnswerLog:
    """The answers of one client. Lives on its event loop; `finished` is emptied by the hub."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """`addresses`: of the target, as the capturing process was given them."""
        self._addresses = list(addresses)
        self.open: dict[Exchange, _Reads] = {}
        self.finished: collections.deque[HeardAnswer] = collections.deque()

    def finish(self, exchange: Exchange, ends: Sequence[int]) -> None:
        """The answer has ended; `ends`: bytes of its body up to the end of each token-carrying event."""
        reads = self.open.pop(exchange, None)
        if reads is None or reads.before is None or not ends:
            return
        found = body_ends_in_answer(b"".join(reads.data), ends)
        if found is None:
            return
        address = str(reads.wire.get_extra_info("peername")[0]).partition("%")[0]
        answer = HeardAnswer(
            level=exchange.level,
            index=exchange.index,
            port=int(reads.wire.get_extra_info("sockname")[1]),
            peer=self._addresses.index(address) if address in self._addresses else UNKNOWN_PEER,
            ends=(found + reads.before).astype(np.int64),
        )
        self.finished.append(answer)

    def take(self) -> list[HeardAnswer]:
        """Every answer that ended since the last call. In the hub."""
        taken = []
        while self.finished:
            taken.append(self.finished.popleft())
        return taken


class AuditedHandler(StampingHandler):
    """Keeps every read of the open request's answer in the log."""

    def __init__(self, log: AnswerLog, **options: Any) -> None:
        super().__init__(**options)
        self._log = log

    def set_response_params(self, **params: Any) -> None:
        super().set_response_params(**params)
        if self._exchange is not None and isinstance(self._wire, WireTransport):
            self._log.open[self._exchange] = _Reads(self._wire)

    def data_received(self, data: bytes) -> None:
        # Empty: aiohttp resumes its parser. Unknown: the request has ended.
        if data and self._exchange is not None and (reads := self._log.open.get(self._exchange)) is not None:
            reads.add(data)
        super().data_received(data)
