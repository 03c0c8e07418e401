"""Puts the bytes of one response on the wire at once: straight to the socket, past the event loop's write queue.

uvloop sends at the end of a loop turn, so with many streams the last token of a step would leave milliseconds after
its stamp; sent here, the stamp is the truth.
"""

from __future__ import annotations

import asyncio
import os
import socket

SLOW_READER_BYTES = 1 << 20
"""A client that leaves more than this unread, beyond what the kernel holds, is disconnected."""


class Wire:
    """The body of one response. Never raises for what the peer does; a lost peer closes the connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        """Takes the transport after the headers were written to it."""
        self._transport = transport
        # A duplicate keeps the descriptor ours: the transport may close its own in the middle of a step.
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self._socket.setblocking(False)

    def send(self, data: bytes) -> None:
        """Send now; what the kernel does not take is queued on the transport, in order."""
        transport = self._transport
        if transport.is_closing():
            return
        if not transport.get_write_buffer_size():
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                transport.abort()
                return
            if sent == len(data):
                return
            data = data[sent:]
        transport.write(data)
        if transport.get_write_buffer_size() > SLOW_READER_BYTES:
            transport.abort()

    def close(self) -> None:
        """Give the duplicate back; the transport stays as it is."""
        self._socket.close()
