"""Sends one request and collects its answer: takes a body and an `Exchange`, fills the exchange, never parses it.

On the hot path a read costs its system call, aiohttp's parser and one append; no task wakes up before the stream ends.
Whatever the target does ends in the exchange as data; only cancellation by the run leaves `Client.send` as an exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from loadgen import __version__, record
from loadgen.route import Route
from loadgen.wire.audited import AnswerLog
from loadgen.wire.exchange import Endpoint, Exchange
from loadgen.wire.failures import failure, forget_frames
from loadgen.wire.handler import EXCHANGE
from loadgen.wire.pool import Reuse, WireConnector

PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_WATCH_S = 0.05
_TURNS = 4
_OPEN_S = 5.0
# How long a body may take to end after [DONE], so that its connection can be used again.
_GRACE_NS = 50_000_000
# How old what is known of an open answer may be: for the live count of tokens, and if nothing comes any more.
_STALE_NS = 250_000_000
_QUIET_NS = 50_000_000
_MOST_HEADER_BYTES = 65_536
# What a request that asks for no stream accepts, in place of one.
_WHOLE = {"Accept": "application/json"}
# aiohttp pauses a stream that holds twice this; one read is far smaller and is drained at once, so it never pauses.
_READ_BUFFER_BYTES = 1 << 20


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
        began_ns, sent_ns = exchange.dispatched_ns, exchange.sent_ns
        if sent_ns is None and exchange.wire is not None:
            sent_ns = exchange.wire.sent_ns  # not noted yet: a long body may still be on its way
        if _over(self.total_ns, began_ns, now_ns):
            return record.TIMEOUT_TOTAL, f"the request took longer than {_seconds(self.total_ns)}"
        if exchange.connected_ns is None:
            if _over(self.connect_ns, began_ns, now_ns):
                return record.TIMEOUT_CONNECT, f"no connection within {_seconds(self.connect_ns)}"
        elif sent_ns is None:
            pass
        elif exchange.response_started_ns is None and _over(self.first_byte_ns, sent_ns, now_ns):
            return record.TIMEOUT_FIRST_BYTE, f"no byte of the answer within {_seconds(self.first_byte_ns)}"
        elif not exchange.streamed:
            pass  # its tokens come together, with the end
        elif exchange.last_event_ns is None:
            if _over(self.first_token_ns, sent_ns, now_ns):
                return record.TIMEOUT_FIRST_TOKEN, f"no token within {_seconds(self.first_token_ns)}"
        elif _over(self.between_tokens_ns, exchange.last_event_ns, now_ns):
            return record.TIMEOUT_BETWEEN_TOKENS, f"the stream stalled for {_seconds(self.between_tokens_ns)}"
        return None


def _over(limit_ns: int | None, since_ns: int, now_ns: int) -> bool:
    return limit_ns is not None and now_ns - since_ns > limit_ns


def _seconds(limit_ns: int | None) -> str:
    return f"{(limit_ns or 0) / 1e9:g} s"


class Client:
    """One target, one session, any number of requests at once. Lives on one event loop."""

    def __init__(
        self,
        base_url: str,
        endpoint: Endpoint,
        *,
        limits: Limits | None = None,
        api_key: str | None = None,
        route: Route | None = None,
        reuse: Reuse | None = None,
        answers: AnswerLog | None = None,
    ) -> None:
        """`base_url` without `/v1`; `answers`: of an audited run. Must be called on a running loop (aiohttp's rule)."""
        route, self._reuse = route or Route(), reuse or Reuse()
        self._url = URL(base_url.rstrip("/") + PATHS[endpoint])
        self._limits = limits or Limits()
        self.open: dict[Exchange, asyncio.Task[Any]] = {}
        """Requests under way."""
        headers = CIMultiDict(
            {
                "Content-Type": "application/json",
                "Accept": "text/event-stream",
                "Accept-Encoding": "identity",  # a compressed stream arrives in lumps
                "User-Agent": f"llm-loadgen/{__version__}",
            }
        )
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        headers.update(route.sent_headers())
        # A proxy that forwards reads the request's own headers; one that tunnels, those of CONNECT.
        self._tunnel_headers = route.proxy_headers() if self._url.scheme == "https" else None
        if route.proxy is not None and self._tunnel_headers is None:
            headers.update(route.proxy_headers())
        self._connector = WireConnector(route, self._reuse, answers)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            headers=headers,
            proxy=route.proxy,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=_READ_BUFFER_BYTES,
            max_line_size=_MOST_HEADER_BYTES,
            max_field_size=_MOST_HEADER_BYTES,
        )
        self._watch = asyncio.get_running_loop().create_task(self._watch_limits())

    async def close(self) -> None:
        """Closes every connection; requests under way must have ended or been cancelled before."""
        self._watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watch
        await self._session.close()

    async def open_connection(self) -> None:
        """Leaves an open connection in the pool, so that a first request is not also a connect. A failure is no news:
        the request that follows will meet it again, and records it. Nothing is opened where each request opens its own."""
        if self._reuse.per_request:
            return
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            url = self._url.with_path("/health")
            async with (
                asyncio.timeout(_OPEN_S),
                self._session.get(url, proxy_headers=self._tunnel_headers) as response,
            ):
                await response.read()

    def let_go(self, conversation: tuple[int, int]) -> None:
        """A conversation, (level, session), is over: its connection may serve others."""
        self._connector.let_go(conversation)

    async def send(self, body: bytes, exchange: Exchange, request_id: str) -> None:
        """Sends `body` and waits for the end of the answer, all of it noted in `exchange`.

        Raises only `asyncio.CancelledError`, and that after the exchange has been completed as cancelled.
        """
        task = asyncio.current_task()
        assert task is not None
        EXCHANGE.set(exchange)
        exchange.request_bytes = len(body)
        self.open[exchange] = task
        try:
            await self._attempt(body, exchange, request_id)
            if exchange.failure is not None and self._closed_before_use(exchange):
                exchange.start_again()
                await self._attempt(body, exchange, request_id)
        except asyncio.CancelledError:
            if exchange.failure is not None and task.uncancel() == 0:  # a limit was exceeded: see _watch_limits
                return
            exchange.failure = exchange.failure or (record.CANCELLED, "the run ended before the answer was complete")
            raise
        finally:
            del self.open[exchange]
            exchange.note_wire()
            exchange.wire = None
            exchange.note_chunks(time.monotonic_ns())
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

    async def _attempt(self, body: bytes, exchange: Exchange, request_id: str) -> None:
        try:
            await self._exchange(body, exchange, request_id)
        except Exception as error:  # whatever it is, it is data: the user goes on with its next request
            exchange.failure = exchange.failure or failure(error, connected=exchange.connected_ns is not None)
            forget_frames(error)

    async def _exchange(self, body: bytes, exchange: Exchange, request_id: str) -> None:
        async with self._session.post(
            self._url,
            data=body,
            headers={"X-Request-Id": request_id} if exchange.streamed else _WHOLE | {"X-Request-Id": request_id},
            proxy_headers=self._tunnel_headers,
            allow_redirects=False,
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
            except aiohttp.ClientPayloadError as incomplete:
                # The body is not complete: a truncated answer, unless connection_lost knows better.
                forget_frames(incomplete)

    def _exceeded(self, exchange: Exchange, now_ns: int) -> tuple[str, str] | None:
        """As `Limits.exceeded`. What arrives is not looked at one by one, which would be dear, but now and then here."""
        latest_ns = exchange.last_arrival_ns
        if latest_ns is not None and (now_ns - latest_ns > _QUIET_NS or now_ns - exchange.noted_ns > _STALE_NS):
            exchange.note_chunks(now_ns)
        exceeded = self._limits.exceeded(exchange, now_ns)
        if exceeded is not None and exchange.note_chunks(now_ns):  # what came meanwhile may excuse it
            exceeded = self._limits.exceeded(exchange, now_ns)
        return exceeded

    async def _watch_limits(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            now_ns = time.monotonic_ns()
            # If the loop was late, what has arrived meanwhile may still lie unread, or read by a task that waits its turn.
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            for exchange, task in list(self.open.items()):
                exceeded = self._exceeded(exchange, now_ns)
                if exceeded is not None and not task.cancelling():
                    # A failure that was seen before says more, but does not always end the request.
                    exchange.failure = exchange.failure or exceeded
                    task.cancel()
