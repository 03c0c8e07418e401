"""Flow control, stalls of the loop, bodies that are not read, sockets that stay open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
import threading
import time
from pathlib import Path

import pytest

from loadgen import record
from loadgen.wire.client import Limits
from loadgen.wire.decode import decode
from loadgen.wire.exchange import Exchange
from loadgen.wire.wire_loop import WireLoop
from tests.fault.test_any_answer import head
from tests.measuring import ask, measure
from tests.scripted_server import Answer, ScriptedServer
from tests.sse_events import NORMAL

pytestmark = [
    pytest.mark.alone,
    pytest.mark.usefixtures("each_way_of_reading"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
MS = 1_000_000


def fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Notes(asyncio.Protocol):
    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.events: list[str] = []
        self.lost: BaseException | str | None = "no"

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.got.append(data)
        self.events.append("data")

    def eof_received(self):
        self.events.append("eof")

    def connection_lost(self, exc):
        self.lost = exc
        self.events.append("lost")


@contextlib.asynccontextmanager
async def connected():
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.socket()
        near.setblocking(False)
        await loop.sock_connect(near, listener.getsockname())
        far, _ = listener.accept()
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with far:
            transport, protocol = await loop.create_connection(Notes, sock=near)
            yield transport, protocol, far
            transport.abort()
            await asyncio.sleep(0.01)


def run(script):
    with asyncio.Runner(loop_factory=WireLoop) as runner:
        return runner.run(script())


async def until(test, s=3.0):
    end = time.monotonic() + s
    while not test() and time.monotonic() < end:
        await asyncio.sleep(0.005)
    return test()


def test_what_comes_between_resume_and_its_turn_stays_behind_what_was_held() -> None:
    async def script():
        async with connected() as (transport, protocol, _far):
            transport.pause_reading()
            transport.take(b"1", None)
            transport.take(b"2", None)
            transport.resume_reading()
            transport.take(b"3", None)
            transport.take_end(None)
            await until(lambda: protocol.lost != "no", 1)
            assert b"".join(protocol.got) == b"123"
            assert protocol.events[-2:] == ["eof", "lost"]

    run(script)


def test_a_reset_does_not_take_what_is_held() -> None:
    async def script():
        async with connected() as (transport, protocol, _far):
            transport.pause_reading()
            transport.take(b"1", None)
            transport.take_end(ConnectionResetError(104, "reset"))
            transport.resume_reading()
            await until(lambda: protocol.lost != "no", 1)
            assert protocol.got == [b"1"]
            assert isinstance(protocol.lost, ConnectionResetError)

    run(script)


@pytest.mark.parametrize("limit", ["between_tokens_ns", "first_token_ns", "first_byte_ns"])
def test_a_loop_that_was_late_is_no_timeout_of_the_server(limit: str) -> None:
    limits = Limits(**{limit: 300 * MS})

    async def script(client):
        asking = asyncio.create_task(ask(client))
        await asyncio.sleep(0.25 if limit == "between_tokens_ns" else 0.02)
        time.sleep(0.6)
        return [await asking]

    first, gap = {"between_tokens_ns": (20, 10), "first_token_ns": (150, 10), "first_byte_ns": (150, 10)}[limit]
    with ScriptedServer(Answer(NORMAL(60, first, gap), headers_at_ms=100)) as server:
        (r,) = measure(server.url, script, limits)
    assert (r.status, r.output_tokens) == (record.OK, 60), r.reason


class Deaf:
    """Accepts, reads nothing."""

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=500)
        self.open = []

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    self.open.append(self.listener.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        return self

    def __exit__(self, *_):
        self.listener.close()
        [s.close() for s in self.open]


@pytest.mark.parametrize("how", ["limit", "cancel"])
def test_a_request_that_ended_while_its_body_was_on_its_way_keeps_no_socket(how) -> None:
    body = b"x" * 8_000_000
    seen = []

    async def script(client):
        before = fds()

        async def one(k):
            e = Exchange(level=0, index=k, user=0, worker=0, endpoint="chat", dispatched_ns=time.monotonic_ns())
            with contextlib.suppress(asyncio.CancelledError):
                await client.send(body, e, f"r{k}")
            return decode(e)

        tasks = [asyncio.create_task(one(k)) for k in range(20)]
        if how == "cancel":
            await asyncio.sleep(0.3)
            for t in tasks:
                t.cancel()
        rs = await asyncio.gather(*tasks)
        await until(lambda: fds() <= before, 1.5)
        seen.append((before, fds()))
        return rs

    with Deaf() as deaf:

        async def wrapped(client):
            return await script(client)

        rs = measure(deaf.url, wrapped, Limits(total_ns=300 * MS))
        # the server side's own 20 sockets are in this process too
        assert seen[0][1] - seen[0][0] <= 20
        assert {r.status for r in rs} == ({record.TIMEOUT_TOTAL} if how == "limit" else {record.CANCELLED})


def test_an_answer_before_the_body_was_read_is_that_answer() -> None:
    """413 and a close while 5 MB are still being sent: the kernel resets, but the answer had arrived."""
    body = b"x" * 5_000_000
    answer = (
        head(b"Content-Type: application/json", b"Content-Length: 20", b"Connection: close", status=b"HTTP/1.1 413 X")
        + b'{"error":"too large"}'[:20]
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                c, _ = listener.accept()
                c.recv(65536)
                c.sendall(answer)
                c.close()

    threading.Thread(target=accept, daemon=True).start()

    async def script(client):
        out = []
        for k in range(20):
            e = Exchange(level=0, index=k, user=0, worker=0, endpoint="chat", dispatched_ns=time.monotonic_ns())
            await client.send(body, e, f"r{k}")
            out.append(decode(e))
        return out

    with listener:
        rs = measure(f"http://127.0.0.1:{listener.getsockname()[1]}", script, Limits(total_ns=2000 * MS))
    assert {r.status for r in rs} == {"http_413"}


def test_a_peer_that_resets_at_once_costs_no_descriptor() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=500)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                c, _ = listener.accept()
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                c.close()

    threading.Thread(target=accept, daemon=True).start()
    seen = []

    async def script(client):
        gc.disable()
        before = fds()
        out = []
        for _ in range(20):
            tasks = [asyncio.create_task(ask(client, k)) for k in range(20)]
            await asyncio.sleep(0)
            time.sleep(0.01)
            out += await asyncio.gather(*tasks)
        await asyncio.sleep(0.05)
        seen.append((before, fds()))
        gc.enable()
        return out

    with listener:
        rs = measure(f"http://127.0.0.1:{listener.getsockname()[1]}", script, Limits(total_ns=2000 * MS))
    assert seen[0][1] <= seen[0][0] + 1
    assert {r.status for r in rs} <= {record.TRANSPORT, record.CONNECT}


def test_a_closed_loop_holds_no_connection_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        loop = WireLoop()

        async def script():
            near = socket.socket()
            near.setblocking(False)
            await loop.sock_connect(near, listener.getsockname())
            await loop.create_connection(Notes, sock=near)

        loop.run_until_complete(script())
        far, _ = listener.accept()
        far.settimeout(2)
        fds()
        loop.close()
        with far:
            assert far.recv(10) == b""  # TimeoutError when the kernel still holds it


def test_a_half_closed_server_and_a_request_body_unsent() -> None:
    """Server answers close-delimited, shuts down its sending side and reads no more."""
    body = b"x" * 5_000_000
    keep = []
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                c, _ = listener.accept()
                keep.append(c)
                c.recv(65536)
                c.sendall(head(b"Content-Type: text/plain", status=b"HTTP/1.1 503 X") + b"busy")
                c.shutdown(socket.SHUT_WR)

    threading.Thread(target=accept, daemon=True).start()

    async def script(client):
        e = Exchange(level=0, index=0, user=0, worker=0, endpoint="chat", dispatched_ns=time.monotonic_ns())
        await client.send(body, e, "r0")
        return [decode(e)]

    with listener:
        (r,) = measure(f"http://127.0.0.1:{listener.getsockname()[1]}", script, Limits(total_ns=2000 * MS))
    assert r.status == "http_503"
    assert r.finished_ns - r.dispatched_ns < 1000 * MS
