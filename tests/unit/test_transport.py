"""The stamping transport against real sockets, and the conversion of kernel stamps with injected clocks."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from loadgen.wire.kernel_clock import SO_TIMESTAMPNS, KernelClock, enable_kernel_stamps
from loadgen.wire.transport import WireTransport
from loadgen.wire.wire_loop import WireLoop
from tests.clocks import Clocks

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("each_way_of_reading")]


def kernel_clock_of(clocks: Clocks) -> KernelClock:
    return KernelClock(lambda: clocks.monotonic, lambda: clocks.wall)


def test_a_kernel_stamp_becomes_the_monotonic_instant() -> None:
    clocks = Clocks()
    clock = kernel_clock_of(clocks)
    stamp = clocks.wall
    arrived = clocks.monotonic
    clocks.advance(3_000_000)
    assert clock.to_monotonic(stamp, not_before_ns=0, now_ns=clocks.monotonic) == arrived
    assert clock.refused == 0


@pytest.mark.parametrize("step_ns", [3_600_000_000_000, -3_600_000_000_000])
def test_a_step_of_the_wall_clock_never_moves_an_arrival_out_of_its_bounds(step_ns: int) -> None:
    clocks = Clocks()
    clock = kernel_clock_of(clocks)
    clock.to_monotonic(clocks.wall, not_before_ns=0, now_ns=clocks.monotonic)
    clocks.advance(10_000_000)
    before = clocks.monotonic
    clocks.wall += step_ns
    clocks.advance(10_000_000)
    arrival = clock.to_monotonic(clocks.wall, not_before_ns=before, now_ns=clocks.monotonic)
    assert before <= arrival <= clocks.monotonic
    assert clock.refused == 1
    # The next stamp finds the new offset.
    clocks.advance(1_000_000)
    stamp, arrived = clocks.wall, clocks.monotonic
    clocks.advance(2_000_000)
    assert clock.to_monotonic(stamp, not_before_ns=before, now_ns=clocks.monotonic) == arrived


class Recorder(asyncio.Protocol):
    """Notes what a transport does to its protocol."""

    def __init__(self) -> None:
        self.transport: WireTransport
        self.data = bytearray()
        self.arrivals: list[tuple[int, int]] = []
        self.paused = 0
        self.resumed = 0
        self.eof = False
        self.lost: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, WireTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.arrivals.append((self.transport.arrival_ns, time.monotonic_ns()))

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.resumed += 1

    def eof_received(self) -> bool:
        self.eof = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


async def connect(family: socket.AddressFamily = socket.AF_INET) -> tuple[Recorder, socket.socket]:
    """A protocol on a stamping transport, and the blocking socket at the other end."""
    loop = asyncio.get_running_loop()
    with socket.socket(family) as listener:
        listener.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        listener.listen()
        near = socket.socket(family)
        near.setblocking(False)
        await loop.sock_connect(near, listener.getsockname())
        far, _ = listener.accept()
    _, protocol = await loop.create_connection(Recorder, sock=near)
    return protocol, far


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=WireLoop) as runner:
        runner.run(coroutine)


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def test_an_arrival_is_the_kernels_even_when_the_loop_was_busy() -> None:
    async def check() -> None:
        protocol, far = await connect()
        late_ns, waited_ns = [], []
        for count in range(1, 6):
            sent_ns = time.monotonic_ns()
            far.sendall(b"hello")
            time.sleep(0.03)  # the loop is busy while the bytes arrive
            await until(lambda count=count: len(protocol.arrivals) == count)
            arrival_ns, read_ns = protocol.arrivals[-1]
            late_ns.append(arrival_ns - sent_ns)
            waited_ns.append(read_ns - arrival_ns)
        assert min(late_ns) >= 0
        # The median: a kernel that is busy itself may deliver one of them late.
        assert sorted(late_ns)[2] < 10_000_000
        assert sorted(waited_ns)[2] > 20_000_000
        far.close()
        await protocol.lost

    run(check())


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_bytes_go_both_ways_and_the_peers_end_closes(family: socket.AddressFamily) -> None:
    async def check() -> None:
        protocol, far = await connect(family)
        before_ns = time.monotonic_ns()
        protocol.transport.writelines([b"GET ", b"/"])
        assert far.recv(100) == b"GET /"
        assert protocol.transport.sent_ns is not None
        assert before_ns <= protocol.transport.sent_ns <= time.monotonic_ns()
        far.sendall(b"answer")
        far.shutdown(socket.SHUT_WR)
        assert await protocol.lost is None
        assert bytes(protocol.data) == b"answer"
        assert protocol.eof
        assert far.recv(1) == b""
        far.close()

    run(check())


def test_a_full_socket_pauses_the_writer_and_close_still_sends_everything() -> None:
    async def check() -> None:
        protocol, far = await connect()
        total = 8_000_000
        protocol.transport.write(b"x" * total)
        assert protocol.paused == 1
        assert protocol.transport.get_write_buffer_size() > 0
        first_sent_ns = protocol.transport.sent_ns
        assert first_sent_ns is not None
        protocol.transport.close()
        received = 0
        far.setblocking(False)
        while received < total:
            try:
                received += len(far.recv(1 << 20))
            except BlockingIOError:
                await asyncio.sleep(0.001)
        assert protocol.resumed == 1
        assert protocol.transport.sent_ns > first_sent_ns  # the stamp is that of the last byte
        assert await protocol.lost is None
        far.close()

    run(check())


def test_abort_drops_what_is_unsent_and_reports_the_loss_once() -> None:
    async def check() -> None:
        protocol, far = await connect()
        protocol.transport.write(b"x" * 8_000_000)
        protocol.transport.close()
        protocol.transport.abort()
        protocol.transport.abort()
        assert await protocol.lost is None
        assert protocol.transport.get_write_buffer_size() == 0
        far.close()

    run(check())


def test_a_reset_by_the_peer_is_reported_as_its_error() -> None:
    async def check() -> None:
        protocol, far = await connect()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        far.close()
        assert isinstance(await protocol.lost, ConnectionResetError)

    run(check())


def test_a_reset_right_behind_data_is_still_noticed() -> None:
    async def check() -> None:
        protocol, far = await connect()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        far.sendall(b"last words")
        far.close()  # both are in the kernel before the loop looks
        async with asyncio.timeout(5):
            assert isinstance(await protocol.lost, ConnectionResetError)
        assert bytes(protocol.data) == b"last words"

    run(check())


def test_paused_reading_leaves_the_bytes_in_the_kernel_and_keeps_their_stamp() -> None:
    async def check() -> None:
        protocol, far = await connect()
        protocol.transport.pause_reading()
        far.sendall(b"later")
        sent_ns = time.monotonic_ns()
        await asyncio.sleep(0.05)
        assert not protocol.data
        assert not protocol.transport.is_reading()
        protocol.transport.resume_reading()
        await until(lambda: protocol.data)
        assert protocol.arrivals[0][0] <= sent_ns + 5_000_000
        protocol.transport.close()
        await protocol.lost
        far.close()

    run(check())


def test_half_close_lets_the_answer_still_come() -> None:
    async def check() -> None:
        protocol, far = await connect()
        protocol.transport.write(b"question")
        protocol.transport.write_eof()
        assert far.recv(100) == b"question"
        assert far.recv(100) == b""
        far.sendall(b"answer")
        far.close()
        await protocol.lost
        assert bytes(protocol.data) == b"answer"

    run(check())


def test_the_first_bytes_after_stamps_were_asked_for_carry_one() -> None:
    # The kernel begins to stamp a moment after the first socket asked, and stops a moment after the last has closed.
    for _ in range(20):
        with (
            enable_kernel_stamps(),
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()) as near,
            listener.accept()[0] as far,
        ):
            near.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            far.sendall(b"first")
            _, ancillary, _, _ = near.recvmsg(100, 100)
        assert ancillary


def test_write_buffer_limits_follow_asyncio() -> None:
    async def check() -> None:
        protocol, far = await connect()
        protocol.transport.set_write_buffer_limits(high=1000)
        assert protocol.transport.get_write_buffer_limits() == (250, 1000)
        with pytest.raises(ValueError, match="low-water"):
            protocol.transport.set_write_buffer_limits(high=10, low=20)
        protocol.transport.close()
        await protocol.lost
        far.close()

    run(check())
