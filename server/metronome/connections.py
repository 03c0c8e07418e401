"""Sockets of the clients: accepts, reads with the kernel's arrival stamps, sends, and keeps what a client does not take.

Knows no HTTP and no pace: what comes and who goes is told to its owner.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Generic, TypeVar

# Linux's value; Python's socket module does not name it.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")
_CONTROL_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
_MOST_STAMP_AGE_NS = 1_000_000_000
_READ_BYTES = 65_536
"""Below the size from which malloc maps fresh pages, so that a read costs no page faults."""
MOST_EVENTS = 32
"""Connections accepted, and events handled, in one turn."""

Answer = TypeVar("Answer")


class Connection(Generic[Answer]):
    """A client's connection; it has one request answered at a time."""

    __slots__ = (
        "answer",
        "arrived_ns",
        "closing",
        "held_back",
        "kernel_arrival",
        "received",
        "served",
        "sock",
        "unsent",
    )

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = bytearray()
        self.arrived_ns = 0
        """Arrival of the latest bytes."""
        self.kernel_arrival = False
        self.unsent = bytearray()
        """What the client's full window did not take; later bytes queue behind it."""
        self.held_back = False
        """Whether that ever happened to the present answer."""
        self.answer: Answer | None = None
        self.served = 0
        self.closing = False


class Connections(Generic[Answer]):
    """All of them, behind one epoll."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        on_data: Callable[[Connection[Answer]], object],
        on_closed: Callable[[Connection[Answer]], object],
    ) -> None:
        """`on_data`: bytes were added to `received`. `on_closed`: it is gone, whoever ended it; told once."""
        self._listener = listener
        self._on_data = on_data
        self._on_closed = on_closed
        self._epoll = select.epoll()
        self._open: dict[int, Connection[Answer]] = {}
        listener.setblocking(False)
        # Inherited by every connection; asked for early, since the kernel takes a moment to begin.
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._epoll.register(listener.fileno(), select.EPOLLIN)

    def turn(self, wait_s: float) -> None:
        """Handles what has happened, after waiting at most so long for something to happen."""
        for descriptor, event in self._epoll.poll(wait_s, MOST_EVENTS):
            if descriptor == self._listener.fileno():
                self._accept()
                continue
            connection = self._open.get(descriptor)
            if connection is None:
                continue  # closed by an event before this one
            if event & select.EPOLLOUT:
                self._send_held_back(connection)
            if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and descriptor in self._open:
                self._read(connection)

    def send(self, connection: Connection[Answer], data: bytes) -> bool:
        """Sends, or keeps for later what the client does not take now. False when the connection is gone."""
        if connection.closing and connection.sock.fileno() < 0:
            return False
        if connection.unsent:
            connection.unsent += data
            return True
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close(connection)
            return False
        if sent != len(data):
            connection.unsent += data[sent:]
            connection.held_back = True
            self._epoll.modify(connection.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
        return True

    def close_when_sent(self, connection: Connection[Answer]) -> None:
        """Answers nothing more on it."""
        connection.closing = True
        if not connection.unsent:
            self.close(connection)

    def close(self, connection: Connection[Answer]) -> None:
        """At once; nothing happens to one that is closed already."""
        if self._open.pop(connection.sock.fileno(), None) is None:
            return
        connection.closing = True
        connection.sock.close()  # epoll forgets it by itself
        self._on_closed(connection)

    def close_all(self) -> None:
        """The clients, the listener, the epoll."""
        for connection in list(self._open.values()):
            self.close(connection)
        self._listener.close()
        self._epoll.close()

    def _accept(self) -> None:
        for _ in range(MOST_EVENTS):
            try:
                sock, _ = self._listener.accept()
            except OSError:  # nobody waits any more, or there are no descriptors: tried again at the next event
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open[sock.fileno()] = Connection(sock)
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, connection: Connection[Answer]) -> None:
        try:
            data, ancillary, _, _ = connection.sock.recvmsg(_READ_BYTES, _CONTROL_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self.close(connection)
            return
        connection.arrived_ns, connection.kernel_arrival = _arrival_ns(ancillary)
        connection.received += data
        self._on_data(connection)

    def _send_held_back(self, connection: Connection[Answer]) -> None:
        try:
            sent = connection.sock.send(connection.unsent)
        except BlockingIOError:
            return
        except OSError:
            self.close(connection)
            return
        del connection.unsent[:sent]
        if not connection.unsent:
            self._epoll.modify(connection.sock.fileno(), select.EPOLLIN)
            if connection.closing:
                self.close(connection)


def _arrival_ns(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, bool]:
    """(when the bytes arrived, on the monotonic clock; whether the kernel said so). A late loop thus answers in time."""
    before_ns = time.monotonic_ns()
    wall_ns = time.time_ns()
    now_ns = time.monotonic_ns()
    for _, kind, content in ancillary:
        if kind == _SO_TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack(content)
            arrived_ns = seconds * 1_000_000_000 + nanoseconds - wall_ns + (before_ns + now_ns) // 2
            if before_ns - _MOST_STAMP_AGE_NS < arrived_ns <= now_ns:
                return arrived_ns, True
    return now_ns, False
