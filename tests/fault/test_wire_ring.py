from __future__ import annotations

import select
import socket
import time

import pytest

from loadgen.wire.kernel_clock import SCM_TIMESTAMPNS
from loadgen.wire.uring import Ring


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_more_completions_than_the_queue_holds_are_lost_neither_now_nor_later() -> None:
    """16 places: 30 sockets are cancelled before anyone looks, then one more must still be read."""
    ring = Ring(buffers=8, buffer_bytes=256, timestamp_type=SCM_TIMESTAMPNS)
    pairs = [socket.socketpair() for _ in range(31)]
    for k, (near, _) in enumerate(pairs):
        ring.receive(near.fileno(), k + 1)
    for k in range(30):
        ring.cancel(k + 1)
    got = {}

    def look(enough):
        end = time.monotonic() + 2
        looks = 0
        while not enough() and time.monotonic() < end:
            select.select([ring.descriptor], [], [], 0.1)
            looks += 1
            for token, data, _, error, goes_on in ring.completions():
                got.setdefault(token, []).append((data, error, goes_on))
        return looks

    look(lambda: len(got) == 30)
    assert len(got) == 30
    pairs[30][1].send(b"late")
    look(lambda: 31 in got)
    assert got[31] == [(b"late", 0, True)]
    ring.close()
