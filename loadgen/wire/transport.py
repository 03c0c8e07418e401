"""An asyncio transport over a TCP socket of ours that stamps bytes at the socket; it knows neither TLS nor HTTP.

Every read carries the kernel's receive time, and every write is stamped around `send`, so a busy event loop adds nothing
to the server's latency. `kernel_stamps` tells whether the kernel did stamp them.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from loadgen.wire.kernel_clock import SO_TIMESTAMPNS, KernelClock
from loadgen.wire.reads import Reads

_HIGH_WATER_BYTES = 65_536
# Errors of `send` after which the socket's reads end too, behind what had arrived before.
_REFUSED = (errno.EPIPE, errno.ECONNRESET)


class WireTransport(asyncio.Transport):
    """A TCP connection. `arrival_ns` is the kernel's time of the bytes that the protocol is being given, `sent_ns` and
    `sent_done_ns` the instants just before and just after the last `send`; all on the monotonic clock.

    A protocol above another one (TLS) finds it by `get_extra_info("wire")`.
    """

    _start_tls_compatible = True  # asyncio's own mark: the protocol may be exchanged for one that speaks TLS

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        protocol: Any,
        clock: KernelClock,
        reads: Reads,
        on_lost: Callable[[WireTransport], object],
    ) -> None:
        super().__init__({"socket": sock, "peername": _peer_of(sock), "sockname": sock.getsockname()})
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._clock = clock
        self._reads = reads
        self._on_lost = on_lost
        self._unsent = bytearray()
        self._high_water_bytes = _HIGH_WATER_BYTES
        self._low_water_bytes = _HIGH_WATER_BYTES // 4
        self._closing = False
        self._reading_paused = False
        self._writing_paused = False
        self._holding = False
        """From a pause until all that came meanwhile has been given: what comes now has to wait behind it."""
        self._held: collections.deque[tuple[bytes, int | None]] = collections.deque()
        self._held_end = False
        self._held_error: OSError | None = None
        self._send_error: OSError | None = None
        """With what the peer refused the last `send`; it may have answered before, and that is still to be read."""
        self._write_eof = False
        self._not_before_ns = 0
        """What arrives next cannot have arrived before this: the latest arrival or the latest `send`."""
        self.arrival_ns = 0
        self.longest_delay_ns = 0
        """The longest time since this was set that stamped bytes lay in the kernel before they came here."""
        self.received_bytes = 0
        """Bytes received on this connection so far, those that the protocol is being given included."""
        self.sent_ns: int | None = None
        self.sent_done_ns: int | None = None
        self.kernel_stamps = True
        """Whether every arrival since this was set was the kernel's; a read without a stamp makes it False."""
        with contextlib.suppress(OSError):  # a system without them: the first read will show it
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.set_protocol(protocol)
        reads.watch(sock, self)
        protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        # Not kept among the others: the transport would hold itself, and only a garbage collection could free it.
        return self if name == "wire" else super().get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol: Any = protocol
        buffered = isinstance(protocol, asyncio.BufferedProtocol)
        receive: Any = self._fill_buffers if buffered else protocol.data_received  # type: ignore[attr-defined]
        self._deliver: Callable[[bytes], object] = receive

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol  # type: ignore[no-any-return]

    def take(self, data: bytes, stamp_ns: int | None) -> None:
        """What the socket received; called by the reads."""
        if self._holding:
            self._held.append((data, stamp_ns))
            return
        read_ns = time.monotonic_ns()
        if stamp_ns is None:
            self.kernel_stamps = False
            arrival_ns = read_ns
        else:
            clock = self._clock
            arrival_ns = stamp_ns - clock.offset_ns
            # What `to_monotonic` does with nearly all of them, without the call.
            if not self._not_before_ns <= arrival_ns <= read_ns < clock.fresh_until_ns:
                arrival_ns = clock.to_monotonic(stamp_ns, self._not_before_ns, read_ns)
            if read_ns - arrival_ns > self.longest_delay_ns:
                self.longest_delay_ns = read_ns - arrival_ns
        self.arrival_ns = self._not_before_ns = arrival_ns
        self.received_bytes += len(data)
        try:
            self._deliver(data)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._mistake(error, "the protocol could not take what was received")

    def take_end(self, error: OSError | None) -> None:
        """The peer sends no more, or the connection failed; called by the reads."""
        error = error or self._send_error
        if self._holding and (self._held or error is None):
            self._held_end, self._held_error = True, error
        elif error is not None:
            self._force_close(error)
        else:
            self._read_nothing()

    def _fill_buffers(self, data: bytes) -> None:
        """Gives a BufferedProtocol what was read."""
        rest = memoryview(data)
        while rest:
            buffer = self._protocol.get_buffer(len(rest))
            size = min(len(rest), len(buffer))
            if not size:
                raise RuntimeError("get_buffer() returned an empty buffer")
            buffer[:size] = rest[:size]
            rest = rest[size:]
            self._protocol.buffer_updated(size)

    def _read_nothing(self) -> None:
        try:
            keep_open = self._protocol.eof_received()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._mistake(error, "the protocol could not take the end of what was received")
            return
        if not keep_open:
            self.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"a transport writes bytes, not {type(data).__name__}")
        if self._write_eof:
            raise RuntimeError("the transport cannot write after write_eof()")
        if self._closing or self._send_error is not None or not data:
            return
        if not self._unsent:
            sent = self._send(data)
            if sent is None or sent == len(data):
                return
            data = memoryview(data)[sent:]
            self._loop.add_writer(self._fd, self._write_ready)
        self._unsent += data
        self._pause_writer()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        # One send for head and body: two small segments would make `sent` ambiguous.
        self.write(b"".join(list_of_data))

    def _send(self, data: bytes | bytearray | memoryview) -> int | None:
        """How many bytes the kernel took; None when the connection has broken."""
        self.sent_ns = self._not_before_ns = time.monotonic_ns()
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.sent_done_ns = None
            self._cannot_send(error)
            return None
        # The thread may have waited for the interpreter lock behind `send`, or been preempted in it.
        self.sent_done_ns = time.monotonic_ns()
        return sent

    def _cannot_send(self, error: OSError) -> None:
        if error.errno not in _REFUSED or self._closing or self._holding:
            self._force_close(error)
            return
        # An answer may have come before the reset (a 413 to a body that is too long); the reads give it, and then the end.
        self._send_error = error
        self._unsent.clear()
        self._loop.remove_writer(self._fd)

    def _write_ready(self) -> None:
        sent = self._send(self._unsent)
        if sent is None:
            return
        del self._unsent[:sent]
        if self._writing_paused and len(self._unsent) <= self._low_water_bytes:
            self._writing_paused = False
            self._tell_writer(self._protocol.resume_writing)
        if not self._unsent:
            self._loop.remove_writer(self._fd)
            if self._closing:
                self._loop.call_soon(self._connection_lost, None)
            elif self._write_eof:
                self._shutdown_write()

    def _pause_writer(self) -> None:
        if not self._writing_paused and len(self._unsent) > self._high_water_bytes:
            self._writing_paused = True
            self._tell_writer(self._protocol.pause_writing)

    def _tell_writer(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._report(error, "the protocol failed in its flow control")

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._write_eof or self._closing:
            return
        self._write_eof = True
        if not self._unsent:
            self._shutdown_write()

    def _shutdown_write(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def pause_reading(self) -> None:
        if not self._reading_paused and not self._closing:
            self._reading_paused = self._holding = True
            self._reads.pause(self._sock)

    def resume_reading(self) -> None:
        if self._reading_paused and not self._closing:
            self._reading_paused = False
            self._loop.call_soon(self._go_on_reading)

    def _go_on_reading(self) -> None:
        while self._held and self.is_reading():
            self._holding = False
            self.take(*self._held.popleft())
        if not self.is_reading():
            return
        self._holding = False
        if self._held_end:
            self._held_end = False
            self.take_end(self._held_error)
        else:
            self._reads.resume(self._sock)

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
        self._pause_writer()

    def close(self) -> None:
        """Stops reading, sends what is still buffered, then closes."""
        if self._closing:
            return
        self._closing = True
        self._reads.forget(self._sock)
        if not self._unsent:
            self._loop.call_soon(self._connection_lost, None)

    def drop(self) -> None:
        """Closes the socket of a connection whose loop is closed, so that nobody can be told."""
        self._sock.close()

    def abort(self) -> None:
        self._force_close(None)

    def _mistake(self, error: BaseException, what: str) -> None:
        self._report(error, what)
        self._force_close(error)

    def _report(self, error: BaseException, what: str) -> None:
        context = {"message": what, "exception": error, "transport": self, "protocol": self._protocol}
        self._loop.call_exception_handler(context)

    def _force_close(self, error: BaseException | None) -> None:
        """Ends the connection at once; asyncio's TLS calls it by this name."""
        # A close() that waits for its buffer may still turn into an abort; only a lost connection is final.
        if self._closing and not self._unsent:
            return
        self._closing = True
        self._unsent.clear()
        self._reads.forget(self._sock)
        self._loop.remove_writer(self._fd)
        self._loop.call_soon(self._connection_lost, error)

    def _connection_lost(self, error: BaseException | None) -> None:
        self._on_lost(self)
        protocol = self._protocol
        # Transport and protocol hold each other, and no garbage is collected while a level is measured.
        self._protocol = self._deliver = None  # type: ignore[assignment]
        try:
            protocol.connection_lost(error)
        finally:
            self._sock.close()


def _peer_of(sock: socket.socket) -> Any:
    try:
        return sock.getpeername()
    except OSError:  # it has been reset already: the first read says so
        return None
