"""Broken framings, answers that say they are compressed, and what stands behind an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from loadgen import record
from loadgen.record import RequestRecord
from loadgen.wire.client import Client, Limits
from tests.fault.test_any_answer import CHUNKED, HEAD, LAST, SSE, WHOLE, Step, chunked, head, raw_server
from tests.measuring import ask, measure
from tests.sse_events import END, ROLE, C

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("each_way_of_reading")]
MS = 1_000_000
LIMITS = Limits(2000 * MS, 1000 * MS, 1000 * MS, 1000 * MS, 3000 * MS)
SAYS_GZIP = head(SSE, CHUNKED, b"Content-Encoding: gzip")
BODY = ROLE + C("a") + C("b") + END(2)


def ask_twice(steps: Sequence[Step], limits: Limits = LIMITS) -> list[RequestRecord]:
    """The record of the request that is answered by `steps`, and of a good one behind it."""

    async def script(client: Client) -> list[RequestRecord]:
        async with asyncio.timeout(8):  # a request that hangs fails the test
            return [await ask(client, 0), await ask(client, 1)]

    with raw_server(lambda k: [WHOLE] if k % 2 else steps) as url:
        return measure(url, script, limits)


@pytest.mark.parametrize("chunks", [3, 300])
def test_small_chunks_before_broken_framing_end_as_one_record(chunks: int, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = ask_twice([HEAD, 0.05, b"1;x\r\na\r\n" * chunks + b"zz\r\n"])
    assert (first.status, first.response_bytes) == (record.PROTOCOL, chunks)
    assert second.status == record.OK
    assert "Traceback" not in capfd.readouterr().err


def test_limits_hold_for_an_answer_that_says_it_is_compressed() -> None:
    first, second = ask_twice([SAYS_GZIP + chunked(b"abc"), 6.0])
    assert first.status == record.PROTOCOL
    assert first.finished_ns - first.dispatched_ns < 3500 * MS
    assert second.status == record.OK


@pytest.mark.parametrize("wait_s", [0.0, 0.3])
def test_a_plain_stream_that_says_gzip_is_the_same_fast_and_slow(wait_s: float) -> None:
    steps = [SAYS_GZIP + chunked(ROLE, C("a")), wait_s, chunked(C("b"), END(2)) + LAST]
    first, _ = ask_twice(steps)
    assert (first.status, first.output_tokens) == (record.OK, 2), first.reason


@pytest.mark.parametrize("answer", [WHOLE, head(SSE, b"Content-Length: %d" % len(BODY)) + BODY])
def test_a_second_head_in_the_same_read_does_not_take_the_place_of_the_first(answer: bytes) -> None:
    unasked = (
        head(b"Content-Type: application/json", b"Content-Length: 2", status=b"HTTP/1.1 408 Request Timeout") + b"{}"
    )
    first, second = ask_twice([answer + unasked])
    assert (first.status, first.output_tokens) == (record.OK, 2), first.reason
    assert second.status == record.OK


def test_an_error_without_a_body_has_its_start_and_its_stamp() -> None:
    first, second = ask_twice([head(b"Content-Length: 0", status=b"HTTP/1.1 500 X")])
    assert first.status == "http_500"
    assert first.response_started_ns is not None
    assert first.kernel_stamps
    assert second.status == record.OK
