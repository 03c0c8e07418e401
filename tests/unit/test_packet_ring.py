"""The packet ring on the loopback interface, the parsing of its frames, and the conversion of its stamps."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest

from loadgen.audit_trail import SEGMENT
from loadgen.wire.packet_ring import FRAME_BYTES, PacketRing, StampConverter, _peer_words, may_capture, parse_frames
from tests.clocks import Clocks

needs_capture = pytest.mark.skipif(not may_capture(), reason="needs CAP_NET_RAW on Linux")


@contextlib.contextmanager
def connected(address: str) -> Iterator[tuple[socket.socket, socket.socket, PacketRing]]:
    """(client's end, server's end, ring) of a connection that the ring saw from its opening."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip(f"this host has no {address}")
    with server:
        port = server.getsockname()[1]
        with (
            contextlib.closing(PacketRing(port, ["10.9.9.9", "127.0.0.1", "fd00::9", "::1"], frames=4096)) as ring,
            socket.create_connection((address, port)) as client,
            server.accept()[0] as accepted,
        ):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield client, accepted, ring


def receive(client: socket.socket, count: int) -> None:
    while count:
        count -= len(client.recv(count))


@needs_capture
@pytest.mark.parametrize(("address", "peer"), [("127.0.0.1", 1), ("::1", 3)])
def test_each_segment_of_the_target_is_captured_once_and_nothing_else(address: str, peer: int) -> None:
    sizes = [1, 100, 5000, 7]
    with connected(address) as (client, server, ring):
        began_ns = time.monotonic_ns()
        for size in sizes:
            client.sendall(b"question")  # to the target: not captured
            receive(server, 8)
            server.sendall(b"x" * size)
            receive(client, size)
        with (
            socket.create_server(("127.0.0.1", 0)) as other,
            socket.create_connection(other.getsockname()) as elsewhere,
            other.accept()[0] as answering,
        ):
            answering.sendall(b"from another port")
            assert elsewhere.recv(100)
        segments = ring.read()
        ended_ns = time.monotonic_ns()
        assert segments["syn"].tolist() == [1, 0, 0, 0, 0]
        assert segments["length"].tolist() == [0, *sizes]
        assert set(segments["port"].tolist()) == {client.getsockname()[1]}
        assert set(segments["peer"].tolist()) == {peer}
        first = int(segments["seq"][0]) + 1
        assert segments["seq"][1:].tolist() == [(first + sum(sizes[:i])) % 2**32 for i in range(len(sizes))]
        stamps = segments["stamp_ns"]
        assert (np.diff(stamps) > 0).all()
        assert began_ns - 1_000_000 < stamps[1] and stamps[-1] < ended_ns + 1_000_000
        assert not len(ring.read())
        assert (ring.drops, ring.refused_stamps) == (0, 0)


@needs_capture
def test_a_segment_as_large_as_the_interface_takes_has_its_whole_length() -> None:
    with connected("127.0.0.1") as (client, server, ring):
        server.sendall(b"x" * 1_000_000)
        receive(client, 1_000_000)
        segments = ring.read()
        assert segments["length"].sum() == 1_000_000
        assert segments["length"].max() > 20_000


@needs_capture
def test_a_ring_that_is_full_counts_what_it_drops_and_goes_on() -> None:
    with connected("127.0.0.1") as (client, server, ring):
        for _ in range(12_000):
            server.sendall(b"x")
            receive(client, 1)
        segments = ring.read()
        assert len(segments) == 4096
        assert ring.drops == 12_000 + 1 - 4096
        server.sendall(b"y" * 10)
        receive(client, 10)
        assert ring.read()["length"].tolist() == [10]


def frame(ip: bytes, tcp: bytes, *, whole: int, second: int = 5, nanosecond: int = 7) -> np.ndarray:
    """One frame of the ring as the kernel fills it: header, link address, IP and TCP headers."""
    net = 80
    head = struct.pack("IIIHHIIHH", 1, whole, len(ip + tcp), net, net, second, nanosecond, 0, 0)
    return np.frombuffer((head.ljust(net, b"\0") + ip + tcp).ljust(FRAME_BYTES, b"\0"), np.uint8)


def tcp(seq: int, *, flags: int = 0x18, options: int = 0, port: int = 40_000) -> bytes:
    return struct.pack(">HHIIBBHHH", 8000, port, seq, 0, (5 + options) << 4, flags, 0, 0, 0) + bytes(4 * options)


def ipv4(said: int, *, options: int = 0, source: str = "10.0.0.1") -> bytes:
    head = struct.pack(">BBHHHBBH", 0x45 + options, 0, said, 0, 0, 64, 6, 0)
    return head + socket.inet_aton(source) + socket.inet_aton("10.0.0.2") + bytes(4 * options)


def ipv6(said: int, source: str = "fd00::1") -> bytes:
    addresses = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, "fd00::2")
    return struct.pack(">IHBB", 6 << 28, said, 6, 64) + addresses


PEERS = _peer_words(["10.0.0.1", "fd00::1"])


@pytest.mark.parametrize(
    ("one", "length", "peer"),
    [
        (frame(ipv4(20 + 20 + 5), tcp(9), whole=45), 5, 0),
        (frame(ipv4(60 + 60 + 5, options=10), tcp(9, options=10), whole=125), 5, 0),
        (frame(ipv4(20 + 20 + 5), tcp(9), whole=60), 5, 0),  # padded to the least Ethernet has
        (frame(ipv4(0), tcp(9), whole=40 + 200_000), 200_000, 0),  # too long for the IP header to say
        (frame(ipv6(20 + 5), tcp(9), whole=65), 5, 1),
        (frame(ipv6(0), tcp(9), whole=60 + 200_000), 200_000, 1),
    ],
    ids=["plain", "options", "padded", "merged", "ipv6", "ipv6-merged"],
)
def test_a_frame_gives_its_segment(one: np.ndarray, length: int, peer: int) -> None:
    found = parse_frames(np.array([one]), PEERS)
    assert found.tolist() == [(5_000_000_007, 9, length, 40_000, peer, 0)]


def test_an_acknowledgement_without_payload_is_left_out_and_an_opening_is_kept() -> None:
    frames = [
        frame(ipv4(40), tcp(9, flags=0x10), whole=40),
        frame(ipv4(44), tcp(8, flags=0x12, options=1), whole=44),
        frame(ipv4(40), tcp(10, flags=0x11), whole=60),
    ]
    found = parse_frames(np.array(frames), PEERS)
    assert [(int(one["seq"]), int(one["length"]), int(one["syn"])) for one in found] == [(8, 0, 1)]
    assert parse_frames(np.empty((0, FRAME_BYTES), np.uint8), PEERS).dtype == SEGMENT


@pytest.mark.parametrize("step_ns", [0, 3_600_000_000_000, -3_600_000_000_000, 20_000_000])
def test_a_step_of_the_wall_clock_between_two_reads_moves_no_stamp(step_ns: int) -> None:
    clocks = Clocks()
    converter = StampConverter(lambda: clocks.monotonic, lambda: clocks.wall)
    clocks.advance(10_000_000)
    before, before_stamp = clocks.monotonic, clocks.wall
    clocks.advance(10_000_000)
    clocks.wall += step_ns
    clocks.advance(10_000_000)
    after, after_stamp = clocks.monotonic, clocks.wall
    clocks.advance(10_000_000)
    instants, good = converter.to_monotonic(np.array([before_stamp, after_stamp]))
    if step_ns != 20_000_000:  # a step no longer than the time between two reads can hide in it
        assert instants.tolist() == [before, after]
    assert good.all() and instants[1] == after and converter.refused == 0


def test_a_stamp_that_no_offset_explains_is_refused_and_counted() -> None:
    clocks = Clocks()
    converter = StampConverter(lambda: clocks.monotonic, lambda: clocks.wall)
    clocks.advance(10_000_000)
    _, good = converter.to_monotonic(np.array([clocks.wall, clocks.wall + 60_000_000_000, 0]))
    assert good.tolist() == [True, False, False]
    assert converter.refused == 2
