"""The rest of asyncio's transport contract on the stamping transport: flow control, half-close, mistakes of protocols."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import time
import weakref
from typing import Any

import pytest

from loadgen.wire.exchange import Exchange
from loadgen.wire.handler import EXCHANGE, StampingHandler
from loadgen.wire.kernel_clock import KernelClock
from loadgen.wire.transport import WireTransport
from loadgen.wire.wire_loop import WireLoop
from tests.unit.test_transport import Recorder, connect, run, until

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("each_way_of_reading")]


async def connect_with(protocol: Any, loop: asyncio.AbstractEventLoop | None = None) -> socket.socket:
    """Puts `protocol` on a stamping transport; gives the blocking socket at the other end."""
    loop = loop or asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.socket()
        near.setblocking(False)
        await loop.sock_connect(near, listener.getsockname())
        far, _ = listener.accept()
    await loop.create_connection(lambda: protocol, sock=near)
    return far


class SmallBuffer(asyncio.BufferedProtocol):
    """Takes what comes through a buffer of seven bytes."""

    def __init__(self) -> None:
        self.buffer = bytearray(7)
        self.data = bytearray()
        self.lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, WireTransport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


def test_a_buffered_protocol_gets_every_byte() -> None:
    async def check() -> None:
        protocol = SmallBuffer()
        far = await connect_with(protocol)
        far.sendall(bytes(range(256)))
        await until(lambda: len(protocol.data) == 256)
        assert protocol.data == bytes(range(256))
        assert protocol.transport.received_bytes == 256
        far.close()
        assert await protocol.lost is None

    run(check())


def test_received_bytes_count_from_the_first_of_the_connection() -> None:
    async def check() -> None:
        protocol, far = await connect()
        for count in range(1, 4):
            far.sendall(b"12345")
            await until(lambda count=count: len(protocol.data) == 5 * count)
            assert protocol.transport.received_bytes == 5 * count
        protocol.transport.close()
        await protocol.lost
        far.close()

    run(check())


def test_send_is_bracketed() -> None:
    async def check() -> None:
        protocol, far = await connect()
        before_ns = time.monotonic_ns()
        protocol.transport.write(b"x" * 1000)
        sent_ns, done_ns = protocol.transport.sent_ns, protocol.transport.sent_done_ns
        assert sent_ns is not None and done_ns is not None
        assert before_ns <= sent_ns < done_ns <= time.monotonic_ns()
        protocol.transport.close()
        await protocol.lost
        far.close()

    run(check())


def test_only_bytes_can_be_written_and_nothing_after_the_writers_end() -> None:
    async def check() -> None:
        protocol, far = await connect()
        with pytest.raises(TypeError, match="not str"):
            protocol.transport.write("text")  # type: ignore[arg-type]
        protocol.transport.write(bytearray(b"a"))
        protocol.transport.write(memoryview(b"b"))
        protocol.transport.write_eof()
        with pytest.raises(RuntimeError, match="write_eof"):
            protocol.transport.write(b"c")
        assert far.recv(10) + far.recv(10) == b"ab"
        protocol.transport.close()
        await protocol.lost
        protocol.transport.abort()  # of a connection that is gone: nothing happens
        far.close()

    run(check())


class KeepsOpen(Recorder):
    """Goes on writing when the peer has ended."""

    ends = 0

    def eof_received(self) -> bool:
        self.ends += 1
        return True


def test_a_protocol_may_write_on_after_the_peers_end_and_hears_of_it_once() -> None:
    async def check() -> None:
        protocol = KeepsOpen()
        far = await connect_with(protocol)
        far.shutdown(socket.SHUT_WR)
        await until(lambda: protocol.ends)
        protocol.transport.pause_reading()
        protocol.transport.resume_reading()
        await asyncio.sleep(0.05)
        assert protocol.ends == 1
        protocol.transport.write(b"still here")
        assert far.recv(100) == b"still here"
        protocol.transport.close()
        assert await protocol.lost is None
        far.close()

    run(check())


def test_the_writers_end_follows_what_is_still_buffered() -> None:
    async def check() -> None:
        protocol, far = await connect()
        total = 8_000_000
        protocol.transport.write(b"x" * total)
        assert protocol.transport.get_write_buffer_size() > 0
        protocol.transport.write_eof()
        far.setblocking(False)
        received = 0
        while True:
            try:
                data = far.recv(1 << 20)
            except BlockingIOError:
                await asyncio.sleep(0.001)
                continue
            if not data:
                break
            received += len(data)
        assert received == total
        assert not protocol.transport.is_closing()
        protocol.transport.close()
        await protocol.lost
        far.close()

    run(check())


def test_a_peer_that_resets_while_writing_ends_the_connection_once() -> None:
    async def check() -> None:
        protocol, far = await connect()
        protocol.transport.write(b"x" * 8_000_000)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        far.close()
        error = await protocol.lost
        assert isinstance(error, ConnectionResetError | BrokenPipeError)
        assert protocol.transport.get_write_buffer_size() == 0
        protocol.transport.write(b"into nothing")

    run(check())


class Mistaken(Recorder):
    """Raises where it is told to."""

    where = ""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.where == "data_received":
            raise ValueError("a mistake")

    def eof_received(self) -> bool:
        if self.where == "eof_received":
            raise ValueError("a mistake")
        return super().eof_received()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.where == "pause_writing":
            raise ValueError("a mistake")


@pytest.mark.parametrize("where", ["data_received", "eof_received", "pause_writing"])
def test_a_protocols_mistake_is_reported_and_only_a_failed_flow_control_leaves_it_open(where: str) -> None:
    async def check() -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        protocol = Mistaken()
        far = await connect_with(protocol)
        protocol.where = where
        if where == "pause_writing":
            protocol.transport.write(b"x" * 8_000_000)
            assert not protocol.transport.is_closing()
            protocol.transport.abort()
            assert await protocol.lost is None
        else:
            far.sendall(b"data")
            far.shutdown(socket.SHUT_WR)
            assert isinstance(await protocol.lost, ValueError)
        assert [str(context["exception"]) for context in reported] == ["a mistake"]
        far.close()

    run(check())


def test_a_lower_limit_pauses_a_writer_that_is_above_it() -> None:
    async def check() -> None:
        protocol, far = await connect()
        protocol.transport.set_write_buffer_limits(high=50_000_000)
        protocol.transport.write(b"x" * 16_000_000)
        assert protocol.paused == 0
        protocol.transport.set_write_buffer_limits(high=0)
        assert protocol.paused == 1
        protocol.transport.abort()
        await protocol.lost
        far.close()

    run(check())


@pytest.mark.parametrize("step_ns", [3_600_000_000_000, -3_600_000_000_000, 4_000_000, -4_000_000])
def test_arrivals_stay_behind_sent_and_in_order_while_the_wall_clock_steps(step_ns: int) -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WireLoop)
        steps = [0]
        loop.kernel_clock = KernelClock(time.monotonic_ns, lambda: time.time_ns() + steps[0])
        protocol, far = await connect()
        wire, latest_ns = protocol.transport, 0
        for number in range(60):
            if number % 20 == 10:
                steps[0] += step_ns
            wire.write(b"question")
            sent_ns = wire.sent_ns
            assert sent_ns is not None
            assert far.recv(100) == b"question"
            far.sendall(b"a")
            await until(lambda number=number: len(protocol.arrivals) == number + 1)
            arrival_ns, now_ns = protocol.arrivals[-1]
            assert max(latest_ns, sent_ns) <= arrival_ns <= now_ns
            latest_ns = arrival_ns
            await asyncio.sleep(0.005)
        wire.close()
        await protocol.lost
        far.close()

    run(check())


def test_a_unix_socket_is_uvloops_and_its_stamps_are_of_user_space() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        near.setblocking(False)
        transport, handler = await loop.create_connection(lambda: StampingHandler(loop), sock=near)
        assert not isinstance(transport, WireTransport)
        exchange = Exchange(level=0, index=0, user=0, worker=0, endpoint="chat", dispatched_ns=time.monotonic_ns())
        EXCHANGE.set(exchange)
        handler.set_response_params()
        handler.transport.write(b"question")
        await asyncio.sleep(0)
        assert far.recv(100) == b"question"
        far.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await until(lambda: exchange.chunk_ns)
        assert exchange.kernel_stamps is False
        assert exchange.sent_ns is not None and exchange.response_started_ns is not None
        assert exchange.sent_ns <= exchange.response_started_ns == exchange.chunk_ns[0]
        assert exchange.send_gap_ns is None  # uvloop may send later
        handler.close()
        await asyncio.sleep(0.01)
        far.close()

    run(check())


def test_tls_needs_the_name_to_check_and_a_connection_that_stands() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        protocol, far = await connect()
        near = socket.socket()
        with pytest.raises(ValueError, match="server_hostname"):
            await loop.create_connection(Recorder, sock=near, ssl=ssl.create_default_context())
        near.close()
        protocol.transport.close()
        with pytest.raises(ConnectionResetError):
            await loop.start_tls(protocol.transport, protocol, ssl.create_default_context(), server_hostname="x")
        await protocol.lost
        far.close()

    run(check())


def test_a_lost_connection_is_freed_without_a_garbage_collection() -> None:
    async def check() -> None:
        protocol, far = await connect()
        gone = weakref.ref(protocol.transport), weakref.ref(protocol)
        protocol.transport.write(b"x")
        far.close()
        await protocol.lost
        await asyncio.sleep(0.01)
        del protocol
        assert [reference() for reference in gone] == [None, None]

    gc.disable()
    try:
        run(check())
    finally:
        gc.enable()
