"""Headers, models, tools, streams and whole answers through the whole of `loadgen run`, and no secret in what it leaves."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from loadgen.record import OK, RequestRecord
from loadgen.spool import read_records
from tests.command_here import loadgen_here
from tests.scripted_server import Answer, Request, ScriptedServer, refusal
from tests.sse_events import DONE, FIN, ROLE, C, U

SECRET, REFERRED = "tk-4711-written-out", "tk-0815-by-reference"
SCENARIO = f"""
seed: 7
target:
  headers: {{X-Tenant: blue, X-Api-Key: {SECRET}, Authorization: "Bearer ${{GATEWAY_TOKEN}}"}}
workload:
  classes:
    - {{name: chat, share: 50%, input_tokens: 60, output_tokens: 4, extra_body: {{temperature: 0.7}}}}
    - {{name: jobs, share: 30%, input_tokens: 90, output_tokens: 6, model: adapter, stream: false}}
    - name: tools
      share: 20%
      input_tokens: {{distribution: uniform, min: 80, max: 120}}
      output_tokens: 5
      ignore_eos: false
      extra_body:
        tools: [{{type: function, function: {{name: weather, parameters: {{type: object}}}}}}]
        tool_choice: required
load: {{concurrency: 6, warmup: 0.5s, duration: 2s}}
slo: {{ttft_p95: 2s, e2el_p95: 2s}}
"""
TEMPLATES = {"base": 5, "adapter": 17}
TOOLS = 40


def count(body: dict[str, Any]) -> int:
    words = len(body["messages"][0]["content"].split())
    return TEMPLATES[body["model"]] + words + (TOOLS if "tools" in body else 0)


PAGES = {
    "/v1/models": {"data": [{"id": name, "max_model_len": 4096} for name in TEMPLATES]},
    "/health": {},
    # It knows nothing of tools, as some do not.
    "/tokenize": lambda body: {"count": count(json.loads(body))},
}


def answer(k: int, request: Request) -> Answer:
    body = request.json()
    n = body["max_tokens"]
    if k % 40 == 20:  # a server that says too much
        return refusal(503, f"busy; you sent {request.headers['authorization']} and {request.headers['x-api-key']}", 5)
    if not body["stream"]:
        whole = {
            "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": count(body), "completion_tokens": n},
        }
        return Answer([(30, json.dumps(whole).encode())], content_type="application/json")
    end = FIN("length") + U(count(body), n) + DONE
    return Answer([(5, ROLE), *((20 + 5 * i, C("x")) for i in range(n - 1)), (20 + 5 * n, C("x") + end)])


def records_of(out: Path) -> list[RequestRecord]:
    return [record for path in sorted((out / "records").glob("*.spool")) for record in read_records(path)]


def test_a_mix_of_models_tools_and_whole_answers_keeps_lengths_and_secrets(tmp_path: Path) -> None:
    path, out = tmp_path / "mix.yaml", tmp_path / "out"
    path.write_text(SCENARIO)
    with ScriptedServer(answer, PAGES) as server:
        ended = subprocess.run(
            [sys.executable, "-m", "loadgen", "run", str(path), "--base-url", server.url, "-o", str(out)]
            + ["--metrics-port", "off", "--workers", "2", "--header", f"X-Api-Key: {SECRET}"]
            + ["--header", "Authorization: Bearer ${GATEWAY_TOKEN}", "--header", "X-Tenant: blue"],
            capture_output=True,
            text=True,
            timeout=90,
            env={**os.environ, "GATEWAY_TOKEN": REFERRED, "OPENAI_API_KEY": "key-of-the-environment"},
        )
    assert ended.returncode in (0, 3), ended.stderr
    (level,) = json.loads((out / "summary.json").read_text())["levels"]

    # What was sent.
    for request in server.requests:
        assert request.headers["x-tenant"] == "blue"
        assert request.headers["x-api-key"] == SECRET
        assert request.headers["authorization"] == f"Bearer {REFERRED}"
        body = request.json()
        assert body["stream"] is (body["model"] == "base")
        assert ("stream_options" in body) is body["stream"]
        assert ("ignore_eos" in body) is ("tools" not in body)

    # What was measured.
    done = [record for record in records_of(out) if record.status == OK]
    assert len(done) > 60 and {record.worker for record in done} == {0, 1}
    assert all(record.input_tokens == record.input_tokens_requested for record in done)
    assert min(Counter(record.kind for record in done).values()) > 5
    assert all(record.streamed is (record.kind != 1) for record in done)
    assert level["input_tokens_mismatched"] == 0
    chat, jobs, tools = level["classes"]
    assert [one["model"] for one in level["classes"]] == [None, "adapter", None]
    assert [one["streamed"] for one in level["classes"]] == [True, False, True]
    assert 0 < level["not_streamed"] == sum(jobs["requests"].values())
    assert jobs["n_ttft"] == 0 and jobs["p95_ttft_ms"] is None and jobs["p95_tpot_ms"] is None
    assert jobs["p50_e2el_ms"] >= 30 and jobs["output_throughput"] > 0 and jobs["mean_output_tokens"] == 6
    assert chat["p50_ttft_ms"] >= 20 and tools["p50_ttft_ms"] >= 20
    assert level["n_ttft"] == chat["n_ttft"] + tools["n_ttft"]
    assert "not streaming: answers come whole" in ended.stdout

    # What was left behind.
    reasons = [record.reason for record in records_of(out) if record.status == "http_503"]
    assert reasons and set(reasons) == {"busy; you sent Bearer <secret> and <secret>"}
    texts = [file.read_bytes() for file in out.rglob("*") if file.is_file()]
    for said in (*texts, ended.stdout.encode(), ended.stderr.encode()):
        assert SECRET.encode() not in said and REFERRED.encode() not in said
    command = json.loads((out / "provenance.json").read_text())["command"]
    assert "--header 'X-Api-Key: <secret>' --header 'Authorization: Bearer ${GATEWAY_TOKEN}'" in command
    assert "X-Api-Key: &lt;secret&gt;" in (out / "report.html").read_text()
    written = (out / "scenario.yaml").read_text()
    assert "${LOADGEN_HEADER_X_API_KEY}" in written and "${GATEWAY_TOKEN}" in written

    again = subprocess.run([sys.executable, "-m", "loadgen", "report", str(out)], capture_output=True, text=True)
    assert again.returncode in (0, 3), again.stderr
    assert json.loads((out / "summary.json").read_text())["levels"] == [level]


def test_a_header_whose_variable_is_not_set_is_refused_with_exit_code_2(tmp_path: Path) -> None:
    ended = loadgen_here(
        *["run", "-o", str(tmp_path / "out"), "--metrics-port", "off"],
        *["--base-url", "http://127.0.0.1:9", "--header", "X-A: ${NOT_SET_ANYWHERE}"],
    )
    assert ended.returncode == 2, ended.stderr
    assert "NOT_SET_ANYWHERE, which is not set" in " ".join(ended.stderr.split())
    assert not (tmp_path / "out").exists()


def test_a_worker_elsewhere_without_a_headers_secret_is_refused_by_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "loadgen"]
    with ScriptedServer(answer, PAGES) as server:
        controller = subprocess.Popen(
            [*command, "run", "--base-url", server.url, "-o", str(tmp_path / "out"), "--metrics-port", "off"]
            + ["--header", f"X-Api-Key: {SECRET}", "--input-tokens", "60", "--output-tokens", "2"]
            + ["--expect-workers", "1", "--master-bind-host", "127.0.0.1", "--master-bind-port", port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "GATEWAY_TOKEN": REFERRED},
        )
        # It has the environment of another host.
        worker = subprocess.Popen([*command, "worker", "--master-host", "127.0.0.1", "--master-port", port])
        try:
            _, said = controller.communicate(timeout=90)
        finally:
            for process in (controller, worker):
                process.kill()
                process.wait()
    assert controller.returncode == 1
    assert "LOADGEN_HEADER_X_API_KEY, which is not set" in " ".join(said.split())
    assert SECRET not in said
