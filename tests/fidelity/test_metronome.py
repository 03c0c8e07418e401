"""The server of known timing over real sockets: it plays what it promises, and its log tells what it did."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from server.metronome.truth import COMPLETE, HELD_BACK, NEW_CONNECTION, STREAMED, load_truth
from tests.metronome_process import COMMAND, MetronomeProcess, chat, contents, post, read_stream, running_metronome

pytestmark = pytest.mark.alone

CHAT = "/v1/chat/completions"


def asked(metronome: MetronomeProcess, request: bytes) -> bytes:
    """What is answered to a request that closes its connection."""
    with metronome.connect() as sock:
        sock.sendall(request)
        return b"".join(iter(lambda: sock.recv(65536), b""))


def test_the_log_holds_what_was_sent_and_no_client_sees_a_token_before_it(tmp_path: Path) -> None:
    with running_metronome(tmp_path / "truth", "--ttft-ms", "30", "--itl-ms", "5") as metronome:
        with metronome.connect() as sock:
            before_ns = time.monotonic_ns()
            sock.sendall(post(CHAT, chat(20, stream_options={"include_usage": True}), "X-Request-Id: abc-0-7"))
            _, events = read_stream(sock)
        truth = metronome.end()
    assert (truth.ttft_ns, truth.itl_ns) == (30_000_000, 5_000_000)
    assert truth.request_ids == ["abc-0-7"]
    assert (truth.has(COMPLETE) & truth.has(STREAMED)).all()
    sends_ns = truth.sends_of(0)
    tokens = [(at, json.loads(event[6:])) for at, event in events[1:-2]]
    assert len(tokens) == len(sends_ns) == truth.tokens[0] == 20
    assert all(token["choices"][0]["delta"]["content"] for _, token in tokens)
    assert all(sent <= seen for sent, (seen, _) in zip(sends_ns, tokens, strict=True))
    assert before_ns <= truth.arrived_ns[0] <= truth.read_ns[0]
    assert sends_ns[0] - truth.arrived_ns[0] >= truth.ttft_ns
    assert (np.diff(sends_ns) >= truth.itl_ns // 2).all()
    # On the whole it keeps its pace, however late single tokens were.
    assert sends_ns[-1] - sends_ns[0] >= 19 * truth.itl_ns - truth.lateness_ns().max()
    assert (truth.lateness_ns() >= 0).all()


def test_a_chat_has_the_shape_of_vllms(tmp_path: Path) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    pace = ("--ttft-ms", "1", "--itl-ms", "1")
    with running_metronome(tmp_path / "truth", *pace) as metronome, metronome.connect() as sock:
        sock.sendall(post(CHAT, chat(3, model="other", stream_options=options, unknown_field=[1])))
        head, events = read_stream(sock)
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"text/event-stream" in head
    role, *tokens, usage = contents(events)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [token["choices"][0]["finish_reason"] for token in tokens] == [None, None, "length"]
    assert [token["usage"]["completion_tokens"] for token in tokens] == [1, 2, 3]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 6, "total_tokens": 9, "completion_tokens": 3}
    assert {content["model"] for content in (role, *tokens, usage)} == {"other"}
    assert len({content["id"] for content in (role, *tokens, usage)}) == 1


def test_a_completion_has_text_and_no_role_and_usage_only_if_it_is_asked_for(tmp_path: Path) -> None:
    options = ("--ttft-ms", "1", "--itl-ms", "1", "--output-tokens", "3")
    with running_metronome(tmp_path / "truth", *options) as metronome, metronome.connect() as sock:
        sock.sendall(post("/v1/completions", {"prompt": "one two", "stream": True}))
        _, events = read_stream(sock)
    tokens = contents(events)
    assert [bool(token["choices"][0]["text"]) for token in tokens] == [True] * 3
    assert not any("usage" in token for token in tokens)


def test_a_kept_connection_serves_again_and_the_log_tells_the_first_from_the_next(tmp_path: Path) -> None:
    with running_metronome(tmp_path / "truth", "--ttft-ms", "1", "--itl-ms", "1") as metronome:
        with metronome.connect() as sock:
            for number in range(3):
                sock.sendall(post(CHAT, chat(2), f"X-Request-Id: {number}"))
                read_stream(sock)
        truth = metronome.end()
    assert truth.request_ids == ["0", "1", "2"]
    assert truth.has(NEW_CONNECTION).tolist() == [True, False, False]


def test_requests_of_one_connection_that_come_at_once_are_answered_one_after_another(tmp_path: Path) -> None:
    with running_metronome(tmp_path / "truth", "--ttft-ms", "5", "--itl-ms", "1") as metronome:
        with metronome.connect() as sock:
            sock.sendall(post(CHAT, chat(2), "X-Request-Id: a") + post(CHAT, chat(2), "X-Request-Id: b"))
            data = b""
            while data.count(b"0\r\n\r\n") < 2:
                data += sock.recv(65536)
        truth = metronome.end()
    assert truth.request_ids == ["a", "b"]
    assert truth.sends_of(0)[-1] <= truth.sends_of(1)[0]


def test_a_client_that_goes_away_is_logged_as_far_as_it_came_and_disturbs_nobody(tmp_path: Path) -> None:
    with running_metronome(tmp_path / "truth", "--ttft-ms", "1", "--itl-ms", "5") as metronome:
        with metronome.connect() as leaving, metronome.connect() as waiting, metronome.connect() as staying:
            leaving.sendall(post(CHAT, chat(1000), "X-Request-Id: gone"))
            waiting.sendall(post(CHAT, chat(1000), "X-Request-Id: reset"))
            staying.sendall(post(CHAT, chat(40), "X-Request-Id: stayed"))
            while b"content" not in leaving.recv(65536):
                pass
            leaving.close()
            waiting.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            waiting.close()
            _, events = read_stream(staying)
        truth = metronome.end()
    assert len(events) == 1 + 40 + 1
    complete = dict(zip(truth.request_ids, truth.has(COMPLETE).tolist(), strict=True))
    assert complete == {"gone": False, "reset": False, "stayed": True}
    sends = dict(zip(truth.request_ids, np.diff(truth.starts).tolist(), strict=True))
    assert sends["stayed"] == 40
    assert sends["gone"] < 1000


def test_the_log_is_whole_after_sigterm_in_mid_stream(tmp_path: Path) -> None:
    pace = ("--ttft-ms", "1", "--itl-ms", "5")
    with running_metronome(tmp_path / "truth", *pace) as metronome, metronome.connect() as sock:
        sock.sendall(post(CHAT, chat(2)))
        read_stream(sock)
        sock.sendall(post(CHAT, chat(100_000), "X-Request-Id: open"))
        data = b""
        while data.count(b"data:") < 5:
            data += sock.recv(65536)
        truth = metronome.end()
    assert truth.request_ids == ["", "open"]
    assert truth.has(COMPLETE).tolist() == [True, False]
    assert len(truth.sends_of(1)) >= data.count(b"data:") - 1  # all but the role


def test_what_a_slow_reader_does_not_take_is_kept_in_order_and_flagged(tmp_path: Path) -> None:
    with running_metronome(tmp_path / "truth", "--ttft-ms", "1", "--itl-ms", "0.001") as metronome:
        with metronome.connect() as sock, metronome.connect() as prompt_reader:
            sock.sendall(post(CHAT, chat(40_000)))
            # While it reads nothing, another is served; then more has been sent than any window holds.
            prompt_reader.sendall(post(CHAT, chat(30_000)))
            read_stream(prompt_reader)
            time.sleep(0.5)
            _, events = read_stream(sock)
        truth = metronome.end()
    assert len(contents(events)) == 40_001
    assert bool(truth.has(HELD_BACK)[truth.tokens == 40_000])
    assert truth.has(COMPLETE).all()


def test_an_answer_in_one_piece_comes_when_its_last_token_is_due(tmp_path: Path) -> None:
    with running_metronome(tmp_path / "truth", "--ttft-ms", "20", "--itl-ms", "10") as metronome:
        for path, prompt in (
            (CHAT, {"messages": [{"role": "user", "content": "a"}]}),
            ("/v1/completions", {"prompt": "a"}),
        ):
            data = asked(metronome, post(path, {**prompt, "max_completion_tokens": 3}, "Connection: close"))
            answer = json.loads(data.partition(b"\r\n\r\n")[2])
            assert answer["usage"]["completion_tokens"] == 3
            assert answer["choices"][0]["finish_reason"] == "length"
        truth = metronome.end()
    assert (truth.sends_ns - truth.arrived_ns >= 40_000_000).all()
    assert not truth.has(STREAMED).any()


def test_it_is_asked_like_any_server(tmp_path: Path) -> None:
    with running_metronome(tmp_path / "truth", "--served-model-name", "m") as metronome:

        def got(request: str) -> tuple[bytes, bytes]:
            head, _, body = asked(metronome, f"{request} HTTP/1.1\r\nConnection: close\r\n\r\n".encode()).partition(
                b"\r\n\r\n"
            )
            return head.split(b"\r\n")[0], body

        assert got("GET /health") == (b"HTTP/1.1 200 OK", b"")
        assert json.loads(got("GET /v1/models")[1])["data"][0]["id"] == "m"
        assert json.loads(got("GET /version?x=1")[1])["version"].endswith("+metronome")
        assert got("GET /nothing")[0] == b"HTTP/1.1 404 Not Found"
        tokenize = asked(metronome, post("/tokenize", {"messages": chat()["messages"]}, "Connection: close"))
        assert json.loads(tokenize.partition(b"\r\n\r\n")[2])["count"] == 6


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"hello\r\n\r\n",
        post(CHAT, {"max_tokens": 0.5}),
        post(CHAT, {"max_tokens": -1}),
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 3\r\n\r\n[1]",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{]",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 70_000,
    ],
)
def test_what_is_no_request_gets_400_and_the_next_client_is_served(tmp_path: Path, request_bytes: bytes) -> None:
    with running_metronome(tmp_path / "truth") as metronome:
        assert asked(metronome, request_bytes).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert asked(metronome, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--cpu", "9999"], "--cpu 9999"),
        (["--truth", "/nowhere/at/all"], "--truth /nowhere/at/all"),
        (["--truth", "/dev/full"], "No space left"),
        (["--itl-ms", "0"], "--itl-ms"),
        (["--host", "192.0.2.1"], "192.0.2.1"),
    ],
)
def test_an_option_that_cannot_be_met_is_refused(options: list[str], told: str) -> None:
    ended = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


def test_another_file_is_no_truth_log(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"something else entirely, and long enough")
    with pytest.raises(ValueError, match="not a metronome's truth log"):
        load_truth(tmp_path / "other")
