"""One request being answered: its sequence in the engine, its reply, its instants, and where its tokens go."""

from __future__ import annotations

import asyncio
import time
from array import array
from typing import Protocol

from server.simulator.engine import Request
from server.simulator.frames import Frames
from server.simulator.reply import Reply


class Outlet(Protocol):
    """Where a stream's bytes go."""

    def send(self, data: bytes) -> None:
        """Send the bytes of one event, or more."""


class Answer:
    """Collects the true instants of a request's tokens, and streams them when it has an outlet.

    Instants are `time.monotonic_ns`. `token_ns[i]` is just before the bytes of token i were handed to the kernel; for
    an answer that is not streamed, when the engine gave the token.
    """

    __slots__ = (
        "_held_back",
        "client_request_id",
        "done",
        "finished_ns",
        "received_ns",
        "reply",
        "request",
        "response_id",
        "stream",
        "stream_interval",
        "token_ns",
    )

    def __init__(
        self,
        request: Request,
        reply: Reply,
        *,
        response_id: str,
        client_request_id: str | None,
        received_ns: int,
        stream_interval: int,
        done: asyncio.Future[None],
    ) -> None:
        self.request = request
        self.reply = reply
        self.response_id = response_id
        self.client_request_id = client_request_id
        self.received_ns = request.arrived_ns = received_ns
        self.stream_interval = stream_interval
        self.token_ns = array("q")
        self.finished_ns: int | None = None
        """When the last bytes were out, or when the client was gone; None while it is open."""
        self.stream: tuple[Outlet, Frames] | None = None
        self.done = done
        self._held_back = 0

    @property
    def complete(self) -> bool:
        """Whether every token was sent."""
        return len(self.token_ns) == len(self.reply.texts)

    def emit(self, tokens: int) -> None:
        """Send the next tokens, or hold them back until there are `stream_interval` of them."""
        sent = len(self.token_ns)
        n = sent + self._held_back + tokens
        last = n == len(self.reply.texts)
        if self.stream is not None:
            if sent and not last and n - sent < self.stream_interval:
                self._held_back += tokens
                return
            self._held_back = 0
            outlet, frames = self.stream
            texts = self.reply.texts
            # Words are plain letters, so their bytes need no JSON escape.
            text = (texts[sent] if n - sent == 1 else "".join(texts[sent:n])).encode()
            if last:
                data = frames.last(text, n, self.reply.finish_reason, self.reply.stop_reason)
            else:
                data = frames.token(text, n)
            if not sent:
                data = frames.opening() + data
            now_ns = time.monotonic_ns()
            outlet.send(data)
        else:
            now_ns = time.monotonic_ns()
        for _ in range(n - sent):
            self.token_ns.append(now_ns)
        if last:
            self.finished_ns = time.monotonic_ns()
            if not self.done.done():
                self.done.set_result(None)
