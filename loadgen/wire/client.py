"""Sends one request and collects its answer: takes a body and an `Exchange`, fills the exchange, never parses it.

On the hot path a read costs its system call, aiohttp's parser and one append; no task wakes up before the stream ends.
Whatever the target does ends in the exchange as data; only cancellation by the run leaves `Client.send` as an exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import ssl
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import EMPTY_PAYLOAD
from gevent import monkey
from yarl import URL

from loadgen import __version__, record
from loadgen.wire.exchange import Endpoint, Exchange
from loadgen.wire.transport import StampedWrites, WireTransport

PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_WATCH_S = 0.05
_OPEN_S = 5.0
# How long a body may take to end after [DONE], so that its connection can be used again.
_GRACE_NS = 50_000_000
_MOST_HEADER_BYTES = 65_536
# aiohttp pauses a stream that holds twice this; one read is far smaller and is drained at once, so it never pauses.
_READ_BUFFER_BYTES = 1 << 20

_EXCHANGE: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each phase of a request may last, in nanoseconds; None is no limit."""

    connect_ns: int | None = None
    first_byte_ns: int | None = None
    first_token_ns: int | None = None
    between_tokens_ns: int | None = None
    total_ns: int | None = None

    def exceeded(self, exchange: Exchange, now_ns: int) -> tuple[str, str] | None:
        """(status, reason) of the limit that an open exchange has exceeded, if any."""
        if exchange.done_ns is not None:
            # The answer is complete; a server that keeps the connection open must not keep the user.
            if now_ns - exchange.done_ns > _GRACE_NS:
                return record.TRUNCATED, "the body did not end after [DONE]"
            return None
        began_ns = exchange.dispatched_ns
        exchange.note_sent()
        if _over(self.total_ns, began_ns, now_ns):
            return record.TIMEOUT_TOTAL, f"the request took longer than {_seconds(self.total_ns)}"
        if exchange.connected_ns is None:
            if _over(self.connect_ns, began_ns, now_ns):
                return record.TIMEOUT_CONNECT, f"no connection within {_seconds(self.connect_ns)}"
        elif exchange.sent_ns is None:
            pass
        elif exchange.response_started_ns is None and _over(self.first_byte_ns, exchange.sent_ns, now_ns):
            return record.TIMEOUT_FIRST_BYTE, f"no byte of the answer within {_seconds(self.first_byte_ns)}"
        elif exchange.last_event_ns is None:
            if _over(self.first_token_ns, exchange.sent_ns, now_ns):
                return record.TIMEOUT_FIRST_TOKEN, f"no token within {_seconds(self.first_token_ns)}"
        elif _over(self.between_tokens_ns, exchange.last_event_ns, now_ns):
            return record.TIMEOUT_BETWEEN_TOKENS, f"the stream stalled for {_seconds(self.between_tokens_ns)}"
        return None


def _over(limit_ns: int | None, since_ns: int, now_ns: int) -> bool:
    return limit_ns is not None and now_ns - since_ns > limit_ns


def _seconds(limit_ns: int | None) -> str:
    return f"{(limit_ns or 0) / 1e9:g} s"


class StampingHandler(ResponseHandler):
    """aiohttp's response handler that moves the payload of every read into the exchange, with the read's arrival."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._exchange: Exchange | None = None
        self._stream: aiohttp.StreamReader | None = None
        self._requests = 0
        # Kept beside `transport`, which aiohttp forgets as soon as a `Connection: close` answer is complete.
        self._wire: WireTransport | StampedWrites

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = transport if isinstance(transport, WireTransport) else StampedWrites(transport)
        super().connection_made(self._wire)  # type: ignore[arg-type]

    def set_response_params(self, **params: Any) -> None:
        # aiohttp calls this once a request, in the request's own task, before it sends.
        self._exchange = exchange = _EXCHANGE.get()
        self._stream = None
        self._wire.sent_ns = None
        if isinstance(self._wire, WireTransport):
            self._wire.kernel_stamps = True  # of this request, until a read shows otherwise
        if exchange is not None:
            exchange.connected_ns = time.monotonic_ns()
            exchange.reused = self._requests > 0
            exchange.wire = self._wire
        self._requests += 1
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None or not data:  # no data: aiohttp resumes its parser, nothing arrived
            super().data_received(data)
            return
        wire = self._wire
        exchange.kernel_stamps = wire.kernel_stamps
        if wire.kernel_stamps:
            arrival_ns = wire.arrival_ns
            exchange.read_delay_ns = max(exchange.read_delay_ns, wire.read_ns - arrival_ns)
        else:
            arrival_ns = time.monotonic_ns()
        exchange.last_arrival_ns = arrival_ns
        if exchange.response_started_ns is None:
            exchange.response_started_ns = arrival_ns
            exchange.note_sent()
        super().data_received(data)
        stream = self._stream
        if stream is None:
            if self._payload is EMPTY_PAYLOAD:  # of a 1xx: the answer is still to come
                exchange.response_started_ns = None
                return
            stream = self._stream = self._payload
            if stream is None:
                return
        if stream.exception() is None:
            while chunk := stream.read_nowait():
                exchange.add(chunk, arrival_ns)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
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

    def connection_lost(self, exc: BaseException | None) -> None:
        exchange = self._exchange
        if isinstance(exc, OSError) and exchange is not None and exchange.finished_ns is None:
            # aiohttp tells the reader of the body only that it is incomplete, whatever ended it.
            exchange.failure = exchange.failure or (record.TRANSPORT, _words(exc))
        super().connection_lost(exc)


def _original_socket(address: Any) -> socket.socket:
    # Under plain `locust -f` the socket module is gevent's; its sockets do not work on this loop's thread.
    family, kind, protocol = address[:3]
    sock: socket.socket = monkey.get_original("socket", "socket")(family, kind, protocol)
    sock.setblocking(False)
    return sock


class Client:
    """One target, one session, any number of requests at once. Lives on one event loop."""

    def __init__(
        self,
        base_url: str,
        endpoint: Endpoint,
        *,
        limits: Limits | None = None,
        api_key: str | None = None,
        insecure: bool = False,
    ) -> None:
        """`base_url` without `/v1`. Must be called on a running loop (aiohttp's rule)."""
        self._url = URL(base_url.rstrip("/") + PATHS[endpoint])
        self._limits = limits or Limits()
        self.open: dict[Exchange, asyncio.Task[Any]] = {}
        """Requests under way."""
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",  # a compressed stream arrives in lumps
            "User-Agent": f"llm-loadgen/{__version__}",
        }
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._session = _session(headers, insecure=insecure, keep_alive=True)
        self._fresh_session = _session(headers, insecure=insecure, keep_alive=False)
        self._watch = asyncio.get_running_loop().create_task(self._watch_limits())

    async def close(self) -> None:
        """Closes every connection; requests under way must have ended or been cancelled before."""
        self._watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watch
        await self._session.close()
        await self._fresh_session.close()

    async def open_connection(self) -> None:
        """Leaves an open connection in the pool, so that a first request is not also a connect. A failure is no news:
        the request that follows will meet it again, and records it."""
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with asyncio.timeout(_OPEN_S), self._session.get(self._url.with_path("/health")) as response:
                await response.read()

    async def send(self, body: bytes, exchange: Exchange, request_id: str) -> None:
        """Sends `body` and waits for the end of the answer, all of it noted in `exchange`.

        Raises only `asyncio.CancelledError`, and that after the exchange has been completed as cancelled.
        """
        task = asyncio.current_task()
        assert task is not None
        _EXCHANGE.set(exchange)
        exchange.request_bytes = len(body)
        self.open[exchange] = task
        try:
            await self._attempt(self._session, body, exchange, request_id)
            if exchange.failure is not None and self._closed_before_use(exchange):
                exchange.start_again()
                await self._attempt(self._fresh_session, body, exchange, request_id)
        except asyncio.CancelledError:
            if exchange.failure is not None and task.uncancel() == 0:  # a limit was exceeded: see _watch_limits
                return
            exchange.failure = exchange.failure or (record.CANCELLED, "the run ended before the answer was complete")
            raise
        finally:
            del self.open[exchange]
            exchange.note_sent()
            exchange.wire = None
            if exchange.finished_ns is None:
                exchange.finished_ns = exchange.done_ns
            if exchange.finished_ns is None:
                ended_by_target = exchange.failure is None and exchange.last_arrival_ns is not None
                exchange.finished_ns = exchange.last_arrival_ns if ended_by_target else time.monotonic_ns()

    @staticmethod
    def _closed_before_use(exchange: Exchange) -> bool:
        """Whether the target had closed a kept-alive connection at its end, which is no failure (RFC 9112, 9.3.1)."""
        assert exchange.failure is not None
        lost = exchange.failure[0] == record.TRANSPORT and exchange.response_started_ns is None
        return lost and exchange.reused and exchange.retries == 0

    async def _attempt(self, session: aiohttp.ClientSession, body: bytes, exchange: Exchange, request_id: str) -> None:
        try:
            await self._exchange(session, body, exchange, request_id)
        except Exception as error:  # whatever it is, it is data: the user goes on with its next request
            exchange.failure = exchange.failure or _failure(error)

    async def _exchange(self, session: aiohttp.ClientSession, body: bytes, exchange: Exchange, request_id: str) -> None:
        async with session.post(
            self._url, data=body, headers={"X-Request-Id": request_id}, allow_redirects=False
        ) as response:
            exchange.http_status = response.status
            exchange.content_type = response.content_type
            encoding = response.headers.get("Content-Encoding", "identity")
            if encoding.lower() != "identity":
                exchange.failure = (
                    record.PROTOCOL,
                    f"the answer is compressed ({encoding}) although identity was asked",
                )
            stream = response.content
            try:
                error = stream.exception()
                if error is not None:  # wait_eof() would wait for ever
                    raise error
                await stream.wait_eof()
                exchange.body_complete = True
            except aiohttp.ClientPayloadError:
                pass  # the body is not complete: a truncated answer, unless connection_lost knows better

    async def _watch_limits(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            now_ns = time.monotonic_ns()
            for exchange, task in list(self.open.items()):
                if exchange.failure is None:
                    exchange.failure = self._limits.exceeded(exchange, now_ns)
                    if exchange.failure is not None:
                        task.cancel()


def _session(headers: dict[str, str], *, insecure: bool, keep_alive: bool) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=0, socket_factory=_original_socket, ttl_dns_cache=300, ssl=not insecure, force_close=not keep_alive
    )
    # The only way to have aiohttp use a handler of ours; the pinned minor version keeps it true.
    connector._factory = functools.partial(StampingHandler, loop=asyncio.get_running_loop())  # type: ignore[assignment]
    return aiohttp.ClientSession(
        connector=connector,
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=_READ_BUFFER_BYTES,
        max_line_size=_MOST_HEADER_BYTES,
        max_field_size=_MOST_HEADER_BYTES,
    )


def _failure(error: Exception) -> tuple[str, str]:
    """(status, reason) of an exception that aiohttp raised."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLError):
        return record.CONNECT, "the server's certificate was refused"
    if isinstance(error, aiohttp.ClientConnectorError):
        return record.CONNECT, _words(error.os_error)
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.InvalidURL | HttpProcessingError):
        return record.PROTOCOL, f"the answer is not HTTP: {type(error).__name__}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return record.TRANSPORT, "the server closed the connection before it answered"
    if isinstance(error, OSError):
        return record.TRANSPORT, _words(error)
    return record.PROTOCOL, type(error).__name__


def _words(error: BaseException) -> str:
    """An error in words that are equal for equal errors: no address, no port, no object id."""
    number = error.errno if isinstance(error, OSError) else None
    return f"{type(error).__name__}: {os.strerror(number)}" if number else type(error).__name__
