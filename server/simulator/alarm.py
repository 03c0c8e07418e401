"""Wakes an event loop at an instant of the monotonic clock: a kernel timer where there is one, else the loop's own.

uvloop's timers count whole milliseconds, which would round every step; a Linux timerfd is late by tens of microseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_SECOND_NS = 1_000_000_000


class _ITimerSpec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "at_s", "at_ns")]


class Alarm:
    """One alarm; setting it again replaces the instant it is set to."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._fd: int | None = None
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            # TFD_NONBLOCK and TFD_CLOEXEC are defined as these two flags of open.
            fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            if fd >= 0:
                self._fd = fd
                loop.add_reader(fd, self._ring)

    def set(self, at_ns: int) -> None:
        """Call back at `at_ns` of `time.monotonic_ns`, at once when that is past."""
        if self._fd is None:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_later(max(0, at_ns - time.monotonic_ns()) / _SECOND_NS, self._callback)
            return
        spec = _ITimerSpec(0, 0, *divmod(at_ns, _SECOND_NS))
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        """Call back no more."""
        if self._handle is not None:
            self._handle.cancel()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _ring(self) -> None:
        # Nothing to read: the alarm was set anew after it had rung, and will ring again.
        if self._fd is None:
            return
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
            self._callback()
