"""How received bytes come from sockets to their readers: what every way of reading gives; it reads nothing itself."""

from __future__ import annotations

import socket
from typing import Protocol

TICK_S = 0.001
"""While many streams are busy, what has come is looked at once a tick and not once a token, which saves a wake-up for
each. Nothing is lost by it: the kernel has stamped what arrived."""


class Reader(Protocol):
    """Gets what one socket receives, in order."""

    def take(self, data: bytes, stamp_ns: int | None) -> None:
        """`stamp_ns`: the kernel's receive time of the last byte, wall clock; None when it has none."""

    def take_end(self, error: OSError | None) -> None:
        """The peer sends no more, or the connection failed. Comes at most once, as the last."""


class Reads(Protocol):
    """Reads for any number of sockets. Lives on one event loop, in its thread."""

    name: str

    def watch(self, sock: socket.socket, reader: Reader) -> None:
        """Gives `reader` what arrives from now on."""

    def pause(self, sock: socket.socket) -> None:
        """Leaves what arrives in the kernel; what has been read already may still be given."""

    def resume(self, sock: socket.socket) -> None:
        """Goes on after `pause`."""

    def forget(self, sock: socket.socket) -> None:
        """Must come before the socket is closed. Does nothing when it is not watched."""

    def close(self) -> None:
        """Gives nothing any more, whatever is still watched."""
