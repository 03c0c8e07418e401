"""Each way a target can fail ends in one record with one status, and the same client serves the next request."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from loadgen import record
from loadgen.record import RequestRecord
from loadgen.wire.client import Client, Limits
from tests.measuring import ask, ask_all, measure
from tests.scripted_server import Answer, Request, ScriptedServer, Write, refusal
from tests.sse_events import DONE, END, FIN, NORMAL, ROLE, C, U, event

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("each_way_of_reading")]

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
        await client.send(BODY.body("x", 8), exchange, "r")
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
    assert ttfts[149] >= 990 * MS and ttfts[284] <= 1500 * MS  # a cap of 100 shows as 2000


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


@pytest.mark.parametrize("cut", [False, True])
def test_an_error_event_ends_the_answer_on_a_connection_that_is_held_open(cut: bool) -> None:
    died = event({"error": {"message": "engine died", "code": 500}})
    error = [(5.0, died[:20]), (25.0, died[20:])] if cut else [(5.0, died)]
    quoted = C('{"error": {"message": "so says the text"}}')

    def answer(k: int, _: Request) -> Answer:
        return Answer([(1, ROLE + quoted), *error], end="hold") if k == 0 else Answer([(1, quoted), (90, END(1))])

    async def script(client: Client) -> list[RequestRecord]:
        async with asyncio.timeout(10):  # a stall would be borne for a minute
            return [await ask(client, 0), await ask(client, 1)]

    with ScriptedServer(answer) as server:
        failed, following = measure(server.url, script, Limits(between_tokens_ns=60_000 * MS))
    assert (failed.status, failed.reason) == (record.STREAM_ERROR, "500: engine died")
    assert following.status == record.OK


def test_an_answer_ends_with_done_even_when_its_body_does_not() -> None:
    script_: list[Write] = [(10, ROLE), (50, C("a")), (70, C("b") + END(2)), (5000, b": late\n\n")]

    async def script(client: Client) -> list[RequestRecord]:
        return [await ask(client, 0), await ask(client, 1)]

    began = time.monotonic()
    with ScriptedServer(Answer(script_, end="hold")) as server:
        records = measure(server.url, script)
    assert time.monotonic() - began < 2
    for request in records:
        assert request.status == record.OK
        assert request.finished_ns == request.last_token_ns


@pytest.mark.parametrize("cut", range(1, 14))
def test_done_is_found_wherever_it_is_cut_and_not_where_a_text_quotes_it(cut: int) -> None:
    script_: list[Write] = [(5, C("data: [DONE]\n\n")), (10, C("x")), (30, FIN("stop") + U(9, 2) + DONE[:cut])]
    script_ += [(40, DONE[cut:])]

    async def script(client: Client) -> list[RequestRecord]:
        return [await ask(client)]

    with ScriptedServer(Answer(script_, end="hold")) as server:
        (request,) = measure(server.url, script, Limits(between_tokens_ns=1500 * MS))
    assert request.status == record.OK
    assert len(request.arrivals_ns) == 2


@contextlib.contextmanager
def raw_server(answer: bytes) -> Iterator[str]:
    """Writes `answer`, cut at every `|`, to the first request of each connection, then closes it."""

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            received = b""
            while b"}" not in received.partition(b"\r\n\r\n")[2][-1:]:
                data = connection.recv(65536)
                if not data:
                    return
                received += data
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for part in answer.split(b"|"):
                connection.sendall(part)
                time.sleep(0.02)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def ask_raw(answer: bytes, requests: int = 1) -> list[RequestRecord]:
    async def script(client: Client) -> list[RequestRecord]:
        return [await ask(client, index) for index in range(requests)]

    with raw_server(answer) as url:
        return measure(url, script, Limits(between_tokens_ns=3000 * MS, first_token_ns=3000 * MS))


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


WHOLE = HEAD + chunked(ROLE + C("a")) + b"|" + chunked(C("b") + END(2)) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    "informational", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"]
)
def test_an_informational_answer_is_not_the_answer(informational: bytes) -> None:
    (request,) = ask_raw(informational + b"|" + WHOLE)
    assert request.status == record.OK
    assert request.response_started_ns is not None and request.sent_ns is not None
    assert request.response_started_ns - request.sent_ns > 15 * MS


def test_broken_framing_in_mid_stream_ends_the_request_at_once_with_what_came_before() -> None:
    (request,) = ask_raw(HEAD + chunked(ROLE + C("a")) + b"|" + chunked(C("b")) + b"nonsense\r\n")
    assert request.status == record.PROTOCOL
    assert len(request.arrivals_ns) == 2
    assert request.finished_ns - request.dispatched_ns < 1000 * MS


def test_a_server_that_closes_kept_alive_connections_costs_no_request() -> None:
    records = ask_raw(WHOLE, requests=6)
    assert [r.status for r in records] == [record.OK] * 6


def test_a_compressed_answer_is_named_as_such() -> None:
    body = gzip.compress(C("a") + END(1))
    head = HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    (request,) = ask_raw(head + chunked(body) + b"0\r\n\r\n")
    assert request.status == record.PROTOCOL
    assert "gzip" in request.reason


def test_long_headers_are_no_failure() -> None:
    head = HEAD.replace(b"\r\n\r\n", b"\r\nX-Trace: " + b"a" * 20_000 + b"\r\n\r\n")
    (request,) = ask_raw(head + chunked(C("a") + END(1)) + b"0\r\n\r\n")
    assert request.status == record.OK
