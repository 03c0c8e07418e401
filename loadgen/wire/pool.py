"""The connections of one client: how each is opened, how long it is kept, how many there may be. No limit is hidden."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import aiohttp
from aiohttp.client_proto import ResponseHandler
from gevent import monkey

from loadgen.route import Route
from loadgen.wire.audited import AnswerLog, AuditedHandler
from loadgen.wire.handler import EXCHANGE, StampingHandler
from loadgen.wire.kept import Conversation, KeptConnections, conversation_of


@dataclass(frozen=True, slots=True)
class Reuse:
    """What becomes of a connection when its request has ended."""

    per_request: bool = False
    """Whether every request gets a connection of its own, with `Connection: close`."""
    recycle_requests: int | None = None
    """Close it after so many requests."""
    recycle_age_ns: int | None = None
    """Close it after the first request that ends when it has stood so long."""
    max_connections: int | None = None
    """How many may be open at once; a request that finds none free waits before it is sent."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class WireConnector(aiohttp.TCPConnector):
    """aiohttp's pool with handlers that stamp. It has no limit of its own, nor closes what is idle."""

    def __init__(self, route: Route, reuse: Reuse, answers: AnswerLog | None = None) -> None:
        super().__init__(
            limit=reuse.max_connections or 0,
            force_close=reuse.per_request,
            keepalive_timeout=None,
            socket_factory=_original_socket,
            ttl_dns_cache=300,
            ssl=route.ssl_context(),
        )
        # The only way to have aiohttp use a handler of ours; the pinned minor version keeps it true.
        self._factory = functools.partial(  # type: ignore[assignment]
            StampingHandler if answers is None else functools.partial(AuditedHandler, answers),
            loop=asyncio.get_running_loop(),
            recycle_requests=reuse.recycle_requests,
            recycle_age_ns=reuse.recycle_age_ns,
        )

        # Where connections are few, one that waits for its conversation would be one less for the others.
        self._kept = KeptConnections() if not reuse.max_connections else None

    async def _get(self, key: Any, traces: Any) -> Any:
        exchange = EXCHANGE.get()
        if exchange is not None and exchange.retries:
            return None  # it was sent on a connection that had been closed; the others may be too
        if self._kept is not None and (conversation := conversation_of(exchange)) is not None:
            self._kept.offer_first(conversation, self._conns)
        return await super()._get(key, traces)

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        super()._release(key, protocol, should_close=should_close)
        if self._kept is not None and (conversation := conversation_of(protocol.exchange)) is not None:
            self._kept.set_aside(conversation, key, protocol, self._conns)

    def let_go(self, conversation: Conversation) -> None:
        """A conversation is over."""
        if self._kept is not None and not self.closed:
            self._kept.let_go(conversation, self._conns)

    def _close(self, **options: Any) -> Any:
        if self._kept is not None:
            self._kept.let_all_go(self._conns)
        return super()._close(**options)

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> ResponseHandler:
        # What a proxy answers to CONNECT is not the target's answer.
        token = EXCHANGE.set(None)
        try:
            return await super()._create_connection(req, traces, timeout)
        finally:
            EXCHANGE.reset(token)


def _original_socket(address: Any) -> socket.socket:
    # Under plain `locust -f` the socket module is gevent's; its sockets do not work on this loop's thread.
    family, kind, protocol = address[:3]
    sock: socket.socket = monkey.get_original("socket", "socket")(family, kind, protocol)
    sock.setblocking(False)
    return sock
