"""However a request ends, reference counting frees all of it: collection is off while a level is measured."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loadgen import record
from loadgen.record import RequestRecord
from loadgen.wire.client import Client, Limits
from tests.measuring import ask_all, measure
from tests.scripted_server import Answer, ScriptedServer, refusal
from tests.sse_events import DONE, NORMAL, ROLE, C

MS = 1_000_000
LIMITS = Limits(first_byte_ns=60 * MS, first_token_ns=60 * MS, between_tokens_ns=100 * MS)
REQUESTS = 8

ENDS: dict[str, Answer | None] = {
    record.OK: Answer(NORMAL(3, 2, 1)),
    "closed after the answer": Answer(NORMAL(3, 2, 1), end="close", headers={"Connection": "close"}),
    "http_503": refusal(503, "busy"),
    record.EMPTY: Answer([(1, DONE)]),
    record.TRUNCATED: Answer([(1, C("a"))], end="close"),
    record.TRANSPORT: Answer([(1, C("a"))], end="reset"),
    record.TIMEOUT_FIRST_BYTE: Answer([], headers_at_ms=60_000),
    record.TIMEOUT_FIRST_TOKEN: Answer([(1, ROLE)], end="hold"),
    record.TIMEOUT_BETWEEN_TOKENS: Answer([(1, ROLE + C("a"))], end="hold"),
    record.CONNECT: None,
}


@contextmanager
def serving(answer: Answer | None) -> Iterator[str]:
    """The address of a server; None: nobody listens."""
    if answer is not None:
        with ScriptedServer(answer) as server:
            yield server.url
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    yield url


def garbage() -> Counter[str]:
    """Types of what only a collection has freed; the server's own transports are left out."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = Counter(
        type(one).__name__ for one in gc.garbage if type(one).__module__.partition(".")[0] in ("loadgen", "aiohttp")
    )
    gc.garbage.clear()
    return found


@pytest.mark.parametrize("end", ENDS)
def test_a_request_leaves_nothing_that_only_a_collection_would_free(end: str) -> None:
    async def script(client: Client) -> list[RequestRecord]:
        await ask_all(client, 2)
        await asyncio.sleep(0.1)
        gc.collect()
        gc.disable()
        try:
            records = await ask_all(client, REQUESTS)
            await asyncio.sleep(0.1)  # lost connections are told
            left.update(garbage())
        finally:
            gc.enable()
        return records

    left: Counter[str] = Counter()
    with serving(ENDS[end]) as url:
        records = measure(url, script, LIMITS)
    assert {one.status for one in records} == {record.OK if "closed" in end else end}
    assert left == Counter()
