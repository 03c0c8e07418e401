"""The scripted server itself: writes at the instants of the script, ends as told, counts requests in flight."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.scripted_server import Answer, ScriptedServer, refusal
from tests.sse_events import DONE, NORMAL, ROLE, C

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = pytest.mark.alone


@contextlib.contextmanager
def post(server: ScriptedServer) -> Iterator[http.client.HTTPResponse]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)) as connection:
        connection.request("POST", "/v1/chat/completions", b"{}")
        with connection.getresponse() as response:
            yield response


def whole(server: ScriptedServer) -> bytes:
    with post(server) as response:
        return response.read()


def raw(server: ScriptedServer) -> list[tuple[float, bytes]]:
    """(ms since the request was sent, bytes) of every read until the server is silent for 0.3 s or closes."""
    reads = []
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.settimeout(0.3)
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        sent = time.monotonic()
        try:
            while data := sock.recv(65536):
                reads.append(((time.monotonic() - sent) * 1e3, data))
        except TimeoutError:
            pass
    return reads


def test_writes_come_at_their_instants_in_chunks_of_their_own() -> None:
    with ScriptedServer([(20, ROLE), (60, C("a")[:7]), (90, C("a")[7:] + DONE)]) as server:
        reads = raw(server)
    chunked = b"".join(data for _, data in reads)
    assert chunked.startswith(b"HTTP/1.1 200 ") and b"text/event-stream" in chunked
    for part in (ROLE, C("a")[:7], C("a")[7:] + DONE):
        assert b"\r\n%x\r\n%b\r\n" % (len(part), part) in chunked
    assert chunked.endswith(b"0\r\n\r\n")
    body_at = [at for at, data in reads if b"data:" in data or b"[DONE]" in data]
    for at, planned in zip(body_at, (20, 60, 90), strict=True):
        assert planned - 1 <= at < planned + 40
    (request,) = server.requests
    assert [(at - request.read_ns) // 1_000_000 for at in request.writes_ns] == pytest.approx([20, 60, 90], abs=15)


def test_a_connection_is_kept_and_serves_other_pages_too() -> None:
    with ScriptedServer(NORMAL(2, 10, 5)) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        for _ in range(3):
            connection.request("POST", "/v1/chat/completions", b'{"prompt": 1}')
            assert connection.getresponse().read() == b"".join(data for _, data in NORMAL(2, 10, 5))
            connection.request("GET", "/v1/models")
            assert json.loads(connection.getresponse().read())["data"][0]["id"] == "m"
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 404
        connection.close()
    assert (server.connections, len(server.requests), server.peak_in_flight, server.in_flight) == (1, 3, 1, 0)
    assert server.requests[0].json() == {"prompt": 1}


def test_a_page_may_answer_to_what_was_posted() -> None:
    with (
        ScriptedServer(
            [(0, DONE)], pages={"/tokenize": lambda body: {"count": len(json.loads(body)["prompt"])}}
        ) as server,
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)) as connection,
    ):
        connection.request("POST", "/tokenize", b'{"prompt": "four"}')
        assert json.loads(connection.getresponse().read()) == {"count": 4}
    assert server.requests == []


def test_a_mistake_in_a_script_fails_the_test_that_made_it() -> None:
    server = ScriptedServer([(0, lambda _: 1 // 0)]).__enter__()
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        whole(server)
    with pytest.raises(ZeroDivisionError):
        server.__exit__()


def test_request_k_may_have_an_answer_of_its_own() -> None:
    with ScriptedServer(lambda k, _: refusal(503, "overloaded") if k == 1 else [(0, DONE)]) as server:
        assert whole(server) == DONE
        with post(server) as refused:
            assert refused.status == 503
            assert json.loads(refused.read())["error"] == {
                "message": "overloaded",
                "type": "Error",
                "param": None,
                "code": 503,
            }
        assert whole(server) == DONE


def test_a_close_without_the_last_chunk_and_a_reset_are_told_apart() -> None:
    with ScriptedServer(Answer([(0, ROLE)], end="close")) as server, pytest.raises(http.client.IncompleteRead):
        whole(server)
    with ScriptedServer(Answer([(0, ROLE)], end="reset")) as server, pytest.raises(ConnectionResetError):
        whole(server)


def test_a_held_stream_stays_silent_and_counts_until_the_client_goes() -> None:
    with ScriptedServer(Answer([(0, ROLE)], end="hold")) as server:
        reads = raw(server)
        assert ROLE in reads[-1][1] and not reads[-1][1].endswith(b"0\r\n\r\n")
        until = time.monotonic() + 5
        while server.in_flight and time.monotonic() < until:
            time.sleep(0.005)
        assert (server.in_flight, server.peak_in_flight) == (0, 1)
    server = ScriptedServer(Answer([(0, ROLE)], end="hold")).__enter__()
    with post(server) as response:
        server.__exit__()  # with the stream open
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            response.read()
    assert server.in_flight == 0


def test_a_script_may_look_at_the_requests_in_flight() -> None:
    script = [(100, lambda server: [(200 if server.in_flight > 2 else 110, b"%d" % server.in_flight)])]
    with ScriptedServer(script) as server:
        bodies: list[bytes] = []
        threads = [threading.Thread(target=lambda: bodies.append(whole(server))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert bodies == [b"3"] * 3
        assert whole(server) == b"1"
    assert (server.peak_in_flight, server.in_flight) == (3, 0)


def test_headers_may_come_late() -> None:
    with ScriptedServer(Answer([(80, DONE)], headers_at_ms=60)) as server:
        reads = raw(server)
    assert reads[0][0] >= 59 and reads[0][1].startswith(b"HTTP/1.1 200")
