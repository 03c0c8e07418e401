"""The kernel's receive stamps: how a socket asks for them, and how they become instants of the monotonic clock."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable

from gevent import monkey

# Linux's value; Python's socket module does not name it. Asking for it makes the control message below appear.
SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)
SCM_TIMESTAMPNS = SO_TIMESTAMPNS
TIMESPEC = struct.Struct("qq")
"""Seconds and nanoseconds of the wall clock, as the control message carries them."""
CONTROL_BYTES = socket.CMSG_SPACE(TIMESPEC.size)
_STAMPS_BEGIN_S = 1.0


class KernelClock:
    """Converts the kernel's wall-clock stamps to the monotonic clock of this machine.

    The offset between the two clocks is measured again every `REFRESH_NS`, so that a step of the wall clock can spoil
    only stamps of that span, and those are caught by `to_monotonic`'s bounds.
    """

    REFRESH_NS = 100_000_000
    SLACK_NS = 100_000
    """What a wall clock that is slewed (500 ppm at most) may gain in a refresh, and the error of a measurement: an
    instant so little out of its bounds is moved to the bound."""

    def __init__(
        self,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self.offset_ns = 0
        """Wall clock − monotonic clock, as measured last."""
        self.fresh_until_ns = 0
        """Instant of the monotonic clock from which on the offset has to be measured again."""
        self.refused = 0
        """Stamps that lay outside the possible span and were replaced by the time of the read."""

    def to_monotonic(self, stamp_ns: int, not_before_ns: int, now_ns: int) -> int:
        """The monotonic instant of a kernel stamp, always within [not_before_ns, now_ns]; `now_ns` when the stamp lies
        outside by more than `SLACK_NS`, so that it cannot be believed."""
        if now_ns >= self.fresh_until_ns:
            self.offset_ns = wall_offset_ns(self._monotonic_ns, self._wall_ns)
            self.fresh_until_ns = now_ns + self.REFRESH_NS
        arrival_ns = stamp_ns - self.offset_ns
        if not_before_ns <= arrival_ns <= now_ns:
            return arrival_ns
        if now_ns < arrival_ns <= now_ns + self.SLACK_NS:
            return now_ns
        if not_before_ns - self.SLACK_NS <= arrival_ns < not_before_ns:
            return not_before_ns
        self.fresh_until_ns = now_ns
        self.refused += 1
        return now_ns


def wall_offset_ns(
    monotonic_ns: Callable[[], int] = time.monotonic_ns, wall_ns: Callable[[], int] = time.time_ns
) -> int:
    """Wall clock − monotonic clock, from the closest of five pairs of readings."""
    best: tuple[int, int] | None = None
    for _ in range(5):
        before = monotonic_ns()
        wall = wall_ns()
        after = monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, wall - (before + after) // 2)
    assert best is not None
    return best[1]


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
            stamped = bool(asking.recvmsg(1, CONTROL_BYTES)[1])
    return asking
