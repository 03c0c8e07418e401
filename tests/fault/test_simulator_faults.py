"""What goes wrong on demand goes wrong on the wire, for exactly the requests that it was asked for."""

import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from server.simulator.faults import DEFAULTS, read_faults, that_hit
from tests.simulator_process import SimulatorProcess, running_simulator

FAST = ("--step-overhead-ms", "0.5", "--decode-base-ms", "0", "--decode-time-per-seq-ms", "0")
FAST += ("--prefill-time-per-token-ms", "0.001")
CHAT = "/v1/chat/completions"
CONTENT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorProcess]:
    with running_simulator(*FAST) as process:
        yield process


def reads(simulator: SimulatorProcess, faults: str, **changes: Any) -> tuple[list[bytes], str]:
    """What each read of a client brings, and how it ended: `open`, `closed` or `reset`."""
    body = json.dumps({**CONTENT, **changes}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", simulator.port), timeout=5) as connection:
        connection.sendall(f"{head}X-Simulator-Fault: {faults}\r\n\r\n".encode() + body)
        found: list[bytes] = []
        while True:
            try:
                data = connection.recv(65_536)
            except ConnectionResetError:
                return found, "reset"
            except TimeoutError:
                return found, "stalled"
            if not data:
                return found, "closed"
            found.append(data)
            # A response ends with the chunk of no bytes; an error's with its JSON.
            if data.endswith(b"0\r\n\r\n") or (b"Content-Length" in b"".join(found) and data.endswith(b"}")):
                return found, "open"


def events(found: list[bytes]) -> int:
    return b"".join(found).count(b'"delta":{"content"')


def test_the_answer_of_a_request_without_faults_is_whole(simulator: SimulatorProcess) -> None:
    found, end = reads(simulator, "")
    assert (events(found), end) == (8, "open")
    assert b"[DONE]" in b"".join(found)


@pytest.mark.parametrize(("kind", "kind_of_error"), [("429", "RateLimit"), ("500", "Internal"), ("503", "Service")])
def test_a_refused_request_gets_its_status_and_vllms_error_body(
    simulator: SimulatorProcess, kind: str, kind_of_error: str
) -> None:
    answer = simulator.ask("POST", CHAT, CONTENT, {"X-Simulator-Fault": kind})
    error = answer.json()["error"]
    assert answer.status == error["code"] == int(kind)
    assert error["type"].startswith(kind_of_error)


def test_too_many_requests_says_when_to_come_again(simulator: SimulatorProcess) -> None:
    found, _ = reads(simulator, "429 retry_after=7")
    assert b"\r\nRetry-After: 7\r\n" in b"".join(found)


def test_an_error_event_comes_in_a_stream_of_status_200_and_ends_it_properly(simulator: SimulatorProcess) -> None:
    found, end = reads(simulator, "error after=3")
    text = b"".join(found)
    assert (text.splitlines()[0], events(found), end) == (b"HTTP/1.1 200 OK", 3, "open")
    assert re.search(rb'data: \{"error":\{.*"code":500\}\}\n\n', text)
    assert text.index(b'{"error"') < text.index(b"data: [DONE]")


def test_a_truncated_stream_ends_properly_without_its_end(simulator: SimulatorProcess) -> None:
    found, end = reads(simulator, "truncate after=2")
    assert (events(found), end) == (2, "open")
    assert b"[DONE]" not in b"".join(found)
    assert b'"finish_reason":"length"' not in b"".join(found)


def test_a_cut_stream_is_closed_in_the_middle_of_an_event(simulator: SimulatorProcess) -> None:
    found, end = reads(simulator, "cut after=2")
    assert end == "closed"
    assert events(found) in (2, 3)
    assert not b"".join(found).endswith(b"\r\n")


def test_a_reset_stream_is_reset(simulator: SimulatorProcess) -> None:
    found, end = reads(simulator, "reset after=2")
    # What the client had not read when the reset came is lost.
    assert end == "reset"
    assert events(found) <= 2


def test_a_stalled_stream_pauses_and_then_catches_up(simulator: SimulatorProcess) -> None:
    began = time.monotonic()
    found, end = reads(simulator, "stall after=2 seconds=0.5")
    assert (events(found), end) == (8, "open")
    assert time.monotonic() - began >= 0.5


def test_a_stream_that_stalls_for_good_gives_nothing_more(simulator: SimulatorProcess) -> None:
    body = json.dumps({**CONTENT, "simulator_fault": "stall after=1"}).encode()
    with socket.create_connection(("127.0.0.1", simulator.port), timeout=0.7) as connection:
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        text = b""
        with pytest.raises(TimeoutError):
            while True:
                text += connection.recv(65_536)
    assert text.count(b'"delta":{"content"') == 1


def test_split_events_come_in_pieces_and_say_the_same(simulator: SimulatorProcess) -> None:
    found, end = reads(simulator, "split bytes=20 gap_ms=5", max_tokens=3)
    assert (events(found), end) == (3, "open")
    assert len(found) > 6


def test_glued_events_come_together(simulator: SimulatorProcess) -> None:
    found, end = reads(simulator, "glue events=8")
    assert (events(found), end) == (8, "open")
    assert max(data.count(b'"delta":{"content"') for data in found) == 8


def test_a_buffering_proxy_gives_everything_at_once_at_the_end(simulator: SimulatorProcess) -> None:
    found, end = reads(simulator, "buffer")
    assert (events(found), end) == (8, "open")
    assert max(data.count(b'"delta":{"content"') for data in found) == 8


def test_a_fault_that_is_no_fault_is_refused_by_name(simulator: SimulatorProcess) -> None:
    answer = simulator.ask("POST", CHAT, {**CONTENT, "simulator_fault": "explode"})
    assert answer.status == 400
    assert "explode" in answer.json()["error"]["message"]


def test_an_answer_that_is_not_streamed_can_be_refused_or_reset(simulator: SimulatorProcess) -> None:
    whole = {**CONTENT, "stream": False}
    assert simulator.ask("POST", CHAT, {**whole, "simulator_fault": "503"}).status == 503
    _, end = reads(simulator, "reset", stream=False)
    assert end == "reset"
    assert simulator.ask("POST", CHAT, whole).status == 200


def test_a_servers_own_faults_hit_every_nth_request_and_can_be_changed(simulator: SimulatorProcess) -> None:
    assert simulator.ask("POST", "/simulator/faults", b"500 every=3").status == 200
    statuses = [simulator.ask("POST", CHAT, {**CONTENT, "max_tokens": 1}).status for _ in range(9)]
    assert simulator.ask("POST", "/simulator/faults", b"explode").status == 400
    assert simulator.ask("POST", "/simulator/faults", b"").status == 200
    assert sorted(statuses) == [200] * 6 + [500] * 3
    assert statuses[:3] == statuses[3:6] == statuses[6:]
    assert simulator.ask("POST", CHAT, CONTENT).status == 200


def test_a_slow_accept_delays_the_first_request_of_a_connection_only() -> None:
    with running_simulator(*FAST, "--faults", "slow_accept seconds=0.4") as slow:
        began = time.monotonic()
        assert slow.ask("GET", "/version").status == 200
        assert time.monotonic() - began >= 0.4
        with socket.create_connection(("127.0.0.1", slow.port), timeout=5) as connection:
            for at_least in (0.4, 0.0):
                began = time.monotonic()
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
                took = time.monotonic() - began
                assert took >= at_least
        assert took < 0.4


def test_a_restarted_server_is_the_same_process_on_the_same_port_with_nothing_counted() -> None:
    with running_simulator(*FAST) as server:
        pid = server.process.pid

        def counted(name: str) -> float:
            text = server.ask("GET", "/metrics").body.decode()
            found = re.search(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.M)
            assert found
            return float(found[1])

        server.ask("POST", CHAT, CONTENT)
        assert counted("vllm:generation_tokens_total") == 8
        started_s = counted("process_start_time_seconds")
        _, end = reads(server, "restart")
        assert end in ("closed", "reset")
        deadline = time.monotonic() + 20
        while True:
            try:
                tokens = counted("vllm:generation_tokens_total")
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert tokens == 0
        assert counted("process_start_time_seconds") > started_s
        assert server.process.poll() is None and server.process.pid == pid
        assert server.ask("POST", CHAT, CONTENT).status == 200
        assert server.stop() == 0


def test_a_server_that_crashes_ends_with_exit_code_1() -> None:
    with running_simulator(*FAST, "--faults", "crash seconds=0.2") as server:
        assert server.process.wait(10) == 1


# --- without a server


def test_a_line_of_faults_is_read_with_its_defaults() -> None:
    first, second = read_faults("429 share=0.1; stall after=20 seconds=3 every=50")
    assert (first.kind, dict(first.values), first.share, first.every) == ("429", {"retry_after": 1}, 0.1, 1)
    assert (second.kind, dict(second.values), second.every) == ("stall", {"after": 20, "seconds": 3}, 50)
    assert read_faults("") == ()
    assert [fault.kind for fault in read_faults("; ".join(DEFAULTS))] == list(DEFAULTS)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("explode", "explode"),
        ("429 after=1", "after=1"),
        ("stall seconds=soon", "seconds=soon"),
        ("stall seconds=-1", "seconds=-1"),
        ("500 share=2", "share=2"),
        ("500 every=0", "every=0"),
        ("split bytes=0", "split"),
    ],
)
def test_a_wrong_line_of_faults_is_refused_by_its_word(line: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read_faults(line)


def test_a_share_hits_as_many_as_it_says_and_the_same_ones_for_the_same_seed() -> None:
    faults = read_faults("500 share=0.2")
    hit = [bool(that_hit(faults, number, 7)) for number in range(2000)]
    assert 330 < sum(hit) < 470
    assert hit == [bool(that_hit(faults, number, 7)) for number in range(2000)]
    assert hit != [bool(that_hit(faults, number, 8)) for number in range(2000)]


def test_what_happens_at_a_time_hits_no_request() -> None:
    assert that_hit(read_faults("restart seconds=5"), 0, 0) == {}
    assert list(that_hit(read_faults("restart"), 0, 0)) == ["restart"]
