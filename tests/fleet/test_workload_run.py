"""Workloads through the whole of `loadgen run`, against the simulator, which counts the tokens of every prompt itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.prompts import LocalCounter
from loadgen.record import OK, RequestRecord
from loadgen.spool import read_records
from server.simulator.tokenizer import folder as tokenizer_folder
from tests.command_here import loadgen_here
from tests.scripted_server import Answer, Request, ScriptedServer
from tests.simulator_process import SimulatorProcess, running_simulator
from tests.sse_events import DONE, FIN, ROLE, C, U

MIX = """
seed: 7
workload:
  classes:
    - {name: chat, share: 70%, input_tokens: {distribution: lognormal, mean: 80, stddev: 60}, output_tokens: 6}
    - name: rag
      share: 30%
      lengths_file: pairs.csv
      prefixes: {count: 3, tokens: 64, zipf: 1.0}
      extra_body: {temperature: 0.5}
"""
PAIRS = "input_tokens,output_tokens\n120,3\n240,9\n"


def run(scenario: Path, out: Path, *options: str) -> tuple[dict[str, Any], str]:
    """(summary, what was printed); levels with few samples, which are invalid, are looked at too."""
    ended = subprocess.run(
        [sys.executable, "-m", "loadgen", "run", str(scenario), "-o", str(out), "--metrics-port", "off"]
        + ["--warmup", "0.5s", *options],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ended.returncode in (0, 3), ended.stderr
    return json.loads((out / "summary.json").read_text()), ended.stdout


def records_of(out: Path) -> list[RequestRecord]:
    return [record for path in sorted((out / "records").glob("*.spool")) for record in read_records(path)]


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    (tmp_path / "pairs.csv").write_text(PAIRS)
    path = tmp_path / "mix.yaml"
    path.write_text(MIX)
    return path


def test_every_prompt_of_a_mix_has_the_tokens_that_the_server_counts(scenario: Path, tmp_path: Path) -> None:
    out, truth = tmp_path / "out", tmp_path / "truth.jsonl"
    with running_simulator("--truth", str(truth)) as simulator:
        summary, printed = run(
            scenario, out, "--base-url", simulator.url, "--concurrency", "4,8", "--workers", "2", "--duration", "2s"
        )
    records = records_of(out)
    done = [record for record in records if record.status == OK]
    assert len(done) > 100 and {record.status for record in records} <= {OK, "cancelled"}
    assert {record.worker for record in done} == {0, 1}
    for record in done:
        assert record.input_tokens == record.input_tokens_requested
        assert record.output_tokens == record.output_tokens_requested
    told = {entry["client_request_id"]: entry for entry in map(json.loads, truth.read_text().splitlines())}
    nonce = next(name for name in told if name != "loadgen-probe").partition("-")[0]
    for record in records:
        assert told[f"{nonce}-{record.level}-{record.index}"]["prompt_tokens"] == record.input_tokens_requested

    pairs = Counter((record.input_tokens, record.output_tokens) for record in done if record.kind == 1)
    assert set(pairs) == {(120, 3), (240, 9)}
    chat = [record for record in done if record.kind == 0]
    assert {record.output_tokens for record in chat} == {6} and len({record.input_tokens for record in chat}) > 30
    assert len(chat) / len(done) == pytest.approx(0.7, abs=0.15)

    for level in summary["levels"]:
        assert level["input_tokens_mismatched"] == 0
        assert 0.1 < level["intended_prefix_share"] < 0.4
        assert [one["name"] for one in level["classes"]] == ["chat", "rag"]
        assert sum(one["requests"]["ok"] for one in level["classes"]) == level["requests"]["ok"]
        assert all(one["p50_ttft_ms"] > 0 for one in level["classes"])
    assert "by class" in printed and "rag" in printed
    assert "classes.rag.p95_ttft_ms" in (out / "summary.csv").read_text().splitlines()[0]
    assert "<h2>Classes</h2>" in (out / "report.html").read_text()

    # The report is made again from the records alone, on a host without the file of lengths.
    (scenario.parent / "pairs.csv").unlink()
    again = subprocess.run([sys.executable, "-m", "loadgen", "report", str(out)], capture_output=True, text=True)
    assert again.returncode in (0, 3), again.stderr
    assert json.loads((out / "summary.json").read_text())["levels"] == summary["levels"]


def test_one_and_three_workers_send_the_same_requests(scenario: Path, tmp_path: Path) -> None:
    counter = LocalCounter(tokenizer_folder())

    def answer(k: int, request: Request) -> Answer:
        (message,) = json.loads(request.body)["messages"]
        return Answer([(10, ROLE + C("x") + FIN("length") + U(counter.count_chat(message["content"]), 1) + DONE)])

    sent: list[Counter[str]] = []
    for workers in (1, 3):
        with ScriptedServer(answer) as server:
            run(
                scenario,
                tmp_path / str(workers),
                *("--base-url", server.url, "--tokenizer", str(tokenizer_folder()), "--no-ignore-eos"),
                *("--concurrency", "6", "--workers", str(workers), "--duration", "1s"),
            )
            bodies = [json.loads(request.body) for request in server.requests if b'"messages"' in request.body]
        sent.append(Counter(json.dumps(body, sort_keys=True) for body in bodies))
    few = min(sum(one.values()) for one in sent)
    assert few > 60
    assert all(count == 1 for one in sent for count in one.values()), "a request was sent twice"
    # Each worker goes through its own numbers, so the last few of the smaller run may not be in the other.
    assert len(sent[0].keys() & sent[1].keys()) > 0.8 * few


REFUSED: dict[str, tuple[str, list[str]]] = {
    "shares": ("classes: [{name: a, share: 90%, input_tokens: 99, output_tokens: 9}]", ["sum to 90%", "x.yaml:2"]),
    "too long": (
        "input_tokens: {distribution: normal, mean: 4000, stddev: 900}",
        ["up to 9400 + 128 = 9528", "more than the 8192 tokens of max_model_len"],
    ),
    "pair too long": ("lengths_file: long.csv", ["up to 9000 + 10 = 9010", "max_model_len"]),
    "malformed line": ("lengths_file: bad.csv", ["bad.csv:2", "output_tokens is 'x'"]),
    "no such file": ("lengths_file: none.csv", ["none.csv", "cannot be read"]),
    "prefix too long": ("{input_tokens: 90, shared_prefix_tokens: 90}", ["89 for the rest of the shared prefix"]),
}


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorProcess]:
    with running_simulator() as running:
        yield running


@pytest.mark.parametrize("case", REFUSED)
def test_a_workload_that_cannot_be_sent_is_refused_before_the_run(
    case: str, simulator: SimulatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, says = REFUSED[case]
    (tmp_path / "long.csv").write_text("90,10\n9000,10\n")
    (tmp_path / "bad.csv").write_text("90,10\n90,x\n")
    path = tmp_path / "x.yaml"
    path.write_text(f"workload:\n  {text}\n" if not text.startswith("{") else f"workload: {text}\n")
    monkeypatch.chdir(tmp_path)
    ended = loadgen_here("run", "x.yaml", "-o", "out", "--metrics-port", "off", "--base-url", simulator.url)
    assert ended.returncode == 2, ended.stderr
    for words in says:
        assert words in ended.stderr, ended.stderr
    assert "hint: " in ended.stderr and "Traceback" not in ended.stderr
    assert not (tmp_path / "out").exists()
