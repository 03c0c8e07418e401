"""A raw TCP server that answers with scripts: what it writes and when is the test's, byte for byte.

HTTP/1.1 with keep-alive, with or without TLS, TCP_NODELAY, one HTTP chunk and one `send` for every write of a script. It counts requests in
flight and keeps every request that it read, with the true instants of its writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Write = tuple[float, "bytes | Callable[[ScriptedServer], Sequence[Write]]"]
"""At so many milliseconds after the whole request was read: these bytes, or what a look at the server says then (the
instants of that are counted from the same moment)."""

Ending = Literal["clean", "close", "reset", "hold"]
"""After the last write: the last chunk, a close without it, a reset, or silence with the socket open."""


@dataclass(frozen=True)
class Answer:
    """How one request is answered. A body that is no stream: give its writes and the content type."""

    script: Sequence[Write]
    status: int = 200
    content_type: str = "text/event-stream"
    headers_at_ms: float = 0
    end: Ending = "clean"
    headers: Mapping[str, str] = field(default_factory=dict)


def refusal(status: int, message: str, at_ms: float = 1) -> Answer:
    """An answer with a JSON error, headers and body together after `at_ms`."""
    body = json.dumps({"error": {"message": message, "type": "Error", "param": None, "code": status}}).encode()
    return Answer([(at_ms, body)], status=status, content_type="application/json", headers_at_ms=at_ms)


@dataclass
class Request:
    """One request as the server read it; instants of the monotonic clock."""

    path: str
    headers: dict[str, str]
    body: bytes
    read_ns: int
    """When its last byte was at hand."""
    connection: int = 0
    """Through which connection it came, in the order of accepting, from 1."""
    writes_ns: list[int] = field(default_factory=list)
    """Just before every write of the script."""
    ended_ns: int | None = None
    """When its answer was complete or the connection was lost."""

    def json(self) -> Any:
        return json.loads(self.body)


PAGES = {
    "/v1/models": {
        "object": "list",
        "data": [{"id": "m", "object": "model", "owned_by": "test", "max_model_len": 4096}],
    },
    "/health": {},
    "/version": {"version": "scripted"},
}


class ScriptedServer:
    """Answers every POST to a path that ends in `completions`; `with server:` serves on a loop and real thread of its own.

    `answer` is a script, an `Answer`, or what gives either for request k (0, 1, … in the order of reading) and the
    request. Other requests are answered from `pages` (path → JSON, or what makes JSON of the request's body), else with
    404; those are neither kept nor counted. Leaving the `with` raises what `answer` or a script raised.
    """

    def __init__(
        self,
        answer: Answer | Sequence[Write] | Callable[[int, Request], Answer | Sequence[Write]],
        pages: Mapping[str, object] = PAGES,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._answer = answer
        self.pages = pages
        self._tls = tls
        self.requests: list[Request] = []
        self.in_flight = 0
        """Requests read whose answer is not complete."""
        self.peak_in_flight = 0
        self.connections = 0
        """Accepted so far."""
        self.port = 0
        self.mistake: Exception | None = None
        """What a test's own script raised."""

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    def answer_to(self, k: int, request: Request) -> Answer:
        answer = self._answer(k, request) if callable(self._answer) else self._answer
        return answer if isinstance(answer, Answer) else Answer(answer)

    def __enter__(self) -> ScriptedServer:
        self._loop = asyncio.SelectorEventLoop()  # not uvloop: the clients' loop should not be timed by itself
        self._open: set[_Connection] = set()
        listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = listening.getsockname()[1]
        serving = self._loop.create_server(
            lambda: _Connection(self, self._loop, self._open), sock=listening, ssl=self._tls
        )
        self._server = self._loop.run_until_complete(serving)
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()
        if self.mistake is not None:
            raise self.mistake

    async def _stop(self) -> None:
        self._server.close()
        playing = [connection.playing for connection in self._open if connection.playing is not None]
        for connection in list(self._open):
            connection.transport.abort()
        await asyncio.gather(*playing, return_exceptions=True)
        await asyncio.sleep(0)  # connection_lost runs


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, server: ScriptedServer, loop: asyncio.AbstractEventLoop, open_: set[_Connection]) -> None:
        self._server, self._loop, self._open = server, loop, open_
        self._received = bytearray()
        self._lost = asyncio.Event()
        self.playing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.add(self)
        self._server.connections += 1
        self._number = self._server.connections

    def eof_received(self) -> None:
        self._lost.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set()
        self._open.discard(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self.playing is None:
            self._begin_next()

    def _begin_next(self) -> None:
        head, blank, rest = bytes(self._received).partition(b"\r\n\r\n")
        if not blank:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        request = Request(path, headers, rest[:length], time.monotonic_ns(), self._number)
        self._received[:] = rest[length:]
        if method == "POST" and path.endswith("completions"):
            self.playing = self._loop.create_task(self._play(request))
        else:
            self._give_page(request)
            self._begin_next()

    def _give_page(self, request: Request) -> None:
        page = self._server.pages.get(request.path)
        if callable(page):
            page = page(request.body)
        body = json.dumps({"detail": "Not Found"} if page is None else page).encode()
        status = "404 Not Found" if page is None else "200 OK"
        self.transport.write(
            f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    async def _play(self, request: Request) -> None:
        server = self._server
        server.requests.append(request)
        server.in_flight += 1
        server.peak_in_flight = max(server.peak_in_flight, server.in_flight)
        try:
            await self._write(server.answer_to(len(server.requests) - 1, request), request)
        except Exception as mistake:
            server.mistake = mistake
            self.transport.abort()
        finally:
            server.in_flight -= 1
            request.ended_ns = time.monotonic_ns()
            self.playing = None
        if not self._lost.is_set():
            self._begin_next()

    async def _write(self, answer: Answer, request: Request) -> None:
        head = [
            f"HTTP/1.1 {answer.status} Scripted",
            f"Content-Type: {answer.content_type}",
            "Transfer-Encoding: chunked",
        ]
        head += [f"{name}: {value}" for name, value in answer.headers.items()]
        await self._until(request, answer.headers_at_ms)
        self.transport.write("\r\n".join([*head, "", ""]).encode())

        for at_ms, data in self._unfolded(answer.script, request):
            await self._until(request, at_ms)
            if self._lost.is_set():
                return
            if isinstance(data, bytes):
                request.writes_ns.append(time.monotonic_ns())
                self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

        if answer.end == "clean":
            self.transport.write(b"0\r\n\r\n")
        elif answer.end == "close":
            self.transport.close()
        elif answer.end == "reset":
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            await self._lost.wait()

    def _unfolded(self, script: Sequence[Write], request: Request) -> Iterator[tuple[float, bytes | None]]:
        """The writes one by one; a look at the server is made after its own instant was waited for (`None`)."""
        for at_ms, data in script:
            if callable(data):
                yield at_ms, None
                yield from self._unfolded(data(self._server), request)
            else:
                yield at_ms, data

    async def _until(self, request: Request, at_ms: float) -> None:
        """Waits for the instant, or for the client to go away."""
        left_s = at_ms / 1e3 - (time.monotonic_ns() - request.read_ns) / 1e9
        if left_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), left_s)
