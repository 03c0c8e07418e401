"""aiohttp's end of one connection: moves the payload of every read into the request's exchange, with its arrival."""

from __future__ import annotations

import asyncio
import re
import time
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import EMPTY_PAYLOAD

from loadgen import record
from loadgen.wire.chunked import ChunkedBody
from loadgen.wire.exchange import Exchange
from loadgen.wire.failures import forget_frames, words
from loadgen.wire.stamped_writes import StampedWrites
from loadgen.wire.transport import WireTransport

# Not one that follows an interim answer in the same read, nor one with a body that is coded once more.
_CHUNKED_ANSWER = re.compile(
    rb"HTTP/1\.1 200 .*\r\ntransfer-encoding:[ \t]*chunked[ \t]*(?:\r\n|$)", re.DOTALL | re.IGNORECASE
)

EXCHANGE: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
"""The request that the current task sends; None while a connection is opened for it."""


class StampingHandler(ResponseHandler):
    """aiohttp's response handler with stamps: the wire's own, also where TLS lies between."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        recycle_requests: int | None = None,
        recycle_age_ns: int | None = None,
    ) -> None:
        """The connection is closed after so many requests, and after the first that ends when it is so old."""
        super().__init__(loop)
        self._exchange: Exchange | None = None
        self._stream: aiohttp.StreamReader | None = None
        self._chunked: ChunkedBody | None = None
        """Set while the body's chunks are followed here."""
        self._used = False
        self._requests = 0
        self._recycle_requests = recycle_requests
        self._recycle_age_ns = recycle_age_ns
        # Kept beside `transport`, which aiohttp forgets as soon as a `Connection: close` answer is complete.
        self._wire: WireTransport | StampedWrites

    @property
    def exchange(self) -> Exchange | None:
        """The latest request that it served."""
        return self._exchange

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made_ns = time.monotonic_ns()
        wire = transport.get_extra_info("wire")
        self._wire = StampedWrites(transport) if wire is None else wire
        super().connection_made(transport if wire is not None else self._wire)  # type: ignore[arg-type]

    def set_response_params(self, **params: Any) -> None:
        # aiohttp calls this once a request, in the request's own task, before it sends.
        self._exchange = exchange = EXCHANGE.get()
        self._stream = self._chunked = None
        wire = self._wire
        wire.sent_ns = wire.sent_done_ns = None
        if isinstance(wire, WireTransport):
            wire.kernel_stamps = True  # of this request, until a read shows otherwise
            wire.longest_delay_ns = 0
        if exchange is not None:
            exchange.connected_ns = time.monotonic_ns()
            exchange.reused = self._used
            exchange.wire = wire
            self._requests += 1
        self._used = True
        super().set_response_params(**params)

    @property
    def should_close(self) -> bool:
        return self._is_worn() or super().should_close

    def _is_worn(self) -> bool:
        requests, age_ns = self._recycle_requests, self._recycle_age_ns
        worn = requests is not None and self._requests >= requests
        return worn or (age_ns is not None and time.monotonic_ns() - self._made_ns >= age_ns)

    def data_received(self, data: bytes) -> None:
        exchange, body = self._exchange, self._chunked
        if exchange is None or not data:  # no data: aiohttp resumes its parser, nothing arrived
            if self.exception() is None:  # else it has failed, and would fail again for every piece that is drained
                super().data_received(data)
        elif body is None:
            arrival_ns = self._note_read(exchange)
            begins = self._stream is None
            self._parse(data, exchange, arrival_ns)
            if begins:
                self._follow_chunks(data)
        elif (payload := body.whole(data)) is not None:
            exchange.add(payload, self._wire.arrival_ns)
        else:
            arrival_ns = self._note_read(exchange)
            before, payloads, after = body.take(data)
            if before:
                self._parse(before, exchange, arrival_ns)
            for payload in payloads:
                exchange.add(payload, arrival_ns)
            if after:
                self._parse(after, exchange, arrival_ns)

    def _note_read(self, exchange: Exchange) -> int:
        """Notes an arrival; gives it. Reads of whole chunks need not, since the end of an answer never is one."""
        wire = self._wire
        if not isinstance(wire, WireTransport):
            wire.arrival_ns = time.monotonic_ns()
        exchange.last_arrival_ns = wire.arrival_ns
        if exchange.response_started_ns is None:
            exchange.response_started_ns = wire.arrival_ns
        exchange.note_wire()
        return wire.arrival_ns

    def _parse(self, data: bytes, exchange: Exchange, arrival_ns: int) -> None:
        """Has aiohttp parse what the read brought, and moves the payload on."""
        super().data_received(data)
        stream = self._stream
        if stream is None:
            if self._payload is EMPTY_PAYLOAD:  # of a 1xx: the answer is still to come
                exchange.response_started_ns = None
            return
        if stream.exception() is None:
            while chunk := stream.read_nowait():
                exchange.add(chunk, arrival_ns)
        if stream.is_eof():
            exchange.wire = None  # it is free now, and may serve another request before this one's task goes on

    def feed_data(self, data: Any, size: int = 0) -> None:
        # aiohttp gives the head and the body of each message. The first that is no 1xx is the answer; what a server
        # says behind it, perhaps in the same read, is not.
        super().feed_data(data, size)
        message, payload = data
        if self._stream is None and message.code >= 200:
            self._stream = payload

    def _follow_chunks(self, data: bytes) -> None:
        """From the read that brought the whole head of a chunked answer, whole chunks need no parser any more."""
        head, end, rest = data.partition(b"\r\n\r\n")
        ours = isinstance(self._wire, WireTransport) and self._stream is not None
        if ours and end and _CHUNKED_ANSWER.match(head) is not None:
            self._chunked = ChunkedBody()
            self._chunked.take(rest)  # parsed already

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
        # Raised by the task that writes, whose frames hold the handler that keeps it.
        for error in (exc, *cause):
            forget_frames(error)
        # aiohttp tells only whoever waits for headers of an answer that is not HTTP any more; the body's reader would
        # wait for ever.
        exchange, stream = self._exchange, self._stream
        if exchange is not None and exchange.finished_ns is None and isinstance(exc, HttpProcessingError):
            exchange.failure = exchange.failure or (record.PROTOCOL, "the body's framing is broken")
        if stream is not None and not stream.is_eof() and stream.exception() is None:
            while chunk := stream.read_nowait():
                if exchange is not None and exchange.last_arrival_ns is not None:
                    exchange.add(chunk, exchange.last_arrival_ns)
            stream.set_exception(exc)

    def eof_received(self) -> None:
        super().eof_received()
        if self._is_sending() and self.transport is not None:
            # The answer is whole as it is, and the rest of the request need not be waited for.
            self.transport.abort()

    def close(self) -> None:
        # A transport that is closed sends first what is left. Nobody waits for the answer to it any more, and a server
        # that does not read would keep socket and bytes for ever.
        if self._is_sending():
            self.abort()
            return
        self._give_up()
        super().close()

    def _is_sending(self) -> bool:
        return self.transport is not None and self._wire.get_write_buffer_size() > 0

    def abort(self) -> None:
        self._give_up()
        super().abort()

    def _give_up(self) -> None:
        self._buffer.clear()  # a head that nobody will read: its body holds its handler
        # TLS sends its farewell when it is closed, and that is not the request.
        if self._exchange is not None and self._exchange.wire is self._wire:
            self._exchange.note_wire()

    def connection_lost(self, exc: BaseException | None) -> None:
        exchange = self._exchange
        if isinstance(exc, OSError) and exchange is not None and exchange.finished_ns is None:
            # aiohttp tells the reader of the body only that it is incomplete, whatever ended it.
            exchange.failure = exchange.failure or (record.TRANSPORT, words(exc))
        super().connection_lost(exc)
        # The stream holds its handler, and no garbage is collected while a level is measured.
        self._exchange = self._stream = None
