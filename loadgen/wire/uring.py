"""Linux's io_uring as far as receiving needs it: a ring whose sockets are read by the kernel as their bytes arrive.

One multishot `recvmsg` a socket, into buffers that the kernel takes from a ring of its own (io_uring(7),
io_uring_prep_recvmsg_multishot(3), io_uring_register_buf_ring(3)). The kernel reads a segment when it comes, also while
this thread is busy with something else, so segments do not queue up and merge, and each keeps its own receive stamp.

No library is needed: two system calls, and memory shared with the kernel. On x86-64 only: loads and stores are not
reordered there, and Python has no memory barriers.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import platform
import struct
import sys
from collections.abc import Iterator

_SETUP, _ENTER, _REGISTER = 425, 426, 427  # system calls, the same number on every architecture
_CQ_SIZE, _COOPERATIVE = 1 << 3, 1 << 8  # IORING_SETUP_CQSIZE, IORING_SETUP_COOP_TASKRUN
_REGISTER_BUFFERS = 22  # IORING_REGISTER_PBUF_RING
_RECVMSG, _CANCEL = 10, 14  # IORING_OP_RECVMSG, IORING_OP_ASYNC_CANCEL
_FROM_BUFFERS, _MULTISHOT = 1 << 5, 1 << 1  # IOSQE_BUFFER_SELECT, IORING_RECV_MULTISHOT
_QUIET, _EVERY = 1 << 6, 1 << 0 | 1 << 2  # IOSQE_CQE_SKIP_SUCCESS, IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY
_OVERFLOW, _GET_EVENTS = 1 << 1, 1 << 0  # IORING_SQ_CQ_OVERFLOW, IORING_ENTER_GETEVENTS
_HAS_BUFFER, _MORE = 1 << 0, 1 << 1  # IORING_CQE_F_BUFFER, IORING_CQE_F_MORE
_SQ_ENTRIES = 4  # each request is handed over at once
_SQES_OFFSET = 0x10000000  # IORING_OFF_SQES

_PARAMS = struct.Struct("<10I8IQ8IQ")
_SQE = struct.Struct("<BBHiQQIIQHHiQQ")
_CQE = struct.Struct("<QiI")
_BUFFER = struct.Struct("<QIH")
_BUFFER_BYTES = 16
_MSGHDR = struct.Struct("<QI4xQQQQi4x")
# struct io_uring_recvmsg_out, then the control message: its header and a time in seconds and nanoseconds.
_HEADER = struct.Struct("<4xII4x8x4xiqq")
_CONTROL_BYTES = 32


Completion = tuple[int, bytes, int | None, int, bool]
"""(token, data, stamp, error, goes on): the bytes, empty at the end and with an error; their receive time on the wall
clock in nanoseconds, if they have one; errno or 0; whether the socket is still being received from."""


class Ring:
    """One ring and its buffers. Must be made and used in one thread: the kernel receives in that thread's name."""

    def __init__(self, *, buffers: int = 16_384, buffer_bytes: int = 1024, timestamp_type: int) -> None:
        """`buffers`: a power of two. `timestamp_type`: of the control message that bears the receive time. Raises OSError
        where the kernel has no io_uring, or forbids it."""
        if sys.platform != "linux" or platform.machine() != "x86_64":
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.restype = ctypes.c_long
        self._timestamp_type = timestamp_type
        params = bytearray(_PARAMS.size)
        # Every completion holds a buffer but the last one of a socket. What does not fit the kernel keeps: `completions`.
        struct.pack_into("<3I", params, 0, _SQ_ENTRIES, 2 * buffers, _CQ_SIZE | _COOPERATIVE)
        self.descriptor = self._call(_SETUP, _SQ_ENTRIES, (ctypes.c_char * len(params)).from_buffer(params))
        try:
            self._map(_PARAMS.unpack(params))
            self._give_buffers(buffers, buffer_bytes)
        except BaseException:
            os.close(self.descriptor)
            raise

    def _call(self, number: int, *arguments: object) -> int:
        result = int(self._libc.syscall(number, *arguments))
        if result < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return result

    def _map(self, params: tuple[int, ...]) -> None:
        sq_entries, cq_entries = params[:2]
        sq, cq = params[10:19], params[19:28]
        size = max(sq[6] + 4 * sq_entries, cq[5] + _CQE.size * cq_entries)
        flags, access = mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ | mmap.PROT_WRITE
        self._rings = mmap.mmap(self.descriptor, size, flags, access)
        self._sqes = mmap.mmap(self.descriptor, _SQE.size * sq_entries, flags, access, offset=_SQES_OFFSET)
        self._words = memoryview(self._rings).cast("I")
        self._sq_tail, self._sq_mask, self._sq_array = sq[1] // 4, self._words[sq[2] // 4], sq[6] // 4
        self._sq_flags = sq[4] // 4
        self._cq_head, self._cq_tail, self._cq_mask = cq[0] // 4, cq[1] // 4, self._words[cq[2] // 4]
        self._cqes = cq[5]

    def _give_buffers(self, buffers: int, buffer_bytes: int) -> None:
        self._buffer_bytes, self._buffer_mask = buffer_bytes, buffers - 1
        self._memory = mmap.mmap(-1, buffers * buffer_bytes)
        self._free = mmap.mmap(-1, buffers * _BUFFER_BYTES)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        free_address = ctypes.addressof(ctypes.c_char.from_buffer(self._free))
        self._call(
            _REGISTER, self.descriptor, _REGISTER_BUFFERS, struct.pack("<QIHHQQQ", free_address, buffers, *[0] * 5), 1
        )
        for number in range(buffers):
            _BUFFER.pack_into(
                self._free, number * _BUFFER_BYTES, self._address + number * buffer_bytes, buffer_bytes, number
            )
        self._free_tail = buffers
        self._in_order = True
        self._publish()
        message = _MSGHDR.pack(0, 0, 0, 0, 0, _CONTROL_BYTES, 0)
        self._message = ctypes.create_string_buffer(message)

    def _give_out_of_order(self, number: int) -> None:
        self._in_order = False
        place = (self._free_tail & self._buffer_mask) * _BUFFER_BYTES
        _BUFFER.pack_into(self._free, place, self._address + number * self._buffer_bytes, self._buffer_bytes, number)

    def _publish(self) -> None:
        struct.pack_into("<H", self._free, 14, self._free_tail & 0xFFFF)

    def receive(self, descriptor: int, token: int) -> None:
        """Has everything received from a socket until it ends, fails or is cancelled. `token`: not 0, one of its own."""
        self._submit(_RECVMSG, _FROM_BUFFERS, _MULTISHOT, descriptor, 0, ctypes.addressof(self._message), 1, 0, token)

    def cancel(self, token: int) -> None:
        """Ends a `receive`; the kernel lets go of the socket, which it would else keep open beyond its close."""
        self._submit(_CANCEL, _QUIET, 0, -1, 0, token, 0, 0, 0)

    def _submit(self, *fields: int) -> None:
        tail = self._words[self._sq_tail]
        slot = tail & self._sq_mask
        _SQE.pack_into(self._sqes, slot * _SQE.size, *fields, 0, 0, 0, 0, 0)
        self._words[self._sq_array + slot] = slot
        self._words[self._sq_tail] = (tail + 1) & 0xFFFFFFFF
        while True:
            try:
                self._call(_ENTER, self.descriptor, 1, 0, 0, None, 0)
                return
            except InterruptedError:
                continue
            except OSError:  # it was not taken, and must not be in the place of the next one
                self._words[self._sq_tail] = tail
                raise

    def completions(self) -> Iterator[Completion]:
        """What has come so far, each once. `descriptor` is readable while there is any."""
        words, rings, memory, mask = self._words, self._rings, self._memory, self._cq_mask
        buffer_bytes, timestamp_type = self._buffer_bytes, self._timestamp_type
        unpack, unpack_header, header_bytes = _CQE.unpack_from, _HEADER.unpack_from, _HEADER.size
        head, end = words[self._cq_head], words[self._cq_tail]
        try:
            while head != end:
                token, result, flags = unpack(rings, self._cqes + (head & mask) * 16)
                words[self._cq_head] = head = (head + 1) & 0xFFFFFFFF
                data, stamp_ns = b"", None
                if flags & _HAS_BUFFER:
                    number = flags >> 16
                    at = number * buffer_bytes
                    control, size, kind, seconds, nanoseconds = unpack_header(memory, at)
                    data = memory[at + header_bytes : at + header_bytes + size]
                    if control and kind == timestamp_type:
                        stamp_ns = seconds * 1_000_000_000 + nanoseconds
                    # The kernel takes buffers in the order in which they were given, so what is given back would write
                    # what its place says already.
                    if not self._in_order or number != self._free_tail & self._buffer_mask:
                        self._give_out_of_order(number)
                    self._free_tail += 1
                if token:  # not a cancellation's own
                    yield token, data, stamp_ns, -result if result < 0 else 0, bool(flags & _MORE)
        finally:
            self._publish()
            # Completions that found no place came to a list of the kernel's, and with them all later ones, until it is asked
            # to move them.
            if words[self._sq_flags] & _OVERFLOW:
                with contextlib.suppress(OSError):  # the descriptor stays readable: the next look asks again
                    self._call(_ENTER, self.descriptor, 0, 0, _GET_EVENTS, None, 0)

    def close(self) -> None:
        """The kernel ends every receive, and lets go of the sockets at once."""
        with contextlib.suppress(OSError):
            self._submit(_CANCEL, _QUIET, 0, -1, 0, 0, 0, _EVERY, 0)
        # The memory shared with the kernel keeps the ring as well as its descriptor does.
        self._words.release()
        self._rings.close()
        self._sqes.close()
        os.close(self.descriptor)
