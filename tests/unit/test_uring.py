"""io_uring on real sockets: nothing lost, merged or held open; skipped where the kernel does not let us have it."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from loadgen.wire import uring_reads, wire_loop
from loadgen.wire.epoll_reads import EpollReads
from loadgen.wire.kernel_clock import SCM_TIMESTAMPNS, SO_TIMESTAMPNS, enable_kernel_stamps
from loadgen.wire.uring import Completion, Ring
from loadgen.wire.uring_reads import UringReads
from loadgen.wire.wire_loop import WireLoop

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = pytest.mark.alone

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def ring() -> Iterator[Ring]:
    try:
        made = Ring(buffers=8, buffer_bytes=256, timestamp_type=SCM_TIMESTAMPNS)
    except OSError as error:
        pytest.skip(f"no io_uring: {error}")
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with (
        enable_kernel_stamps(),
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as near,
        listener.accept()[0] as far,
    ):
        near.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        far.settimeout(5)
        yield near, far


def gather(ring: Ring, enough: Callable[[list[Completion]], bool]) -> list[Completion]:
    found: list[Completion] = []
    deadline = time.monotonic() + 5
    while not enough(found) and time.monotonic() < deadline:
        select.select([ring.descriptor], [], [], 0.1)
        found += ring.completions()
    return found


def test_what_arrives_while_nobody_looks_is_kept_apart_with_stamps_of_its_own(ring: Ring, pair: Pair) -> None:
    near, far = pair
    ring.receive(near.fileno(), 7)
    sent_ns = []
    for text in (b"one", b"two", b"three"):
        sent_ns.append(time.time_ns())
        far.sendall(text)
        until = time.monotonic() + 0.03
        while time.monotonic() < until:  # busy, without a system call
            pass
    found = list(ring.completions())
    assert [(token, data, error, goes_on) for token, data, _, error, goes_on in found] == [
        (7, b"one", 0, True),
        (7, b"two", 0, True),
        (7, b"three", 0, True),
    ]
    for sent, (_, _, stamp, _, _) in zip(sent_ns, found, strict=True):
        assert stamp is not None
        assert sent <= stamp < sent + 20_000_000


def test_more_than_all_buffers_hold_is_lost_neither_in_bytes_nor_in_order(ring: Ring, pair: Pair) -> None:
    near, far = pair
    sent = bytes(range(256)) * 200
    far.sendall(sent)
    ring.receive(near.fileno(), 7)
    got = bytearray()
    deadline = time.monotonic() + 10
    stopped = 0
    while len(got) < len(sent) and time.monotonic() < deadline:
        select.select([ring.descriptor], [], [], 0.1)
        for _, data, _, _, goes_on in ring.completions():
            got += data
            if not goes_on:
                stopped += 1
                ring.receive(near.fileno(), 7)
    assert bytes(got) == sent
    assert stopped


def test_the_end_and_a_reset_are_told_once(ring: Ring, pair: Pair) -> None:
    near, far = pair
    ring.receive(near.fileno(), 7)
    far.sendall(b"last words")
    far.shutdown(socket.SHUT_WR)
    found = gather(ring, lambda seen: any(not c[4] for c in seen))
    assert [(c[1], c[3]) for c in found] == [(b"last words", 0), (b"", 0)]


def test_a_cancelled_receive_lets_go_of_the_socket(ring: Ring, pair: Pair) -> None:
    near, far = pair
    ring.receive(near.fileno(), 7)
    ring.cancel(7)
    near.close()
    assert far.recv(10) == b""


def test_a_kernel_that_forbids_rings_is_read_by_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(**_: object) -> Ring:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(uring_reads, "Ring", forbidden)
    loop = WireLoop()
    assert loop.reads is not None
    assert loop.reads.name == EpollReads.name
    loop.close()


def test_a_ring_that_cannot_go_on_receiving_is_not_used(monkeypatch: pytest.MonkeyPatch, ring: Ring) -> None:
    monkeypatch.setattr(Ring, "receive", lambda self, descriptor, token: None)  # as if each receive failed at once
    monkeypatch.setattr(uring_reads, "_PROBE_MS", 10)
    loop = asyncio.new_event_loop()
    with pytest.raises(OSError):
        UringReads(loop)
    loop.close()


def test_the_best_way_is_the_ring_where_there_is_one(ring: Ring) -> None:
    loop = WireLoop()
    assert isinstance(wire_loop.best_reads(loop), UringReads)
    loop.close()
