"""The TCP segments that arrive from a target, each with the kernel's time of its packet; needs CAP_NET_RAW (Linux).

A packet socket with a ring that the kernel fills and this process reads as one numpy array: no system call and no line
of Python for a single packet. A filter in the kernel keeps everything out but TCP from the target's port and addresses,
incoming copies only, so that a packet over the loopback interface counts once. Payload is never read.

Layouts and constants: linux/if_packet.h and Documentation/networking/packet_mmap.rst of the kernel, TPACKET_V2.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import mmap
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from loadgen.audit_trail import SEGMENT, Segments
from loadgen.wire.kernel_clock import wall_offset_ns

SOL_PACKET = 263
_PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION = 5, 6, 10
_PACKET_TIMESTAMP, _PACKET_IGNORE_OUTGOING = 17, 23
_TPACKET_V2 = 1
_SOFTWARE_STAMPS = 1 << 4  # SOF_TIMESTAMPING_SOFTWARE
_STATUS_USER = 1
_ETH_P_ALL, _ETH_P_IP, _ETH_P_IPV6 = 0x0003, 0x0800, 0x86DD
_SO_ATTACH_FILTER = 26
_SO_TIMESTAMPNS = 35

FRAME_BYTES = 256
"""One packet's place in the ring: the kernel's header (80 bytes), then as much of IP and TCP headers as there ever is."""
BLOCK_BYTES = 1 << 20
FRAMES = 65_536
"""16 MiB of ring: more than half a second of 100,000 packets a second, should this process not run for so long."""
_SNAP_BYTES = 128
_CHUNK_FRAMES = 1024
_PLAUSIBLE_NS = 5_000_000
"""How far beyond the span between two reads a stamp may lie: the kernel stamps before it puts a packet into the ring."""

Instruction = tuple[int, int, int, int]


def filter_program(port: int, addresses: Sequence[str]) -> list[Instruction]:
    """Classic BPF (code, jump if true, jump if false, constant): accept incoming TCP from `port` of any of `addresses`.

    Loads are relative to the network header. IPv6 with extension headers is not accepted: TCP does not use them.
    """
    v4 = [ipaddress.ip_address(a) for a in addresses if ":" not in a]
    v6 = [ipaddress.ip_address(a) for a in addresses if ":" in a]
    drop, accept = (0x06, 0, 0, 0), (0x06, 0, 0, _SNAP_BYTES)
    ipv4: list[Instruction] = [
        *_unless_equal(0x30, 9, socket.IPPROTO_TCP),
        *[(0x28, 0, 0, 6), (0x45, 0, 1, 0x1FFF), drop],  # a fragment but the first has no TCP header
        (0xB1, 0, 0, 0),  # X: length of the IP header
        *[(0x48, 0, 0, 0), (0x15, 1, 0, port), drop],
        (0x20, 0, 0, 12),
    ]
    for address in v4:
        ipv4 += [(0x15, 0, 1, int(address)), accept]
    ipv4.append(drop)
    ipv6: list[Instruction] = [*_unless_equal(0x30, 6, socket.IPPROTO_TCP), *_unless_equal(0x28, 40, port)]
    for address in v6:
        words = struct.unpack(">4I", address.packed)
        for i, word in enumerate(words):
            ipv6 += [(0x20, 0, 0, 8 + 4 * i), (0x15, 0, 2 * (3 - i) + 1, word)]
        ipv6.append(accept)
    ipv6.append(drop)
    # The kernel's own facts of a packet lie at -4096 (SKF_AD_OFF): protocol at 0, kind (0 = to this host) at 4.
    return [
        *_unless_equal(0x28, 0xFFFFF004, 0),
        (0x28, 0, 0, 0xFFFFF000),
        *[(0x15, 2, 0, _ETH_P_IP), (0x15, 2, 0, _ETH_P_IPV6), drop],
        (0x05, 0, 0, 1),
        (0x05, 0, 0, len(ipv4)),
        *ipv4,
        *ipv6,
    ]


def _unless_equal(load: int, offset: int, constant: int) -> list[Instruction]:
    """Drop unless what is loaded equals the constant."""
    return [(load, 0, 0, offset), (0x15, 1, 0, constant), (0x06, 0, 0, 0)]


def may_capture() -> bool:
    """Whether this process may open a packet socket here (Linux, CAP_NET_RAW)."""
    if sys.platform != "linux":
        return False
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0).close()
    except OSError:
        return False
    return True


class StampConverter:
    """Converts the kernel's wall-clock stamps to the monotonic clock, a batch at a time.

    A stamp must lie between the read before and now. Where the wall clock was stepped meanwhile, either the offset
    before or the one after puts it there; where neither does, the stamp is refused.
    """

    def __init__(
        self, monotonic_ns: Callable[[], int] = time.monotonic_ns, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self._offset_ns = wall_offset_ns(monotonic_ns, wall_ns)
        self._since_ns = monotonic_ns()
        self.refused = 0

    def to_monotonic(self, stamps_ns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """(instants, whether each can be believed); shape as `stamps_ns`, wall-clock nanoseconds since the last call."""
        before_ns, self._offset_ns = self._offset_ns, wall_offset_ns(self._monotonic_ns, self._wall_ns)
        now_ns = self._monotonic_ns()
        least_ns, most_ns = self._since_ns - _PLAUSIBLE_NS, now_ns + _PLAUSIBLE_NS
        self._since_ns = now_ns
        instants = stamps_ns - self._offset_ns
        good = (instants >= least_ns) & (instants <= most_ns)
        if not good.all():
            instants = np.where(good, instants, stamps_ns - before_ns)
            good = (instants >= least_ns) & (instants <= most_ns)
            self.refused += int(np.count_nonzero(~good))
        return instants, good


class PacketRing:
    """Captures from its making on. One reader, which calls `read` before the ring is full."""

    def __init__(self, port: int, addresses: Sequence[str], frames: int = FRAMES) -> None:
        """`addresses`: of the target, as numbers; the place in this list is the segments' `peer`. `frames`: a multiple of
        4096.

        Raises PermissionError without CAP_NET_RAW, OSError where the kernel has no such ring.
        """
        self._peers = _peer_words(addresses)
        self._converter = StampConverter()
        self.drops = 0
        """Packets for which there was no room."""
        self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
        try:
            # The filter comes first; what was queued before it is thrown away when the ring is made.
            self._attach(filter_program(port, addresses))
            with contextlib.suppress(OSError):  # before Linux 4.20 the filter alone does it, at a higher price
                self._sock.setsockopt(SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
            self._sock.setsockopt(SOL_PACKET, _PACKET_VERSION, _TPACKET_V2)
            self._sock.setsockopt(SOL_PACKET, _PACKET_TIMESTAMP, _SOFTWARE_STAMPS)
            # Has the kernel stamp packets where they arrive; else it would stamp them when they come to this ring.
            self._sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            size = frames * FRAME_BYTES
            request = struct.pack("4I", BLOCK_BYTES, size // BLOCK_BYTES, FRAME_BYTES, frames)
            self._sock.setsockopt(SOL_PACKET, _PACKET_RX_RING, request)
            self._map = mmap.mmap(self._sock.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except BaseException:
            self._sock.close()
            raise
        self._frames = np.frombuffer(self._map, np.uint8).reshape(frames, FRAME_BYTES)
        self._status = self._frames.view(np.uint32)[:, 0]
        self._head = 0

    def _attach(self, program: Sequence[Instruction]) -> None:
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
        self._sock.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(program), ctypes.addressof(code))
        )

    def read(self) -> Segments:
        """Every segment with payload, or that opened a connection, since the last call; in order of arrival."""
        batches = []
        taken = 0
        while taken < len(self._frames):
            ready = self._ready()
            if not ready:
                break
            frames = self._frames[self._head : self._head + ready].copy()
            self._status[self._head : self._head + ready] = 0
            self._head = (self._head + ready) % len(self._frames)
            taken += ready
            batches.append(parse_frames(frames, self._peers))
        statistics = self._sock.getsockopt(SOL_PACKET, _PACKET_STATISTICS, 8)
        self.drops += struct.unpack("II", statistics)[1]
        segments = np.concatenate(batches) if batches else np.empty(0, SEGMENT)
        segments["stamp_ns"], good = self._converter.to_monotonic(segments["stamp_ns"])
        return segments[good]

    def _ready(self) -> int:
        """How many frames from the head on are filled; at most so many that they lie in one piece."""
        statuses = self._status[self._head : self._head + _CHUNK_FRAMES]
        filled = (statuses & _STATUS_USER) != 0
        return len(filled) if filled.all() else int(np.argmin(filled))

    @property
    def refused_stamps(self) -> int:
        """Segments left out because the wall clock was stepped around their stamp."""
        return self._converter.refused

    def close(self) -> None:
        """Ends the capture."""
        del self._frames, self._status
        self._map.close()
        self._sock.close()


def _peer_words(addresses: Sequence[str]) -> NDArray[np.uint8]:
    """shape (addresses, 16): each as IPv6, an IPv4 one in its last four bytes and nothing else."""
    return np.array(
        [list(ipaddress.ip_address(address).packed.rjust(16, b"\0")) for address in addresses], np.uint8
    ).reshape(len(addresses), 16)


def parse_frames(frames: NDArray[np.uint8], peers: NDArray[np.uint8]) -> Segments:
    """The segments in frames of the ring (shape (frames, FRAME_BYTES)), with their stamps still in wall time.

    Acknowledgements without payload are left out. `peers`: see `_peer_words`.
    """
    words, halves = frames.view(np.uint32), frames.view(np.uint16)
    rows = np.arange(len(frames))
    network = halves[:, 7].astype(np.int64)  # tp_net: where the IP header begins
    first = frames[rows, network]
    is_v6 = (first >> 4) == 6
    header = np.where(is_v6, 40, (first & 15).astype(np.int64) * 4)
    tcp = network + header
    # A merged segment may be longer than the IP header can say, so the packet's own length counts, but a short packet
    # may be padded, so the IP header's counts where it says one.
    said = _number(frames, rows, network + np.where(is_v6, 4, 2), 2)
    whole = np.where(said == 0, words[:, 1].astype(np.int64), np.where(is_v6, said + 40, said))
    length = whole - header - (frames[rows, tcp + 12] >> 4).astype(np.int64) * 4
    flags = frames[rows, tcp + 13]
    syn = (flags & 0x02) != 0
    # IPv6 has its source at 8; of IPv4 the sixteen bytes that end in it, the rest blanked.
    source = frames[rows[:, None], network[:, None] + np.where(is_v6, 8, 0)[:, None] + np.arange(16)]
    source[~is_v6, :12] = 0
    made = np.zeros(len(frames), SEGMENT)
    made["stamp_ns"] = words[:, 4].astype(np.int64) * 1_000_000_000 + words[:, 5]
    made["seq"] = _number(frames, rows, tcp + 4, 4)
    made["length"] = np.where(syn, 0, np.maximum(length, 0))
    made["port"] = _number(frames, rows, tcp + 2, 2)
    made["peer"] = (source[:, None, :] == peers).all(axis=2).argmax(axis=1)
    made["syn"] = syn
    kept: Segments = made[syn | (length > 0)]
    return kept


def _number(frames: NDArray[np.uint8], rows: NDArray[np.int64], at: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """A big-endian number at each row's own place."""
    digits = frames[rows[:, None], at[:, None] + np.arange(size)].astype(np.int64)
    numbers: NDArray[np.int64] = digits @ (256 ** np.arange(size - 1, -1, -1))
    return numbers
