"""The metronome's pure parts: reading requests however they are cut, and its log to the last torn byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.metronome.answer import Scripts, count_prompt, read_shape
from server.metronome.request import HttpRequest, awaits_continue, take_request
from server.metronome.truth import COMPLETE, STREAMED, TruthLog, load_truth

LENGTH = b"POST /v1/completions?a=b HTTP/1.1\r\nx-REQUEST-id: r1\r\nContent-Length: 4\r\n\r\nbody"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nX-Request-Id: r1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2;x\r\ndy\r\n0\r\n\r\n"


@pytest.mark.parametrize("data", [LENGTH, CHUNKED])
def test_a_request_cut_anywhere_is_read_once_it_is_whole(data: bytes) -> None:
    for cut in range(len(data)):
        buffer = bytearray(data[:cut])
        assert take_request(buffer) is None
        assert buffer == data[:cut]
        buffer += data[cut:] + b"GET"
        request = take_request(buffer)
        assert request == HttpRequest(b"POST", b"/v1/completions", b"r1", True, b"body")
        assert buffer == b"GET"


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"GET / HTTP/1.1\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: Close\r\n", False),
        (b"GET / HTTP/1.0\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_a_connection_is_kept_as_http_says(head: bytes, kept: bool) -> None:
    request = take_request(bytearray(head + b"\r\n"))
    assert request is not None
    assert request.keep_alive is kept


def test_a_client_that_waits_to_be_asked_for_its_body_is_known() -> None:
    head = bytearray(b"POST / HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
    assert awaits_continue(head)
    assert not awaits_continue(head + b"b")
    assert not awaits_continue(bytearray(LENGTH[:60]))


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ({"prompt": "a b  c"}, 3),
        ({"prompt": [1, 2, 3, 4]}, 4),
        ({"prompt": ["a b", "c"]}, 3),
        ({"messages": [{"role": "user", "content": "a b"}]}, 6),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a b"}]}]}, 6),
        ({"messages": [{"role": "user"}, 5]}, 4),
        ({}, 0),
    ],
)
def test_a_prompt_is_counted_by_words(asked: dict[str, object], tokens: int) -> None:
    assert count_prompt(asked) == tokens


def test_two_requests_of_one_shape_differ_in_their_id_alone() -> None:
    scripts = Scripts(created_s=1_700_000_000)
    shape = read_shape("chat", {"stream": True, "max_tokens": 3}, default_model="m", default_tokens=9)
    one, two = scripts.script(shape, 1), scripts.script(shape, 2)
    assert one.ends == two.ends
    assert one.ends[-1] == len(one.body) == len(two.body)
    assert one.body != two.body
    assert one.body.replace(b"%016x" % 1, b"%016x" % 2) == two.body
    assert one.body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_a_log_that_is_torn_anywhere_gives_every_whole_answer_before_it(tmp_path: Path) -> None:
    path = tmp_path / "truth"
    log = TruthLog(path, ttft_ns=50, itl_ns=10)
    sends = [[150, 160, 170], [], [260]]
    ends = []
    for number, instants in enumerate(sends):
        log.add(
            number=number,
            request_id=b"r%d" % number,
            arrived_ns=100 * (number + 1),
            read_ns=100 * (number + 1) + 5,
            tokens=3,
            sends_ns=instants,
            flags=STREAMED | COMPLETE * (number == 0),
        )
        log.flush()
        ends.append(path.stat().st_size)
    log.close()
    whole = path.read_bytes()
    for cut in range(24, len(whole) + 1):
        path.write_bytes(whole[:cut])
        truth = load_truth(path)
        n = sum(end <= cut for end in ends)
        assert truth.request_ids == [f"r{i}" for i in range(n)]
        assert [truth.sends_of(i).tolist() for i in range(n)] == sends[:n]
    assert truth.has(COMPLETE).tolist() == [True, False, False]
    assert truth.read_ns.tolist() == [105, 205, 305]


def test_lateness_is_against_the_due_time_and_a_late_token_moves_only_one_that_would_follow_too_soon(
    tmp_path: Path,
) -> None:
    log = TruthLog(tmp_path / "truth", ttft_ns=50, itl_ns=10)
    fields = {"request_id": b"", "arrived_ns": 100, "read_ns": 100, "tokens": 4}
    # 150 due, then 160, 170, 180: the second is 3 late, the third 8, which moves the fourth to 183.
    log.add(number=0, sends_ns=[150, 163, 178, 183], flags=STREAMED, **fields)  # type: ignore[arg-type]
    log.add(number=1, sends_ns=[999], flags=0, **fields)  # type: ignore[arg-type]
    log.close()
    assert load_truth(tmp_path / "truth").lateness_ns().tolist() == [0, 3, 8, 0, 0]
