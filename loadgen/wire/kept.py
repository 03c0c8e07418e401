"""Connections that conversations keep while they think: set aside from aiohttp's pool, so that nobody else takes them.

A conversation that keeps its connection stays with the server that has its keys and values, where a balancer in between
chooses one for each connection.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

from aiohttp.client_proto import ResponseHandler

from loadgen.wire.exchange import Exchange

Conversation = tuple[int, int]
"""(level, session)."""
Idle = Mapping[Any, collections.deque[tuple[ResponseHandler, float]]]
"""aiohttp's own pool: by destination the idle connections, each with the time since when."""


def conversation_of(exchange: Exchange | None) -> Conversation | None:
    """Which conversation a request is a turn of, if any."""
    return None if exchange is None or exchange.session is None else (exchange.level, exchange.session)


class KeptConnections:
    """At most one a conversation. Takes connections out of aiohttp's pool and puts them back."""

    def __init__(self) -> None:
        self._kept: dict[Conversation, tuple[Any, ResponseHandler, float]] = {}

    def set_aside(self, conversation: Conversation, key: Any, handler: ResponseHandler, idle: Idle) -> None:
        """Keeps the connection that was just put into the pool, if it was."""
        pooled = idle.get(key)
        if pooled and pooled[-1][0] is handler:
            _, since_s = pooled.pop()
            self._kept[conversation] = (key, handler, since_s)

    def offer_first(self, conversation: Conversation, idle: Idle) -> None:
        """Puts a conversation's connection where the pool looks first."""
        if (kept := self._kept.pop(conversation, None)) is not None:
            key, handler, since_s = kept
            idle[key].appendleft((handler, since_s))

    def let_go(self, conversation: Conversation, idle: Idle) -> None:
        """Puts a conversation's connection where the pool looks last."""
        if (kept := self._kept.pop(conversation, None)) is not None:
            key, handler, since_s = kept
            idle[key].append((handler, since_s))

    def let_all_go(self, idle: Idle) -> None:
        """Before the pool is closed."""
        for conversation in list(self._kept):
            self.let_go(conversation, idle)
