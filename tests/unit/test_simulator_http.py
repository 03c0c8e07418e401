"""The running simulator over HTTP: what a client sees of it, as of vLLM."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.simulator_process import COMMAND, SimulatorProcess, running_simulator

HELLO = [{"role": "user", "content": "hello there"}]
FAST = ("--step-overhead-ms", "0.5", "--decode-base-ms", "0", "--decode-time-per-seq-ms", "0")
FAST += ("--prefill-time-per-token-ms", "0.001")
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorProcess]:
    with running_simulator(*FAST, "--max-model-len", "600") as process:
        yield process


def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def samples(simulator: SimulatorProcess) -> dict[str, float]:
    """Value by sample name; the finished_reason is part of the name where there is one."""
    found = {}
    for family in text_string_to_metric_families(simulator.ask("GET", "/metrics").body.decode()):
        for sample in family.samples:
            if "le" not in sample.labels and family.name not in (
                "process_start_time_seconds",
                "vllm:cache_config_info",
            ):
                assert sample.labels["model_name"] == "sim"
                found[sample.name + sample.labels.get("finished_reason", "")] = sample.value
    return found


def open_stream(simulator: SimulatorProcess, **changes: Any) -> socket.socket:
    """A connection on which a long stream has begun."""
    content = {"messages": HELLO, "max_tokens": 500, "ignore_eos": True, "stream": True, **changes}
    body = json.dumps(content).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", simulator.port), timeout=10)
    connection.sendall(head.encode() + body)
    assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
    return connection


def test_a_chat_stream_has_vllms_shape(simulator: SimulatorProcess) -> None:
    content = {"model": "sim", "messages": HELLO, "max_tokens": 7, "ignore_eos": True, "stream": True}
    answer = simulator.ask("POST", CHAT, {**content, "stream_options": {"include_usage": True}})
    assert (answer.status, answer.content_type) == (200, "text/event-stream; charset=utf-8")
    role, *tokens, usage = answer.events()
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(tokens) == 7
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 6 + ["length"]
    assert all(event["choices"][0]["delta"]["content"] for event in tokens)
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 7)
    counted = simulator.ask("POST", "/tokenize", {"model": "sim", "messages": HELLO}).json()
    assert usage["usage"]["prompt_tokens"] == counted["count"] == len(counted["tokens"])
    assert counted["max_model_len"] == 600


def test_without_include_usage_there_is_no_usage_event(simulator: SimulatorProcess) -> None:
    answer = simulator.ask("POST", "/v1/completions", {"prompt": "a", "ignore_eos": True, "stream": True})
    found = answer.events()
    assert len(found) == 16
    assert not any("usage" in event for event in found)


def test_the_streamed_and_the_whole_answer_say_the_same(simulator: SimulatorProcess) -> None:
    content = {"messages": HELLO, "max_tokens": 40}
    whole = simulator.ask("POST", CHAT, content).json()
    streamed = simulator.ask("POST", CHAT, {**content, "stream": True}).events()
    text = "".join(event["choices"][0]["delta"]["content"] for event in streamed)
    assert whole["choices"][0]["message"]["content"] == text
    assert whole["choices"][0]["finish_reason"] == streamed[-1]["choices"][0]["finish_reason"]
    assert whole["usage"]["completion_tokens"] == len(streamed) - 1


def test_errors_come_as_vllm_sends_them(simulator: SimulatorProcess) -> None:
    unknown = simulator.ask("POST", CHAT, {"model": "x", "messages": HELLO})
    assert unknown.status == 404
    assert unknown.json() == {
        "error": {"message": "The model `x` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}
    }
    assert simulator.ask("POST", CHAT, b"{").status == 400
    assert simulator.ask("POST", CHAT, b"{}", headers={"Content-Type": "text/plain"}).status == 400
    too_long = simulator.ask("POST", "/v1/completions", {"prompt": [5] * 601})
    assert too_long.status == 400
    assert "maximum context length is 600 tokens" in too_long.json()["error"]["message"]
    assert simulator.ask("POST", "/v1/completions", {"prompt": [5] * 600}).status == 400
    assert simulator.ask("POST", "/v1/completions", {"prompt": "", "add_special_tokens": False}).status == 400


def test_output_never_passes_the_end_of_the_context(simulator: SimulatorProcess) -> None:
    content = {"prompt": [5] * 590, "max_tokens": 100, "ignore_eos": True}
    assert simulator.ask("POST", "/v1/completions", content).json()["usage"]["completion_tokens"] == 10


def test_models_version_and_health_answer(simulator: SimulatorProcess) -> None:
    (model,) = simulator.ask("GET", "/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("sim", 600)
    assert simulator.ask("GET", "/version").json()["version"].endswith("simulator")
    assert simulator.ask("GET", "/health").status == 200


def test_token_strings_come_on_request(simulator: SimulatorProcess) -> None:
    counted = simulator.ask("POST", "/tokenize", {"prompt": "hello there", "return_token_strs": True}).json()
    assert len(counted["token_strs"]) == counted["count"]
    assert "".join(counted["token_strs"]).endswith("helloĠthere")


def test_a_prompt_too_long_for_the_loop_is_counted_the_same(simulator: SimulatorProcess) -> None:
    once = simulator.ask("POST", "/tokenize", {"prompt": " hello" * 100, "add_special_tokens": False}).json()
    many = simulator.ask("POST", "/tokenize", {"prompt": " hello" * 10_000, "add_special_tokens": False}).json()
    assert many["count"] == 100 * once["count"]


def test_many_requests_share_one_connection(simulator: SimulatorProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", simulator.port, timeout=10)
    with contextlib.closing(connection):
        for n in (1, 2, 5, 1):
            content = {"prompt": "a", "max_tokens": n, "ignore_eos": True, "stream": True}
            connection.request("POST", "/v1/completions", json.dumps(content), {"Content-Type": "application/json"})
            body = connection.getresponse().read()
            assert body.count(b'"text":" ') == n
            assert body.endswith(b"data: [DONE]\n\n")


def test_http_1_0_is_told_what_it_needs(simulator: SimulatorProcess) -> None:
    body = json.dumps({"messages": HELLO, "stream": True})
    head = f"POST {CHAT} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", simulator.port), timeout=10) as connection:
        connection.sendall((head + body).encode())
        answer = connection.recv(10_000)
    assert b" 505 " in answer.splitlines()[0] and b"proxy_http_version" in answer


def test_metrics_count_what_was_served() -> None:
    with running_simulator(*FAST) as simulator:
        for _ in range(3):
            simulator.ask("POST", "/v1/completions", {"prompt": [5] * 10, "max_tokens": 4, "ignore_eos": True})
        found = samples(simulator)
    assert found["vllm:prompt_tokens_total"] == 30
    assert found["vllm:generation_tokens_total"] == 12
    assert found["vllm:request_success_totallength"] == 3
    assert found["vllm:request_success_totalabort"] == 0
    assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0
    assert found["vllm:kv_cache_usage_perc"] == found["vllm:num_preemptions_total"] == 0
    assert found["vllm:prefix_cache_queries_total"] == found["vllm:prefix_cache_hits_total"] == 0
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_time_per_output_token"):
        assert found[f"vllm:{name}_seconds_count"] == 3
    assert found["vllm:inter_token_latency_seconds_count"] == 9
    parts = sum(found[f"vllm:request_{part}_time_seconds_sum"] for part in ("queue", "prefill", "decode"))
    assert parts == pytest.approx(found["vllm:e2e_request_latency_seconds_sum"])


def test_running_and_waiting_requests_show_while_they_are_there() -> None:
    with running_simulator("--max-num-seqs", "2", "--max-model-len", "1000") as simulator:
        streams = [open_stream(simulator) for _ in range(5)]
        until(lambda: samples(simulator)["vllm:num_requests_running"] == 2)
        found = samples(simulator)
        assert found["vllm:num_requests_waiting"] == 3
        assert 0 < found["vllm:kv_cache_usage_perc"] < 0.5
        for stream in streams:
            stream.close()
        until(lambda: samples(simulator)["vllm:num_requests_waiting"] == 0)


def test_a_client_that_leaves_is_cancelled_and_logged(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    with running_simulator("--max-num-seqs", "1", "--truth", str(truth)) as simulator:
        first, second = open_stream(simulator), open_stream(simulator)
        while b"data: " not in first.recv(10_000):
            pass
        second.close()
        until(lambda: samples(simulator)["vllm:request_success_totalabort"] == 1)
        first.close()
        until(lambda: samples(simulator)["vllm:request_success_totalabort"] == 2)
        assert simulator.stop() == 0
    lines = [json.loads(line) for line in truth.read_text().splitlines()]
    assert [line["cancelled"] for line in lines] == [True, True]
    assert lines[0]["token_ns"] == [], "the one that waited got nothing"
    assert 0 < len(lines[1]["token_ns"]) < 500
    assert all(line["finished_ns"] >= line["received_ns"] for line in lines)


def test_a_client_that_does_not_read_is_disconnected() -> None:
    options = ("--step-overhead-ms", "0.02", "--max-model-len", "100000")
    with running_simulator(*FAST, *options) as simulator:
        usage = {"include_usage": True, "continuous_usage_stats": True}
        stream = open_stream(simulator, max_tokens=90_000, stream_options=usage)
        until(lambda: samples(simulator)["vllm:request_success_totalabort"] == 1, timeout_s=20)
        assert samples(simulator)["vllm:generation_tokens_total"] < 90_000
        stream.close()


def test_a_server_that_does_not_stream_answers_json() -> None:
    with running_simulator(*FAST, "--no-stream") as simulator:
        answer = simulator.ask("POST", CHAT, {"messages": HELLO, "stream": True, "max_tokens": 3, "ignore_eos": True})
    assert answer.content_type == "application/json"
    assert answer.json()["usage"]["completion_tokens"] == 3


def test_a_wrong_key_is_refused_and_health_needs_none() -> None:
    with running_simulator(*FAST, env={"SIM_API_KEY": "k-1"}) as simulator:
        assert simulator.ask("GET", "/v1/models").status == 401
        assert simulator.ask("GET", "/v1/models", headers={"Authorization": "Bearer nö"}).status == 401
        assert simulator.ask("GET", "/v1/models", headers={"Authorization": "Bearer k-1"}).status == 200
        assert simulator.ask("GET", "/health").status == 200


def test_sigterm_ends_open_streams_and_the_process_cleanly(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    with running_simulator("--truth", str(truth)) as simulator:
        stream = open_stream(simulator)
        stream.recv(10_000)
        began = time.monotonic()
        assert simulator.stop() == 0
        assert time.monotonic() - began < 3, "measured 0.3 s"
        stream.close()
    (line,) = truth.read_text().splitlines()
    assert json.loads(line)["cancelled"] is True


def test_the_truth_log_is_written_while_the_server_runs(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    with running_simulator(*FAST, "--truth", str(truth)) as simulator:
        simulator.ask("POST", CHAT, {"messages": HELLO, "max_tokens": 3}, headers={"X-Request-Id": "mine"})
        until(lambda: truth.read_text().endswith("\n"), timeout_s=5)
        line = json.loads(truth.read_text())
    assert (line["client_request_id"], line["id"], line["cancelled"]) == ("mine", "chatcmpl-mine", False)


def test_a_port_in_use_is_named_with_a_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run([*COMMAND, "--port", str(port)], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert f"Port {port} on 127.0.0.1 is in use" in ended.stderr
    assert "hint: " in ended.stderr.splitlines()[-1] and "--port 0" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--max-num-seqs", "0", "--max-num-seqs is 0"),
        ("--tokenizer", "/nowhere", "/nowhere/tokenizer.json"),
        ("--truth", "/nowhere/truth.jsonl", "/nowhere/truth.jsonl"),
    ],
)
def test_a_wrong_option_is_named(option: str, value: str, named: str) -> None:
    ended = subprocess.run([*COMMAND, option, value], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert named in ended.stderr and "hint: " in ended.stderr.splitlines()[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_killed_parent_takes_the_simulator_with_it() -> None:
    code = (
        "import os, subprocess, sys, time;"
        f"command = {[*COMMAND, '--die-with-parent']!r} + [str(os.getpid())];"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True);"
        "print(child.pid, child.stdout.readline(), flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        found = re.match(r"(\d+) simulator listening", parent.stdout.readline())
        assert found
        parent.send_signal(signal.SIGKILL)
    child = int(found[1])
    try:
        until(lambda: not _alive(child))
    finally:
        if _alive(child):
            os.kill(child, signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_importing_the_command_is_light() -> None:
    code = "import sys, loadgen.cli.serve; print(*[m for m in ('aiohttp', 'uvloop', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30).stdout == "\n"


def test_the_simulator_never_imports_loadgen_or_transformers() -> None:
    code = (
        "import sys, server.simulator.serve;"
        "print(*[m for m in ('loadgen', 'transformers', 'locust', 'gevent') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30).stdout == "\n"
