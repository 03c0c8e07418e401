"""Reads from sockets by an epoll of its own, which the event loop watches as one descriptor.

An error is told as often as it is looked for: libuv, left to itself, stops watching a socket in error after one more
call, and a reset right behind data would stay unheard.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from gevent import monkey

from loadgen.wire.kernel_clock import CONTROL_BYTES, SCM_TIMESTAMPNS, TIMESPEC
from loadgen.wire.reads import TICK_S, Reader

# One read is at most this many bytes; below malloc's mmap threshold, so a read does not cost a page fault.
READ_BYTES = 65_536
_READABLE = 1  # EPOLLIN; errors and hang-ups are always told
# A tick pays when it saves several wake-ups.
_LEAST_READY = 4
# The kernel merges what queues on one connection, and keeps the last one's stamp only. So no ticks where more than one
# connection in so many has had something within a tick: its next token may come within the same one.
_QUIET_SHARE = 4


def ticks(ready: int, watched: int) -> bool:
    """Whether to look again only after a tick, when `ready` of `watched` sockets had something."""
    return ready >= _LEAST_READY and ready * _QUIET_SHARE <= watched


class EpollReads:
    """Lives on an event loop. Linux."""

    name = "epoll"

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # gevent takes epoll away when it patches.
        self._epoll = monkey.get_original("select", "epoll")()
        self._watched: dict[int, tuple[Callable[[int, int], Any], Reader]] = {}
        self._tick: asyncio.TimerHandle | None = None
        loop.add_reader(self._epoll.fileno(), self._look)

    def watch(self, sock: socket.socket, reader: Reader) -> None:
        self._watched[sock.fileno()] = (sock.recvmsg, reader)
        self._epoll.register(sock.fileno(), _READABLE)

    def pause(self, sock: socket.socket) -> None:
        if sock.fileno() in self._watched:
            self._epoll.modify(sock.fileno(), 0)

    def resume(self, sock: socket.socket) -> None:
        if sock.fileno() in self._watched:
            self._epoll.modify(sock.fileno(), _READABLE)

    def forget(self, sock: socket.socket) -> None:
        if self._watched.pop(sock.fileno(), None) is not None:
            self._epoll.unregister(sock.fileno())

    def _look(self) -> None:
        ready = self._epoll.poll(0)
        # First, so that the next look is sure to come whatever a reader does.
        if ticks(len(ready), len(self._watched)):
            if self._tick is None:
                self._loop.remove_reader(self._epoll.fileno())
            self._tick = self._loop.call_later(TICK_S, self._look)
        elif self._tick is not None:
            self._tick = None
            self._loop.add_reader(self._epoll.fileno(), self._look)
        for descriptor, _ in ready:
            watched = self._watched.get(descriptor)  # a reader before may have closed it
            if watched is not None:
                self._read(descriptor, *watched)

    def _read(self, descriptor: int, recvmsg: Callable[[int, int], Any], reader: Reader) -> None:
        try:
            data, ancillary, _, _ = recvmsg(READ_BYTES, CONTROL_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(descriptor, reader, error)
            return
        if not data:
            self._end(descriptor, reader, None)
        elif ancillary and ancillary[0][1] == SCM_TIMESTAMPNS:
            seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
            reader.take(data, seconds * 1_000_000_000 + nanoseconds)
        else:
            reader.take(data, None)

    def _end(self, descriptor: int, reader: Reader, error: OSError | None) -> None:
        del self._watched[descriptor]
        self._epoll.unregister(descriptor)
        reader.take_end(error)

    def close(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
