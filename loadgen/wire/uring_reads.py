"""Reads from sockets by io_uring: what arrives is read by the kernel at once, however busy the event loop is.

So what comes while the loop is late does not queue up and merge, and each segment keeps the kernel's receive time of its
own.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
from dataclasses import dataclass

from gevent import monkey

from loadgen.wire.kernel_clock import SCM_TIMESTAMPNS
from loadgen.wire.reads import TICK_S, Reader
from loadgen.wire.uring import Ring

# Ticks begin where one would save several wake-ups, and end with the first that brings nothing.
_LEAST_READY = 4
_PROBE_MS = 200
# The kernel ended a receive for reasons of its own: it was out of buffers, or asked to.
_NOT_THE_PEER = (errno.ENOBUFS, errno.ECANCELED)


@dataclass(slots=True, eq=False)
class _Watched:
    reader: Reader
    descriptor: int
    wanted: bool = True
    """Whether it is to be received from."""
    receiving: bool = True
    """Whether the kernel does."""


class UringReads:
    """Lives on an event loop. Raises OSError where the kernel has no such ring, or forbids it."""

    name = "io_uring"

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ring = Ring(timestamp_type=SCM_TIMESTAMPNS)
        self._tokens = itertools.count(1)
        self._by_token: dict[int, _Watched] = {}
        self._by_descriptor: dict[int, int] = {}
        self._tick: asyncio.TimerHandle | None = None
        try:
            self._probe()
        except OSError:
            self._ring.close()
            raise
        loop.add_reader(self._ring.descriptor, self._look)

    def _probe(self) -> None:
        """Raises OSError when the kernel has rings, but not receives that go on (before Linux 6.0)."""
        near, far = socket.socketpair()
        with near, far:
            far.send(b"?")
            token = next(self._tokens)
            self._ring.receive(near.fileno(), token)
            waiting = monkey.get_original("select", "poll")()  # select() knows no descriptor beyond 1023
            waiting.register(self._ring.descriptor)
            waiting.poll(_PROBE_MS)
            (first, *_) = [*self._ring.completions(), (0, b"", None, errno.ENOSYS, False)]
            if first[1] != b"?" or not first[4]:
                raise OSError(first[3], os.strerror(first[3]))
            self._ring.cancel(token)

    def watch(self, sock: socket.socket, reader: Reader) -> None:
        descriptor, token = sock.fileno(), next(self._tokens)
        self._by_token[token] = _Watched(reader, descriptor)
        self._by_descriptor[descriptor] = token
        self._ring.receive(descriptor, token)

    def pause(self, sock: socket.socket) -> None:
        token = self._by_descriptor.get(sock.fileno())
        if token is not None:
            self._by_token[token].wanted = False
            self._ring.cancel(token)

    def resume(self, sock: socket.socket) -> None:
        token = self._by_descriptor.get(sock.fileno())
        if token is not None:
            watched = self._by_token[token]
            watched.wanted = True
            if not watched.receiving:  # else the completion of the cancelled one sees to it
                watched.receiving = True
                self._ring.receive(watched.descriptor, token)

    def forget(self, sock: socket.socket) -> None:
        token = self._by_descriptor.pop(sock.fileno(), None)
        if token is not None:
            del self._by_token[token]
            self._ring.cancel(token)

    def _look(self) -> None:
        looked = 0
        try:
            for token, data, stamp_ns, error, goes_on in self._ring.completions():
                looked += 1
                watched = self._by_token.get(token)
                if watched is None:  # forgotten in the meantime
                    continue
                if data:
                    watched.reader.take(data, stamp_ns)
                if not goes_on:
                    self._stopped(token, watched, error, by_peer=not data and error not in _NOT_THE_PEER)
        finally:
            self._plan_next(looked)

    def _stopped(self, token: int, watched: _Watched, error: int, *, by_peer: bool) -> None:
        watched.receiving = False
        if token not in self._by_token:  # its reader has closed it just now
            return
        if by_peer:
            del self._by_token[token], self._by_descriptor[watched.descriptor]
            watched.reader.take_end(OSError(error, os.strerror(error)) if error else None)
        elif watched.wanted:
            watched.receiving = True
            self._ring.receive(watched.descriptor, token)

    def _plan_next(self, looked: int) -> None:
        if looked >= (_LEAST_READY if self._tick is None else 1):
            if self._tick is None:
                self._loop.remove_reader(self._ring.descriptor)
            self._tick = self._loop.call_later(TICK_S, self._look)
        elif self._tick is not None:
            self._tick = None
            self._loop.add_reader(self._ring.descriptor, self._look)

    def close(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
        self._loop.remove_reader(self._ring.descriptor)
        self._ring.close()
