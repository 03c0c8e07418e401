"""TLS with the stamps below it, against real servers with real certificate chains."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
import trustme

from loadgen import record
from loadgen.errors import UsageError
from loadgen.record import RequestRecord
from loadgen.route import Route
from loadgen.wire.client import Client, Limits
from loadgen.wire.decode import decode
from loadgen.wire.exchange import Exchange
from tests.certificates import root_pem, self_signed_context, server_context
from tests.measuring import BODY, ask, ask_all, measure
from tests.scripted_server import Answer, Request, ScriptedServer
from tests.sse_events import DONE, NORMAL, ROLE, C, event

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = pytest.mark.alone

MS = 1_000_000
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


def trusting() -> Route:
    """Trusts the tests' own root."""
    return Route(ca_pem=root_pem())


async def one(client: Client) -> list[RequestRecord]:
    return [await ask(client)]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_arrival_over_tls_is_the_kernels_even_when_the_loop_was_busy(version: ssl.TLSVersion) -> None:
    async def script(client: Client) -> list[RequestRecord]:
        await ask(client)  # opens the connection
        asking = asyncio.ensure_future(ask(client, 1))
        await asyncio.sleep(0.02)
        time.sleep(0.2)  # the loop is busy while the second event arrives
        return [await asking]

    answer = Answer([(5, C("a")), (100, C("b")), (300, C("c") + DONE)])
    with ScriptedServer(answer, tls=server_context(version=version)) as server:
        (got,) = measure(server.url, script, route=trusting())
    assert got.kernel_stamps
    assert server.connections == 1
    late_ns = [int(a) - w for a, w in zip(got.arrivals_ns, server.requests[1].writes_ns, strict=True)]
    assert min(late_ns) >= 0
    assert late_ns[1] < 50 * MS  # the read came 120 ms after the bytes
    assert not got.coalesced.any()


@pytest.mark.parametrize("version", VERSIONS)
def test_many_streams_over_tls_are_all_stamped_by_the_kernel(version: ssl.TLSVersion) -> None:
    async def script(client: Client) -> list[RequestRecord]:
        return await ask_all(client, 20) + await ask_all(client, 20)

    with ScriptedServer(Answer(NORMAL(8, 20, 5)), tls=server_context(version=version)) as server:
        records = measure(server.url, script, route=trusting())
    assert [r.status for r in records] == [record.OK] * 40
    assert all(r.kernel_stamps and r.output_tokens == 8 for r in records)
    assert server.connections == 20
    for r in records:
        assert r.sent_ns is not None and r.response_started_ns is not None and r.send_gap_ns is not None
        assert r.dispatched_ns <= r.sent_ns <= r.response_started_ns <= r.finished_ns
        assert r.send_gap_ns >= 0


def test_a_session_ticket_after_the_handshake_is_not_an_answer() -> None:
    # A TLS 1.3 server sends its tickets behind the handshake: the client reads them after it has sent its request.
    answer = Answer([(160, C("a") + DONE)], headers_at_ms=150)
    with ScriptedServer(answer, tls=server_context(version=ssl.TLSVersion.TLSv1_3)) as server:
        (got,) = measure(server.url, one, route=trusting())
    assert got.sent_ns is not None and got.response_started_ns is not None
    assert got.response_started_ns - got.sent_ns > 100 * MS


def test_plaintext_has_the_stamp_of_the_read_that_completed_its_record() -> None:
    body = C("first") + C("second") + DONE
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    completed_ns: list[int] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            secure = server_context().wrap_bio(incoming, outgoing, server_side=True)
            received = b""
            while b"\r\n\r\n" not in received:
                incoming.write(connection.recv(65_536))
                try:
                    secure.do_handshake()
                    received += secure.read(65_536)
                except ssl.SSLWantReadError:
                    pass
                connection.sendall(outgoing.read())
            for text in (head + C("first"), C("second") + DONE):
                secure.write(text)
                cipher = outgoing.read()
                connection.sendall(cipher[:-3])
                time.sleep(0.1)
                completed_ns.append(time.monotonic_ns())
                connection.sendall(cipher[-3:])
                time.sleep(0.05)
            connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        (got,) = measure(f"https://127.0.0.1:{listener.getsockname()[1]}", one, route=trusting())
        thread.join(10)
    assert [int(a) >= c for a, c in zip(got.arrivals_ns, completed_ns, strict=True)] == [True, True]
    assert int(got.arrivals_ns[0]) < completed_ns[0] + 50 * MS


REFUSED = {
    "unknown authority": "the server's certificate is issued by an authority that is not trusted here",
    "expired": "the server's certificate has expired",
    "other host": "the server's certificate is for another host name",
    "other address": "the server's certificate is for another address",
    "self-signed": "the server's certificate is self-signed",
}


@pytest.mark.parametrize("which", REFUSED)
def test_a_bad_certificate_is_refused_by_its_name_and_taken_with_insecure(which: str, tmp_path: Path) -> None:
    context = {
        "unknown authority": lambda: server_context(authority=trustme.CA()),
        "expired": lambda: server_context(expired=True),
        "other host": lambda: server_context("other.example"),
        "other address": lambda: server_context("192.0.2.1"),
        "self-signed": lambda: self_signed_context(tmp_path / "self.pem"),
    }[which]()
    with ScriptedServer(NORMAL(3, 5, 5), tls=context) as server:
        url = server.url.replace("127.0.0.1", "localhost") if which == "other host" else server.url
        (refused,) = measure(url, one, route=trusting())
        (taken,) = measure(url, one, route=Route(insecure=True))
    assert (refused.status, refused.reason) == (record.CONNECT, REFUSED[which])
    assert refused.sent_ns is None
    assert taken.status == record.OK
    assert taken.kernel_stamps
    assert len(server.requests) == 1


def test_the_systems_authorities_do_not_vouch_for_the_tests_root() -> None:
    with ScriptedServer(NORMAL(3, 5, 5), tls=server_context()) as server:
        (refused,) = measure(server.url, one)
    assert refused.status == record.CONNECT
    assert "not trusted here" in refused.reason


def test_ssl_cert_file_is_honoured_as_openssl_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root.pem").write_text(root_pem())
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "root.pem"))
    with ScriptedServer(NORMAL(3, 5, 5), tls=server_context()) as server:
        (got,) = measure(server.url, one)
    assert got.status == record.OK


def test_a_ca_file_is_trusted_and_a_useless_one_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "root.pem").write_text(root_pem())
    (tmp_path / "empty.pem").write_text("nothing\n")
    with ScriptedServer(NORMAL(3, 5, 5), tls=server_context()) as server:
        route = Route.of(insecure=False, ca_file=str(tmp_path / "root.pem"), proxy=None)
        (got,) = measure(server.url, one, route=Route.from_dict(route.to_dict()))
    assert got.status == record.OK
    for name in ("empty.pem", "missing.pem"):
        with pytest.raises(UsageError, match=name):
            Route.of(insecure=False, ca_file=str(tmp_path / name), proxy=None)


def test_a_server_that_does_not_speak_tls_is_named_so() -> None:
    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        (refused,) = measure(f"https://127.0.0.1:{listener.getsockname()[1]}", one, route=trusting())
        thread.join(10)
    assert (refused.status, refused.reason) == (record.CONNECT, "the server does not speak TLS")


def test_a_handshake_that_is_never_answered_is_a_connect_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        (got,) = measure(url, one, Limits(connect_ns=300 * MS), route=trusting())
    assert got.status == record.TIMEOUT_CONNECT
    assert got.sent_ns is None


FAILURES = {
    record.TRUNCATED: Answer([(1, C("a")), (5, C("b"))], end="close"),
    record.TRANSPORT: Answer([(1, C("a")), (5, C("b"))], end="reset"),
    record.TIMEOUT_BETWEEN_TOKENS: Answer([(1, ROLE + C("a"))], end="hold"),
    record.STREAM_ERROR: Answer([(1, C("a")), (5, event({"error": {"message": "engine died", "code": 500}}) + DONE)]),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("status", FAILURES)
def test_a_failure_over_tls_is_one_record_and_the_next_request_is_served(status: str, version: ssl.TLSVersion) -> None:
    def answer(k: int, _: Request) -> Answer:
        return FAILURES[status] if k == 0 else Answer(NORMAL(3, 20, 5))

    async def script(client: Client) -> list[RequestRecord]:
        return [await ask(client, 0), await ask(client, 1)]

    with ScriptedServer(answer, tls=server_context(version=version)) as server:
        limits = Limits(between_tokens_ns=300 * MS)
        failed, following = measure(server.url, script, limits, route=trusting())
    assert failed.status == status
    assert failed.reason
    assert failed.kernel_stamps
    assert following.status == record.OK


def test_a_cancelled_request_keeps_its_send_instant_and_its_connection_is_closed() -> None:
    seen: list[RequestRecord] = []

    async def keep(client: Client) -> None:
        exchange = Exchange(level=0, index=0, user=0, worker=0, endpoint="chat", dispatched_ns=time.monotonic_ns())
        try:
            await client.send(BODY.body("x", 8), exchange, "r")
        finally:
            seen.append(decode(exchange))

    async def script(client: Client) -> list[RequestRecord]:
        task = asyncio.ensure_future(keep(client))
        async with asyncio.timeout(10):
            while not server.requests:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            while server.requests[0].ended_ns is None:
                await asyncio.sleep(0.01)
        return seen

    with ScriptedServer(Answer([], headers_at_ms=60_000), tls=server_context()) as server:
        (got,) = measure(server.url, script, route=trusting())
    assert got.status == record.CANCELLED
    # Closing sends TLS's farewell through the same transport, long after the request.
    assert got.sent_ns is not None and got.sent_ns <= server.requests[0].read_ns


def test_a_kept_alive_tls_connection_that_was_closed_is_replaced_without_a_failure() -> None:
    def answer(k: int, _: Request) -> Answer:
        return Answer(NORMAL(3, 5, 5), headers={"Connection": "close"} if k == 0 else {}, end="clean")

    async def script(client: Client) -> list[RequestRecord]:
        return [await ask(client, index) for index in range(3)]

    with ScriptedServer(answer, tls=server_context()) as server:
        records = measure(server.url, script, route=trusting())
    assert [r.status for r in records] == [record.OK] * 3
    assert all(r.kernel_stamps for r in records)
    assert server.connections == 2


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp would rather read it from a file
def test_a_body_of_megabytes_is_sent_whole_over_tls() -> None:
    async def script(client: Client) -> list[RequestRecord]:
        exchange = Exchange(level=0, index=0, user=0, worker=0, endpoint="chat", dispatched_ns=time.monotonic_ns())
        await client.send(BODY.body("x" * 8_000_000, 8), exchange, "r")
        return [decode(exchange)]

    with ScriptedServer(NORMAL(3, 5, 5), tls=server_context()) as server:
        (got,) = measure(server.url, script, route=trusting())
    assert got.status == record.OK, got.reason
    assert len(server.requests[0].body) == got.request_bytes > 8_000_000
    # `sent` is the last of many sends.
    assert got.sent_ns is not None and got.sent_ns <= server.requests[0].read_ns
    assert server.requests[0].read_ns - got.sent_ns < (got.sent_ns - got.dispatched_ns) * 10
