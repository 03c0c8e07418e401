"""For a transport that is not ours (a Unix socket, another loop): stamps its writes in user space and nothing else.

Its arrivals are those of the reads, so a run over it says `user space`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any


class StampedWrites:
    """A foreign transport whose writes are stamped in user space; everything else is the transport's own."""

    kernel_stamps = False
    arrival_ns = longest_delay_ns = 0
    sent_done_ns: int | None = None
    """Not known: the loop may send later."""

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
