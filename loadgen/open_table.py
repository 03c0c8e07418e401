"""The requests that a worker has under way, in a file that outlives it: what was begun is never lost, even by SIGKILL.

The file is mapped into memory, so noting a request costs no system call, and the kernel keeps what was noted. A slot is
freed only when the request's record is in the spool: together, spool and table hold every request that was begun.
"""

from __future__ import annotations

import collections
import mmap
import os
import struct
from pathlib import Path

_SLOT = struct.Struct("<IIqq")
"""Level, kind, index, dispatched_ns."""
_FREE = 0xFFFFFFFF
_FREE_SLOT = _SLOT.pack(_FREE, 0, 0, 0)
_FIRST_SLOTS = 1024


class OpenTable:
    """Written by one worker. `begin` is called on the event loop, `end` in the hub."""

    def __init__(self, path: Path) -> None:
        """Makes the file. Raises FileExistsError when it is there already."""
        self._file = path.open("x+b")
        self._file.write(_FREE_SLOT * _FIRST_SLOTS)
        self._file.flush()
        self._slots = _FIRST_SLOTS
        self._map = mmap.mmap(self._file.fileno(), 0)
        self._free = collections.deque(range(_FIRST_SLOTS))

    def begin(self, level: int, index: int, dispatched_ns: int, kind: int = 0) -> int:
        """Notes a request; gives its slot. Raises OSError when the table must grow and the disk is full."""
        try:
            slot = self._free.popleft()
        except IndexError:
            slot = self._grow()
        _SLOT.pack_into(self._map, slot * _SLOT.size, level, kind, index, dispatched_ns)
        return slot

    def end(self, slot: int) -> None:
        """The request of this slot is in the spool."""
        self._mark_free(slot)
        self._free.append(slot)

    def _grow(self) -> int:
        first = self._slots
        # Allocated before it is mapped: on a full disk, touching a page that has no block would end the process.
        os.posix_fallocate(self._file.fileno(), 0, 2 * first * _SLOT.size)
        self._slots *= 2
        self._map.resize(self._slots * _SLOT.size)
        for slot in range(first, self._slots):
            self._mark_free(slot)
        self._free.extend(range(first + 1, self._slots))
        return first

    def _mark_free(self, slot: int) -> None:
        _SLOT.pack_into(self._map, slot * _SLOT.size, _FREE, 0, 0, 0)

    def close(self) -> None:
        self._map.close()
        self._file.close()


def read_open(path: Path) -> list[tuple[int, int, int, int]]:
    """(level, kind, index, dispatched_ns) of every request that was begun and is not in the spool."""
    content = path.read_bytes()
    whole = len(content) // _SLOT.size * _SLOT.size
    return [slot for slot in _SLOT.iter_unpack(content[:whole]) if slot[0] != _FREE]
