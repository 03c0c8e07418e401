"""A small real HTTP proxy: forwards requests with an absolute URL, tunnels CONNECT, and keeps what it was asked.

One thread of its own; it may want credentials, refuse every tunnel, or hang up.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
from typing import Literal
from urllib.parse import urlsplit

Mood = Literal["serve", "refuse", "hang up"]


class ScriptedProxy:
    """`with proxy:` serves. `user`: `name:password` that it wants, as they are, not as in a URL."""

    def __init__(self, user: str | None = None, mood: Mood = "serve") -> None:
        self._wanted = None if user is None else f"Basic {base64.b64encode(user.encode()).decode()}"
        self._mood = mood
        self.asked: list[tuple[str, str]] = []
        """Method and target of every request that it read."""
        self.connections = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> ScriptedProxy:
        self._loop = asyncio.SelectorEventLoop()
        self._tasks: set[asyncio.Task[None]] = set()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = self._loop.run_until_complete(starting)
        self.port = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted proxy", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    async def _stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        upstreams: list[asyncio.StreamWriter] = []
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._serve_one(reader, writer, upstreams):
                    pass
        finally:
            for one in (writer, *upstreams):
                one.transport.abort()
            self._tasks.discard(task)

    async def _serve_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstreams: list[asyncio.StreamWriter]
    ) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.asked.append((method, target))
        if self._mood == "hang up":
            return False
        if self._mood == "refuse":
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return True
        if self._wanted is not None and headers.get("proxy-authorization") != self._wanted:
            writer.write(
                b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"
            )
            return True
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
            upstream, upstream_writer = await asyncio.open_connection(host, int(port))
            upstreams.append(upstream_writer)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_pipe(reader, upstream_writer), _pipe(upstream, writer))
            return False
        url = urlsplit(target)
        kept = [line for line in lines if not line.lower().startswith("proxy-")]
        if not upstreams:
            upstream, upstream_writer = await asyncio.open_connection(url.hostname, url.port)
            upstreams.append(upstream_writer)
            piping = self._loop.create_task(_pipe(upstream, writer))
            self._tasks.add(piping)
            piping.add_done_callback(self._tasks.discard)
        upstreams[0].write("\r\n".join([f"{method} {url.path} HTTP/1.1", *kept, "", ""]).encode("latin-1") + body)
        return True


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
    writer.close()
