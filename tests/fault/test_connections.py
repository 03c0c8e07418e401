"""How long connections are kept and how many there may be, and that no limit is hidden."""

from __future__ import annotations

import asyncio
import gc
import ssl
import time

import numpy as np
import pytest

from loadgen import record
from loadgen.record import RequestRecord
from loadgen.route import Route
from loadgen.wire.client import Client, Limits
from loadgen.wire.handler import StampingHandler
from loadgen.wire.pool import Reuse
from loadgen.wire.transport import WireTransport
from tests.certificates import root_pem, server_context
from tests.measuring import ask, ask_all, measure
from tests.scripted_server import Answer, ScriptedServer
from tests.sse_events import DONE, NORMAL, C

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = pytest.mark.alone

MS = 1_000_000
TLS = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])


def context(tls: bool) -> ssl.SSLContext | None:
    return server_context() if tls else None


def one_after_another(count: int) -> object:
    async def script(client: Client) -> list[RequestRecord]:
        await client.open_connection()
        return [await ask(client, index) for index in range(count)]

    return script


@TLS
def test_a_connection_is_kept_as_long_as_the_server_keeps_it(tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(client: Client) -> list[RequestRecord]:
        first = await ask(client, 0)
        # aiohttp alone would close what was idle for 15 s.
        monkeypatch.setattr("aiohttp.connector.monotonic", lambda: time.monotonic() + 3600)
        return [first, await ask(client, 1)]

    with ScriptedServer(NORMAL(3, 5, 5), tls=context(tls)) as server:
        records = measure(server.url, script, route=Route(ca_pem=root_pem()))
    assert [r.status for r in records] == [record.OK] * 2
    assert server.connections == 1


@TLS
def test_per_request_opens_a_connection_for_each_and_says_so(tls: bool) -> None:
    reuse, route = Reuse(per_request=True), Route(ca_pem=root_pem())
    with ScriptedServer(NORMAL(3, 5, 5), tls=context(tls)) as server:
        records = measure(server.url, one_after_another(5), reuse=reuse, route=route)  # type: ignore[arg-type]
    assert [r.status for r in records] == [record.OK] * 5
    assert server.connections == len(server.requests) == 5
    assert {request.headers["connection"] for request in server.requests} == {"close"}
    assert all(r.kernel_stamps for r in records)


@TLS
def test_a_connection_is_recycled_after_so_many_requests(tls: bool) -> None:
    reuse, route = Reuse(recycle_requests=2), Route(ca_pem=root_pem())
    with ScriptedServer(NORMAL(3, 5, 5), tls=context(tls)) as server:
        records = measure(server.url, one_after_another(5), reuse=reuse, route=route)  # type: ignore[arg-type]
    assert [r.status for r in records] == [record.OK] * 5
    assert server.connections == 3


def test_a_connection_is_recycled_when_it_is_old() -> None:
    async def script(client: Client) -> list[RequestRecord]:
        young = [await ask(client, index) for index in range(2)]
        await asyncio.sleep(0.6)
        return young + [await ask(client, index) for index in range(2, 5)]

    with ScriptedServer(NORMAL(3, 5, 5)) as server:
        records = measure(server.url, script, reuse=Reuse(recycle_age_ns=500 * MS))
    assert [r.status for r in records] == [record.OK] * 5
    assert server.connections == 2


def test_150_streams_at_once_are_150_connections() -> None:
    async def script(client: Client) -> list[RequestRecord]:
        return await ask_all(client, 150)

    with ScriptedServer(Answer([(2500, C("a") + DONE)])) as server:
        records = measure(server.url, script)
    assert {r.status for r in records} == {record.OK}
    assert server.peak_in_flight == server.connections == 150


def test_a_limit_of_connections_lets_requests_wait_before_they_are_sent() -> None:
    async def script(client: Client) -> list[RequestRecord]:
        return await ask_all(client, 6)

    with ScriptedServer(NORMAL(3, 100, 5)) as server:
        records = measure(server.url, script, reuse=Reuse(max_connections=2))
    assert [r.status for r in records] == [record.OK] * 6
    assert server.peak_in_flight == server.connections == 2
    waits_ms = sorted((r.sent_ns - r.dispatched_ns) / MS for r in records if r.sent_ns is not None)
    assert waits_ms[-1] > 200
    for r in records:
        # The wait is before `sent`, so the server is not blamed for it.
        assert r.first_token_ns is not None and r.sent_ns is not None
        assert 95 * MS < r.first_token_ns - r.sent_ns < 200 * MS


def test_waiting_for_a_connection_counts_as_connecting() -> None:
    async def script(client: Client) -> list[RequestRecord]:
        return await ask_all(client, 2)

    with ScriptedServer(NORMAL(3, 1000, 5)) as server:
        limits = Limits(connect_ns=300 * MS)
        records = measure(server.url, script, limits, reuse=Reuse(max_connections=1))
    assert sorted(r.status for r in records) == [record.OK, record.TIMEOUT_CONNECT]


@TLS
def test_an_answer_that_ends_with_the_connection_keeps_its_stamps(tls: bool) -> None:
    async def script(client: Client) -> list[RequestRecord]:
        return [await ask(client, index) for index in range(2)]

    answer = Answer(NORMAL(6, 20, 10), headers={"Connection": "close"})
    with ScriptedServer(answer, tls=context(tls)) as server:
        records = measure(server.url, script, route=Route(ca_pem=root_pem()))
    assert server.connections == 2
    for r, request in zip(records, server.requests, strict=True):
        assert r.status == record.OK
        assert r.kernel_stamps
        late_ns = r.arrivals_ns[:6] - np.array(request.writes_ns[1:7])
        assert late_ns.min() >= 0 and sorted(late_ns)[3] < 20 * MS


def test_a_resumed_parser_brings_no_stamp() -> None:
    seen: list[tuple[int | None, int | None]] = []

    async def script(client: Client) -> list[RequestRecord]:
        asking = asyncio.ensure_future(ask(client))
        async with asyncio.timeout(10):
            while not (client.open and next(iter(client.open)).chunk_ns):
                await asyncio.sleep(0.005)
        exchange = next(iter(client.open))
        (handler,) = (one for one in gc.get_objects() if isinstance(one, StampingHandler) and one._exchange is exchange)
        before = exchange.last_arrival_ns, len(exchange.chunk_ns)
        handler.resume_reading()
        seen.append(before)
        seen.append((exchange.last_arrival_ns, len(exchange.chunk_ns)))
        return [await asking]

    with ScriptedServer(NORMAL(3, 20, 200)) as server:
        (got,) = measure(server.url, script)
    assert got.status == record.OK
    assert seen[0] == seen[1]


@TLS
def test_connections_that_are_gone_leave_no_garbage(tls: bool) -> None:
    """Nothing is collected while a level is measured, so a cycle would be a leak."""

    def alive() -> int:
        kinds = (StampingHandler, WireTransport, asyncio.sslproto.SSLProtocol)  # type: ignore[attr-defined]
        return sum(isinstance(one, kinds) for one in gc.get_objects())

    counts: list[int] = []

    async def script(client: Client) -> list[RequestRecord]:
        records = [await ask(client, 0)]
        await asyncio.sleep(0.1)
        counts.append(alive())
        records += [await ask(client, index) for index in range(1, 21)]
        await asyncio.sleep(0.1)
        counts.append(alive())
        return records

    gc.collect()
    gc.disable()
    try:
        with ScriptedServer(NORMAL(3, 2, 1), tls=context(tls)) as server:
            route = Route(ca_pem=root_pem())
            records = measure(server.url, script, reuse=Reuse(per_request=True), route=route)
    finally:
        gc.enable()
    assert {r.status for r in records} == {record.OK}
    assert counts[1] <= counts[0] + 5, f"{counts[1] - counts[0]} objects of 20 connections are still there"
