"""One request being answered: its sequence in the engine, its reply, its instants, and where its tokens go."""

from __future__ import annotations

import asyncio
import time
from array import array

from server.simulator.engine import Request
from server.simulator.frames import Frames
from server.simulator.reply import Reply
from server.simulator.wire import Wire


class Answer:
    """Collects the true instants of a request's tokens, and streams them when it has a wire.

    Instants are `time.monotonic_ns`. `token_ns[i]` is just before the bytes of token i were handed to the kernel; for
    an answer that is not streamed, when the engine gave the token.
    """

    __slots__ = (
        "admitted_ns",
        "client_request_id",
        "done",
        "finished_ns",
        "received_ns",
        "reply",
        "request",
        "response_id",
        "stream",
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
        stream: tuple[Wire, Frames] | None,
        done: asyncio.Future[None],
    ) -> None:
        self.request = request
        self.reply = reply
        self.response_id = response_id
        self.client_request_id = client_request_id
        self.received_ns = received_ns
        self.admitted_ns: int | None = None
        """When the step began that took the request from the queue."""
        self.token_ns = array("q")
        self.finished_ns: int | None = None
        """When the last bytes were out, or when the client was gone; None while it is open."""
        self.stream = stream
        self.done = done

    @property
    def complete(self) -> bool:
        """Whether every token was sent."""
        return len(self.token_ns) == len(self.reply.texts)

    def emit(self) -> None:
        """Send the next token."""
        n = len(self.token_ns) + 1
        last = n == len(self.reply.texts)
        if self.stream is None:
            self.token_ns.append(time.monotonic_ns())
        else:
            wire, frames = self.stream
            # Words are plain letters, so their bytes need no JSON escape.
            text = self.reply.texts[n - 1].encode()
            if last:
                data = frames.last(text, n, self.reply.finish_reason, self.reply.stop_reason)
            else:
                data = frames.token(text, n)
            if n == 1:
                data = frames.opening() + data
            self.token_ns.append(time.monotonic_ns())
            wire.send(data)
        if last:
            self.finished_ns = time.monotonic_ns()
            if not self.done.done():
                self.done.set_result(None)
