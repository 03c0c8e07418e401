"""An asyncio transport that stamps bytes at the socket, and the uvloop loop that hands it out.

Every read carries the kernel's receive time, and every write is stamped just before `send`, so a busy event loop adds
nothing to the server's latency. Where a socket cannot be ours (TLS, proxies with TLS, Unix sockets) the loop's own
transport is used behind `StampedWrites`, and arrivals are stamped in user space; `kernel_stamps` tells which it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

import uvloop
from gevent import monkey

# Linux's value; Python's socket module does not name it. Asking for it makes the control message below appear.
SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)
SCM_TIMESTAMPNS = SO_TIMESTAMPNS
_TIMESPEC = struct.Struct("qq")
_CONTROL_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
# One read is at most this many bytes; below malloc's mmap threshold, so a read does not cost a page fault.
READ_BYTES = 65_536
_HIGH_WATER_BYTES = 65_536
_STAMPS_BEGIN_S = 1.0


class KernelClock:
    """Converts the kernel's wall-clock stamps to the monotonic clock of this machine.

    The offset between the two clocks is measured again every `REFRESH_NS`, so that a step of the wall clock can spoil
    only stamps of that span, and those are caught by `to_monotonic`'s bounds.
    """

    REFRESH_NS = 100_000_000

    def __init__(
        self,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self._offset_ns = 0
        self._measured_ns = -self.REFRESH_NS
        self.refused = 0
        """Stamps that lay outside the possible span and were replaced by the time of the read."""

    def to_monotonic(self, stamp_ns: int, *, not_before_ns: int, now_ns: int) -> int:
        """The monotonic instant of a kernel stamp; `now_ns` when the stamp lies outside [not_before_ns, now_ns]."""
        if now_ns - self._measured_ns >= self.REFRESH_NS:
            self._measure()
            self._measured_ns = now_ns
        arrival_ns = stamp_ns - self._offset_ns
        if not_before_ns <= arrival_ns <= now_ns:
            return arrival_ns
        # Reading the clock pair costs some hundred nanoseconds, by which a fresh stamp may seem to lie ahead.
        if now_ns < arrival_ns < now_ns + 1_000:
            return now_ns
        self._measured_ns = now_ns - self.REFRESH_NS
        self.refused += 1
        return now_ns

    def _measure(self) -> None:
        best = None
        for _ in range(5):
            before = self._monotonic_ns()
            wall = self._wall_ns()
            after = self._monotonic_ns()
            if best is None or after - before < best[0]:
                best = (after - before, wall - (before + after) // 2)
        assert best is not None
        self._offset_ns = best[1]


class WireTransport(asyncio.Transport):
    """A plain TCP connection. `arrival_ns` is the kernel's time of the bytes that `data_received` is being given,
    `sent_ns` the instant just before the last `send`; both on the monotonic clock."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        protocol: Any,
        clock: KernelClock,
        on_lost: Callable[[WireTransport], object],
    ) -> None:
        super().__init__({"socket": sock, "peername": sock.getpeername(), "sockname": sock.getsockname()})
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._protocol = protocol
        self._clock = clock
        self._on_lost = on_lost
        self._unsent = bytearray()
        self._high_water_bytes = _HIGH_WATER_BYTES
        self._low_water_bytes = _HIGH_WATER_BYTES // 4
        self._closing = False
        self._reading_paused = False
        self._writing_paused = False
        self._write_eof = False
        self.arrival_ns = 0
        self.read_ns = 0
        self.sent_ns: int | None = None
        self.kernel_stamps = True
        """Whether every arrival since this was set was the kernel's; a read without a stamp makes it False."""
        with contextlib.suppress(OSError):  # a system without them: the first read will show it
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        protocol.connection_made(self)
        loop.add_reader(self._fd, self._read_ready)

    def notice_error(self) -> None:
        """Ends the connection if the kernel holds an error that the loop has not delivered (see WireLoop)."""
        error = 0 if self._closing else self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._fatal(OSError(error, os.strerror(error)))

    def _read_ready(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(READ_BYTES, _CONTROL_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fatal(error)
            return
        now_ns = time.monotonic_ns()
        if not data:
            self._loop.remove_reader(self._fd)
            if not self._protocol.eof_received():
                self.close()
            return
        self.read_ns = now_ns
        if ancillary and ancillary[0][1] == SCM_TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
            self.arrival_ns = self._clock.to_monotonic(
                seconds * 1_000_000_000 + nanoseconds, not_before_ns=self.arrival_ns, now_ns=now_ns
            )
        else:
            self.kernel_stamps = False
            self.arrival_ns = now_ns
        self._protocol.data_received(data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._write_eof or not data:
            return
        if not self._unsent:
            self.sent_ns = time.monotonic_ns()
            try:
                sent = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._fatal(error)
                return
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
            self._loop.add_writer(self._fd, self._write_ready)
        self._unsent += data
        if not self._writing_paused and len(self._unsent) > self._high_water_bytes:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        # One send for head and body: two small segments would make `sent` ambiguous.
        self.write(b"".join(list_of_data))

    def _write_ready(self) -> None:
        self.sent_ns = time.monotonic_ns()
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fatal(error)
            return
        del self._unsent[:sent]
        if self._writing_paused and len(self._unsent) <= self._low_water_bytes:
            self._writing_paused = False
            self._protocol.resume_writing()
        if not self._unsent:
            self._loop.remove_writer(self._fd)
            if self._write_eof:
                self._shutdown_write()
            if self._closing:
                self._loop.call_soon(self._connection_lost, None)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._write_eof:
            return
        self._write_eof = True
        if not self._unsent:
            self._shutdown_write()

    def _shutdown_write(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def pause_reading(self) -> None:
        if not self._reading_paused and not self._closing:
            self._reading_paused = True
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        if self._reading_paused and not self._closing:
            self._reading_paused = False
            self._loop.add_reader(self._fd, self._read_ready)

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_water_bytes, self._high_water_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not 0 <= low <= high:
            raise ValueError(f"the low-water mark must lie between 0 and the high one: low={low}, high={high}")
        self._high_water_bytes, self._low_water_bytes = high, low

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stops reading, sends what is still buffered, then closes."""
        if self._closing:
            return
        self._closing = True
        self._loop.remove_reader(self._fd)
        if not self._unsent:
            self._loop.call_soon(self._connection_lost, None)

    def abort(self) -> None:
        self._fatal(None)

    def _fatal(self, error: OSError | None) -> None:
        # A close() that waits for its buffer may still turn into an abort; only a lost connection is final.
        if self._closing and not self._unsent:
            return
        self._closing = True
        self._unsent.clear()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._loop.call_soon(self._connection_lost, error)

    def _connection_lost(self, error: OSError | None) -> None:
        self._on_lost(self)
        try:
            self._protocol.connection_lost(error)
        finally:
            self._sock.close()


class StampedWrites:
    """A foreign transport whose writes are stamped in user space; everything else is the transport's own."""

    kernel_stamps = False
    arrival_ns = 0

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.sent_ns: int | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent_ns = time.monotonic_ns()
        self._transport.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def enable_kernel_stamps() -> socket.socket:
    """A socket for whose sake the kernel stamps what arrives at any; it does so while one of them is open.

    The kernel only schedules that it begins to stamp, and what arrives before is never stamped; so this waits, for
    `_STAMPS_BEGIN_S` at most, until a byte that the socket sends to itself carries a stamp.
    """
    # gevent may have replaced `socket.socket` by one that waits in the hub.
    asking: socket.socket = monkey.get_original("socket", "socket")(socket.AF_INET, socket.SOCK_STREAM)
    deadline = time.monotonic() + _STAMPS_BEGIN_S
    with contextlib.suppress(OSError):  # a system without stamps, or without a loopback interface
        asking.settimeout(_STAMPS_BEGIN_S)
        asking.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        asking.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asking.bind(("127.0.0.1", 0))
        asking.connect(asking.getsockname())
        stamped = False
        while not stamped and time.monotonic() < deadline:
            asking.send(b"?")
            stamped = bool(asking.recvmsg(1, _CONTROL_BYTES)[1])
    return asking


class WireLoop(uvloop.Loop):  # type: ignore[misc]
    """uvloop, but a connection over a plain TCP socket that the caller made gets a `WireTransport`.

    libuv stops watching a socket in error after one more call of its reader. When a reset comes right behind data, that
    call takes the data, and nobody would ever be told of the reset; so the errors of open sockets are asked for in turn.
    """

    ERROR_CHECK_S = 0.05

    def __init__(self) -> None:
        super().__init__()
        # The kernel begins to stamp a moment after the first socket has asked for it, so one asks now, for the others.
        self._stamping = enable_kernel_stamps()
        self.kernel_clock = KernelClock()
        self._transports: set[WireTransport] = set()
        self._error_check: asyncio.TimerHandle | None = None

    def close(self) -> None:
        self._stamping.close()
        super().close()

    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        *args: Any,
        sock: socket.socket | None = None,
        ssl: Any = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        plain_tcp = (
            sock is not None and ssl is None and sock.type == socket.SOCK_STREAM and sock.family != socket.AF_UNIX
        )
        if not plain_tcp:
            return await super().create_connection(protocol_factory, *args, sock=sock, ssl=ssl, **options)  # type: ignore[no-any-return]
        assert sock is not None
        protocol = protocol_factory()
        transport = WireTransport(self, sock, protocol, self.kernel_clock, self._transports.discard)
        self._transports.add(transport)
        if self._error_check is None:
            self._error_check = self.call_later(self.ERROR_CHECK_S, self._check_errors)
        return transport, protocol

    def _check_errors(self) -> None:
        for transport in list(self._transports):
            transport.notice_error()
        again = bool(self._transports)
        self._error_check = self.call_later(self.ERROR_CHECK_S, self._check_errors) if again else None
