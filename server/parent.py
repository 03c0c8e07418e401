"""Ties the life of this process to its parent's, so that a killed controller leaves no orphan (Linux)."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tie_to_parent(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when the thread that started it ends; OSError where it cannot.

    `parent` is the process id of who should be there: if it has died already, this process ends at once.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "only Linux can tie a process to its parent")
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if os.getppid() != parent:
        os._exit(1)
