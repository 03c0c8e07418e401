"""An answer that begins while the request's body is still unsent, from a server that reads no more of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from loadgen import record
from loadgen.record import RequestRecord
from loadgen.wire.client import Client, Limits
from loadgen.wire.decode import decode
from loadgen.wire.exchange import Exchange
from tests.fault.test_any_answer import CHUNKED, HEAD, LAST, SSE, chunked, head
from tests.measuring import measure
from tests.sse_events import END, ROLE, C

pytestmark = [
    pytest.mark.alone,
    pytest.mark.usefixtures("each_way_of_reading"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # aiohttp's, of a body beyond 1 MiB
]


@contextlib.contextmanager
def server_that_reads_one_piece(answer: bytes) -> Iterator[str]:
    kept = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                kept.append(connection)
                connection.recv(65_536)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    for connection in kept:
        connection.close()


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (HEAD + chunked(ROLE, C("a")), record.TIMEOUT_TOTAL),
        (head(SSE, CHUNKED, b"Content-Encoding: gzip") + chunked(b"x"), record.PROTOCOL),
        (HEAD + chunked(ROLE, C("a"), END(1)) + LAST, record.OK),
    ],
    ids=["stalls", "says gzip and stalls", "is complete"],
)
def test_it_ends_as_one_record_and_the_user_goes_on(answer: bytes, status: str) -> None:
    async def script(client: Client) -> list[RequestRecord]:
        records = []
        async with asyncio.timeout(10):  # a request that hangs fails the test
            for k in range(3):
                exchange = Exchange(
                    level=0, index=k, user=0, worker=0, endpoint="chat", dispatched_ns=time.monotonic_ns()
                )
                await client.send(b"x" * 8_000_000, exchange, f"r{k}")
                records.append(decode(exchange))
        return records

    with server_that_reads_one_piece(answer) as url:
        records = measure(url, script, Limits(total_ns=500_000_000))
    assert [request.status for request in records] == [status] * 3
