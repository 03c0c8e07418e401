"""Each way a target can fail ends in one record with one status, and the same client serves the next request."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from loadgen import record
from loadgen.record import RequestRecord
from loadgen.wire.client import Client, Limits
from tests.measuring import ask, ask_all, measure
from tests.scripted_server import Answer, Request, ScriptedServer, Write, refusal
from tests.sse_events import DONE, END, FIN, NORMAL, ROLE, C, U, event

MS = 1_000_000

FAILURES: dict[str, Answer] = {
    "http_503": refusal(503, "busy"),
    "http_401": refusal(401, "no key"),
    record.NOT_A_STREAM: Answer([(1, b'{"choices": []}')], content_type="application/json"),
    record.STREAM_ERROR: Answer([(1, C("a")), (5, event({"error": {"message": "engine died", "code": 500}}) + DONE)]),
    record.PROTOCOL: Answer([(1, C("a")), (5, b"data: {broken\n\n"), (6, FIN("stop") + DONE)]),
    record.TRUNCATED: Answer([(1, C("a")), (5, C("b"))], end="close"),
    record.TRANSPORT: Answer([(1, C("a")), (5, C("b"))], end="reset"),
    record.EMPTY: Answer([(1, DONE)]),
    record.TIMEOUT_FIRST_BYTE: Answer([], headers_at_ms=60_000),
    record.TIMEOUT_FIRST_TOKEN: Answer([(1, ROLE)], end="hold"),
    record.TIMEOUT_BETWEEN_TOKENS: Answer([(1, ROLE + C("a")), (200, b": ping\n\n")], end="hold"),
    record.TIMEOUT_TOTAL: Answer([(10 * k, C("x")) for k in range(500)], end="hold"),
}
LIMITS = Limits(
    connect_ns=400 * MS,
    first_byte_ns=500 * MS,
    first_token_ns=600 * MS,
    between_tokens_ns=700 * MS,
    total_ns=1500 * MS,
)


@pytest.mark.parametrize("status", FAILURES)
def test_a_failure_is_one_record_and_the_next_request_is_served(status: str) -> None:
    def answer(k: int, _: Request) -> Answer:
        return FAILURES[status] if k == 0 else Answer(NORMAL(3, 20, 5))

    async def script(client: Client) -> list[RequestRecord]:
        return [await ask(client, 0), await ask(client, 1)]

    with ScriptedServer(answer) as server:
        failed, following = measure(server.url, script, LIMITS)
    assert failed.status == status
    assert failed.reason
    assert failed.sent_ns is not None
    assert failed.dispatched_ns <= failed.sent_ns <= failed.finished_ns
    assert following.status == record.OK
    assert following.output_tokens == 3
    assert len(server.requests) == 2


def test_a_port_where_nobody_listens_is_a_connect_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"

    async def script(client: Client) -> list[RequestRecord]:
        return [await ask(client)]

    (failed,) = measure(url, script)
    assert failed.status == record.CONNECT
    assert "refused" in failed.reason
    assert failed.sent_ns is None


def test_a_connection_that_never_stands_times_out_as_such() -> None:
    # The queue of a listener that accepts nobody fills up; the kernel then lets further connects wait.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = []
        for _ in range(8):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)

        async def script(client: Client) -> list[RequestRecord]:
            return [await ask(client)]

        (failed,) = measure(f"http://127.0.0.1:{listener.getsockname()[1]}", script, LIMITS)
        for filler in fillers:
            filler.close()
    assert failed.status == record.TIMEOUT_CONNECT
    assert failed.sent_ns is None


def test_a_cancelled_request_is_recorded_and_its_connection_closed() -> None:
    seen: list[RequestRecord] = []

    async def script(client: Client) -> list[RequestRecord]:
        task = asyncio.get_running_loop().create_task(_keep(client, seen))
        await asyncio.sleep(0.15)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return seen

    with ScriptedServer(Answer([(10, ROLE), (50, C("a"))], end="hold")) as server:
        measure(server.url, script)
        deadline = time.monotonic() + 5
        while server.requests[0].ended_ns is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.requests[0].ended_ns is not None
    assert seen[0].status == record.CANCELLED
    assert len(seen[0].arrivals_ns) == 1


async def _keep(client: Client, seen: list[RequestRecord]) -> None:
    from loadgen.wire.decode import decode
    from loadgen.wire.exchange import Exchange
    from tests.measuring import BODY

    exchange = Exchange(level=0, index=0, user=0, worker=0, endpoint="chat", dispatched_ns=time.monotonic_ns())
    try:
        await client.send(BODY.body("x"), exchange, "r")
    finally:
        seen.append(decode(exchange))


def test_t14_a_stall_in_mid_stream_times_out_and_the_worker_goes_on() -> None:
    def answer(k: int, _: Request) -> Answer:
        return Answer([(100, C("a"))], end="hold") if k == 1 else Answer(NORMAL(5, 100, 20))

    async def script(client: Client) -> list[RequestRecord]:
        began = time.monotonic()
        records = await ask_all(client, 3)
        assert 2.0 <= time.monotonic() - began < 3.0
        return [*records, await ask(client, 3)]

    with ScriptedServer(answer) as server:
        records = measure(server.url, script, Limits(between_tokens_ns=2000 * MS))
    assert sorted(r.status for r in records) == [record.OK] * 3 + [record.TIMEOUT_BETWEEN_TOKENS]
    assert all(r.reason for r in records if r.status != record.OK)
    assert records[3].status == record.OK


def test_t15_a_line_of_600_000_bytes_is_an_event_like_any_other() -> None:
    script_: list[Write] = [(100, C("x" * 600_000)), (150, C("b") + END(2))]

    async def script(client: Client) -> list[RequestRecord]:
        return [await ask(client)]

    with ScriptedServer(Answer(script_)) as server:
        (request,) = measure(server.url, script)
    assert (request.status, request.output_tokens, len(request.arrivals_ns)) == (record.OK, 2, 2)
    assert request.response_bytes > 600_000


def test_t16_150_streams_at_once_meet_no_hidden_cap() -> None:
    with ScriptedServer(Answer(NORMAL(2, 1000, 10))) as server:

        async def script(client: Client) -> list[RequestRecord]:
            return [*await ask_all(client, 150), *await ask_all(client, 150)]

        records = measure(server.url, script)
    assert server.peak_in_flight == 150
    assert all(r.status == record.OK for r in records)
    ttfts = sorted((r.first_token_ns or 0) - (r.sent_ns or 0) for r in records)
    assert ttfts[149] >= 990 * MS and ttfts[284] <= 1200 * MS


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}])
def test_bytes_of_one_single_read_keep_their_stamp_whatever_becomes_of_the_connection(headers: dict[str, str]) -> None:
    whole = b"".join([ROLE, C("a"), C("b"), FIN("stop"), U(9, 2), DONE])

    async def script(client: Client) -> list[RequestRecord]:
        return [await ask(client, 0), await ask(client, 1)]

    with ScriptedServer(Answer([(0, whole)], headers=headers)) as server:
        records = measure(server.url, script)
    for request in records:
        assert request.status == record.OK
        assert request.kernel_stamps
        assert request.output_tokens == 2
        assert request.coalesced.all()
        assert request.sent_ns is not None and request.first_token_ns is not None
        assert request.sent_ns <= request.first_token_ns <= request.finished_ns


def test_a_known_script_is_measured_as_it_was_played() -> None:
    async def script(client: Client) -> list[RequestRecord]:
        return await ask_all(client, 5)

    with ScriptedServer(Answer(NORMAL(10, 100, 20))) as server:
        records = measure(server.url, script)
    by_read = {r.body: r for r in server.requests}
    assert len(by_read) == 5
    for request in records:
        played = next(r for r in server.requests if f"prompt {request.index}".encode() in r.body)
        # The first write is the role's; each token was seen after it was written, and within the noise of the machine.
        for written_ns, arrived_ns in zip(played.writes_ns[1:], request.arrivals_ns.tolist(), strict=True):
            assert written_ns <= arrived_ns < written_ns + 20 * MS
        assert request.sent_ns is not None and request.sent_ns <= played.read_ns
