"""Sends requests through the real client on the real loop, and gives their records; for tests of any folder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from loadgen.record import RequestRecord
from loadgen.wire.client import Client, Limits
from loadgen.wire.decode import decode
from loadgen.wire.exchange import Exchange
from loadgen.wire.request import BodyTemplate
from loadgen.wire.wire_loop import WireLoop

BODY = BodyTemplate(model="m", endpoint="chat", ignore_eos=False, continuous_usage=True)


async def ask(client: Client, index: int = 0, **fields: Any) -> RequestRecord:
    """One request and its record."""
    exchange = Exchange(
        level=0, index=index, user=0, worker=0, endpoint="chat", dispatched_ns=time.monotonic_ns(), **fields
    )
    await client.send(BODY.body(f"prompt {index}", 8), exchange, f"r{index}")
    return decode(exchange)


def measure(
    url: str, script: Callable[[Client], Awaitable[list[RequestRecord]]], limits: Limits | None = None, **options: Any
) -> list[RequestRecord]:
    """Runs `script` with a client of `url`, on a loop of its own; `options` are the client's."""

    async def run() -> list[RequestRecord]:
        client = Client(url, "chat", limits=limits, **options)
        try:
            return await script(client)
        finally:
            assert not client.open
            await client.close()

    with asyncio.Runner(loop_factory=WireLoop) as runner:
        return runner.run(run())


async def ask_all(client: Client, count: int) -> list[RequestRecord]:
    """`count` requests at once."""
    return list(await asyncio.gather(*(ask(client, index) for index in range(count))))
