"""Whatever bytes answer a request, in whatever framing, they end as one record with one status, and the same client
serves the next request."""

from __future__ import annotations

import contextlib
import gzip
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from loadgen import record
from loadgen.record import RequestRecord, is_status
from loadgen.spool import decode_block, encode_records
from loadgen.wire.client import Client, Limits
from tests.fuzz.mutations import mutate
from tests.fuzz.run import corpus
from tests.measuring import ask, measure
from tests.sse_events import DONE, END, FIN, ROLE, C, event

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("each_way_of_reading")]

MS = 1_000_000
LIMITS = Limits(
    connect_ns=2000 * MS,
    first_byte_ns=2000 * MS,
    first_token_ns=400 * MS,
    between_tokens_ns=2000 * MS,
    total_ns=4000 * MS,
)

RESET = "reset"
Step = bytes | float | str
"""Bytes to write, seconds to wait, or a reset."""


def serve(connection: socket.socket, answer: Callable[[int], Sequence[Step]]) -> bool:
    """Reads one request and answers it; whether the connection is still of use."""
    received = b""
    while b"}" not in received.partition(b"\r\n\r\n")[2][-1:]:
        data = connection.recv(65536)
        if not data:
            return False
        received += data
    steps = answer(int(re.search(rb"X-Request-Id: r(\d+)", received)[1]))  # type: ignore[index]
    for step in steps:
        if isinstance(step, bytes):
            connection.sendall(step)
        elif isinstance(step, float):
            time.sleep(step)
        else:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
    return b"X-Keep: yes" in b"".join(step for step in steps if isinstance(step, bytes))


@contextlib.contextmanager
def raw_server(answer: Callable[[int], Sequence[Step]]) -> Iterator[str]:
    """Answers the request of index k with the steps of `answer(k)` and closes, unless they say `X-Keep: yes`."""

    def answers(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while serve(connection, answer):
                pass

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answers, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def chunked(*data: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in data)


def head(*lines: bytes, status: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([status, *lines, b"", b""])


SSE = b"Content-Type: text/event-stream"
CHUNKED = b"Transfer-Encoding: chunked"
HEAD = head(SSE, CHUNKED)
BODY = ROLE + C("a") + C("b") + END(2)
LAST = b"0\r\n\r\n"
WHOLE = HEAD + chunked(ROLE, C("a"), C("b"), END(2)) + LAST


def sized(body: bytes, length: int | bytes | None = None) -> bytes:
    return head(SSE, b"Content-Length: %b" % str(len(body) if length is None else length).encode()) + body


def lengths(*values: bytes) -> bytes:
    return head(SSE, *(b"Content-Length: " + value for value in values)) + BODY


ANSWERS: dict[str, tuple[Sequence[Step], str]] = {
    # --- framings that are right
    "chunked": ([WHOLE], "ok"),
    "chunked and kept": ([head(SSE, CHUNKED, b"X-Keep: yes") + chunked(BODY) + LAST], "ok"),
    "chunks of one byte": ([HEAD + chunked(*(BODY[k : k + 1] for k in range(len(BODY)))) + LAST], "ok"),
    "one byte a write": ([WHOLE[k : k + 1] for k in range(len(WHOLE))], "ok"),
    "chunk extensions, zeros and capitals": (
        [HEAD + b"00%X;name=value\r\n%b\r\n" % (len(BODY), BODY) + b"000;x\r\n\r\n"],
        "ok",
    ),
    "trailers": ([HEAD + chunked(BODY) + b"0\r\nX-Trailer: 1\r\nX-Other: 2\r\n\r\n"], "ok"),
    "content length": ([sized(BODY)], "ok"),
    "content length in pieces": ([sized(BODY)[:300], 0.01, sized(BODY)[300:]], "ok"),
    "until close": ([head(SSE) + BODY], "ok"),
    "HTTP/1.0 until close": ([head(SSE, status=b"HTTP/1.0 200 OK") + BODY], "ok"),
    "HTTP/1.0 with content length": ([sized(BODY).replace(b"HTTP/1.1", b"HTTP/1.0")], "ok"),
    "no reason phrase": ([WHOLE.replace(b"200 OK", b"200 ")], "ok"),
    "many informational answers": ([head(status=b"HTTP/1.1 103 Early Hints") * 30 + WHOLE], "ok"),
    "an informational answer in pieces": ([b"HTTP/1.1 100 Co", 0.01, b"ntinue\r\n\r\n", 0.01, WHOLE], "ok"),
    "headers of 30 kB": ([head(SSE, CHUNKED, b"X-Big: " + b"a" * 30_000) + chunked(BODY) + LAST], "ok"),
    "a hundred headers": ([head(SSE, CHUNKED, *[b"X-%d: 1" % k for k in range(100)]) + chunked(BODY) + LAST], "ok"),
    "a header that is no UTF-8": ([head(SSE, CHUNKED, b"X-Odd: \xff\xfe") + chunked(BODY) + LAST], "ok"),
    "identity said": ([head(SSE, CHUNKED, b"Content-Encoding: identity") + chunked(BODY) + LAST], "ok"),
    "a second answer behind it": ([WHOLE + WHOLE], "ok"),
    "reset behind it": ([WHOLE, 0.02, RESET], "ok"),
    # --- broken framings
    "nothing": ([], "transport"),
    "reset at once": ([RESET], "transport"),
    "half a status line": ([b"HTTP/1.1 20"], "transport"),
    "half a head": ([HEAD[:-10]], "transport"),
    "reset in the head": ([HEAD[:-10], 0.02, RESET], "transport"),
    "head only": ([HEAD], "truncated"),
    "reset after the head": ([HEAD, 0.02, RESET], "transport"),
    "reset in the body": ([HEAD + chunked(ROLE + C("a")), 0.02, RESET], "transport"),
    "close in a chunk": ([HEAD + b"fff\r\n" + C("a")], "truncated"),
    "close in a chunk's size": ([HEAD + chunked(C("a")) + b"ff"], "truncated"),
    "close between chunks": ([HEAD + chunked(C("a"))], "truncated"),
    "close behind done": ([HEAD + chunked(BODY)], "ok"),
    "a size that is no number": ([HEAD + chunked(C("a")) + b"zz\r\n" + C("b")], "protocol"),
    "a negative size": ([HEAD + chunked(C("a")) + b"-5\r\n" + C("b")], "protocol"),
    "a size of 80 bits": ([HEAD + b"F" * 20 + b"\r\n" + BODY], "protocol"),
    "a size without its line end": ([HEAD + b"5" * 70_000], "protocol"),
    "a chunk longer than its size": ([HEAD + b"5\r\n" + BODY + b"\r\n" + LAST], "protocol"),
    "broken framing in the first read": ([HEAD + b"nonsense\r\n"], "protocol"),
    "content length too long": ([sized(C("a"), 5000)], "truncated"),
    "content length too short": ([sized(BODY, len(ROLE + C("a")))], "protocol"),
    "content length of nothing": ([sized(b"")], "truncated"),
    "content length that is no number": ([lengths(b"ten")], "protocol"),
    "negative content length": ([lengths(b"-5")], "protocol"),
    "two content lengths": ([lengths(b"5", b"6")], "protocol"),
    # --- heads that are none
    "noise behind the answer": ([WHOLE + b"\x00\xff nonsense" * 50], "protocol"),
    "noise": ([b"\x00\x01\x02\xff" * 100], "protocol"),
    "text": ([b"hello\r\n\r\n"], "protocol"),
    "server-sent events without a head": ([BODY], "protocol"),
    "another protocol": ([WHOLE.replace(b"HTTP/1.1", b"ICY/1.1")], "protocol"),
    "TLS": ([b"\x15\x03\x01\x00\x02\x02\x46"], "protocol"),
    "a code of four digits": ([WHOLE.replace(b"200 OK", b"2000 OK")], "protocol"),
    "a header without a colon": ([head(SSE, CHUNKED, b"nonsense") + chunked(BODY) + LAST], "protocol"),
    "a header with a zero byte": ([head(SSE, CHUNKED, b"X-Odd: \x00") + chunked(BODY) + LAST], "protocol"),
    "a header of a megabyte": ([head(SSE, CHUNKED, b"X-Big: " + b"a" * 1_000_000) + chunked(BODY) + LAST], "protocol"),
    "a head without an end": ([b"HTTP/1.1 200 OK\r\n" + b"X-Big: aaaaaaaaaaaaaaaa\r\n" * 50_000], "protocol"),
    # --- other answers
    "no content": ([head(status=b"HTTP/1.1 204 No Content")], "http_204"),
    "not modified": ([head(status=b"HTTP/1.1 304 Not Modified")], "http_304"),
    "a redirect": ([head(b"Location: /", b"Content-Length: 0", status=b"HTTP/1.1 307 X")], "http_307"),
    "a code of nobody": ([WHOLE.replace(b"200 OK", b"599 Odd")], "http_599"),
    "an error cut off": ([head(b"Content-Length: 500", status=b"HTTP/1.1 500 X") + b'{"error":"en'], "http_500"),
    "an error and a reset": ([head(CHUNKED, status=b"HTTP/1.1 503 X") + chunked(b"busy"), 0.02, RESET], "http_503"),
    "an error with broken framing": ([head(CHUNKED, status=b"HTTP/1.1 502 X"), 0.02, b"nonsense\r\n"], "http_502"),
    "a page": ([head(b"Content-Type: text/html") + b"<title>Login</title>"], "not_a_stream"),
    "no content type": ([head(CHUNKED) + chunked(BODY) + LAST], "not_a_stream"),
    "a content type that is no UTF-8": (
        [head(b"Content-Type: text/\xff", CHUNKED) + chunked(BODY) + LAST],
        "not_a_stream",
    ),
    "a content type with an escape": (
        [head(b"Content-Type: a/\x1b[31m", CHUNKED) + chunked(BODY) + LAST],
        "not_a_stream",
    ),
    "compressed": (
        [head(SSE, CHUNKED, b"Content-Encoding: gzip") + chunked(gzip.compress(BODY)) + LAST],
        "protocol",
    ),
    "compressed, it says": ([head(SSE, CHUNKED, b"Content-Encoding: gzip") + chunked(BODY) + LAST], "ok"),
    "an encoding that is no UTF-8": (
        [head(SSE, CHUNKED, b"Content-Encoding: \xff") + chunked(C("a")) + LAST],
        "protocol",
    ),
    "an error event, then a close": ([HEAD + chunked(C("a"), event({"error": "engine died"}))], "stream_error"),
    "an error event, then a reset": (
        [HEAD + chunked(C("a"), event({"error": "engine died"})), 0.02, RESET],
        "stream_error",
    ),
    "10,000 empty events": ([HEAD + chunked(b"data:\n\n" * 10_000 + BODY) + LAST], "ok"),
    "a line of 3 MB": ([HEAD + chunked(C("x" * 3_000_000) + END(1)) + LAST], "ok"),
    "a line of 3 MB without an end": ([HEAD + chunked(b"data: " + b"x" * 3_000_000) + LAST], "truncated"),
    "no token, only the end": ([HEAD + chunked(ROLE + FIN("stop") + DONE) + LAST], "empty"),
    # --- slow ones
    "a head that trickles": ([piece for k in range(80) for piece in (HEAD[k : k + 1], 0.02)], "timeout_first_token"),
    "comments for ever": ([HEAD, *[chunked(b": ping\n\n"), 0.02] * 60], "timeout_first_token"),
}


def check(request: RequestRecord) -> None:
    assert is_status(request.status)
    assert bool(request.reason) == (request.status != record.OK)
    assert request.reason.isprintable()
    assert request.sent_ns is not None
    assert request.dispatched_ns <= request.sent_ns <= request.finished_ns
    assert (request.arrivals_ns >= request.sent_ns).all()
    assert decode_block(encode_records([request]))


@pytest.fixture(scope="module")
def records() -> dict[str, tuple[RequestRecord, RequestRecord]]:
    """The record of every answer, and of the request that followed it; all by one client."""
    names = list(ANSWERS)

    async def script(client: Client) -> list[RequestRecord]:
        return [await ask(client, k) for k in range(2 * len(names))]

    with raw_server(lambda k: [WHOLE] if k % 2 else ANSWERS[names[k // 2]][0]) as url:
        asked = measure(url, script, LIMITS)
    return dict(zip(names, zip(asked[::2], asked[1::2], strict=True), strict=True))


@pytest.mark.parametrize("name", ANSWERS)
def test_any_answer_is_one_record_and_the_next_request_is_served(
    name: str, records: dict[str, tuple[RequestRecord, RequestRecord]]
) -> None:
    answered, following = records[name]
    check(answered)
    assert answered.status == ANSWERS[name][1]
    assert answered.finished_ns - answered.dispatched_ns < 3000 * MS
    assert (following.status, following.output_tokens) == (record.OK, 2)


def test_answers_made_by_chance_never_cost_the_client_its_next_request() -> None:
    rng = random.Random(4)
    bodies = [body for body in corpus().values() if len(body) < 2_000]
    wholes = [HEAD + chunked(*body.splitlines(keepends=True)) + LAST for body in bodies] + list(raw_bytes())
    answers = [mutate(rng.choice(wholes), wholes, rng)[:20_000] for _ in range(200)]

    async def script(client: Client) -> list[RequestRecord]:
        return [await ask(client, k) for k in range(2 * len(answers))]

    with raw_server(lambda k: [WHOLE] if k % 2 else [answers[k // 2]]) as url:
        records = measure(url, script, LIMITS)
    for request in records:
        check(request)
    assert [r.status for r in records[1::2]] == [record.OK] * len(answers)


def raw_bytes() -> Iterator[bytes]:
    """The answers above that are written at once."""
    for steps, _ in ANSWERS.values():
        if len(steps) == 1 and isinstance(steps[0], bytes) and len(steps[0]) < 20_000:
            yield steps[0]
