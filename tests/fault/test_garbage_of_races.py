"""Nothing that only a garbage collection frees is left by a busy worker's races: none runs while a level is measured."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import pytest

from loadgen.record import OK, RequestRecord
from loadgen.wire.client import Client
from loadgen.wire.handler import StampingHandler
from tests.fault.test_any_answer import HEAD, WHOLE, chunked, raw_server
from tests.measuring import ask, measure
from tests.sse_events import ROLE

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("each_way_of_reading")]


def handlers() -> int:
    return sum(type(one) is StampingHandler for one in gc.get_objects())


@contextlib.contextmanager
def no_collection() -> Any:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_connection_that_closes_just_before_the_write_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when its end is read between the pool's look at it and the write."""
    plain = StampingHandler.set_response_params
    left = []

    def closing(self: StampingHandler, **params: Any) -> None:
        plain(self, **params)
        if self._exchange is not None and self._exchange.reused and self.transport is not None:
            self.transport.close()

    async def script(client: Client) -> list[RequestRecord]:
        records = [await ask(client, 0)]
        with no_collection():
            before = handlers()
            records += [await ask(client, k + 1) for k in range(50)]
            await asyncio.sleep(0.1)
            left.append(handlers() - before)
        return records

    monkeypatch.setattr(StampingHandler, "set_response_params", closing)
    with raw_server(lambda k: [WHOLE.replace(b"\r\n", b"\r\nX-Keep: yes\r\n", 1)]) as url:
        records = measure(url, script)
    assert {request.status for request in records} == {OK}
    assert sum(request.retries for request in records) >= 25  # the race did take place
    assert left[0] <= 1


def test_a_request_cancelled_between_its_head_and_its_turn_leaves_none() -> None:
    left = []

    async def script(client: Client) -> list[RequestRecord]:
        records = [await ask(client, 0)]
        with no_collection():
            before = handlers()
            for k in range(200):
                task = asyncio.create_task(ask(client, k + 1))
                while not task.done() and (not client.open or next(iter(client.open)).response_started_ns is None):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    records.append(await task)
            await asyncio.sleep(0.1)
            left.append(handlers() - before)
        return records

    with raw_server(lambda k: [HEAD + chunked(ROLE), 0.05] if k else [WHOLE]) as url:
        measure(url, script)
    assert left[0] <= 0
