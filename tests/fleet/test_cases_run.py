"""T16, T19, T20 and T23 of the public cases through the whole of `loadgen run`, against a server that plays scripts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from server.simulator.tokenizer import folder as tokenizer_folder
from tests.scripted_server import Answer, Request, ScriptedServer, Write
from tests.sse_events import DONE, FIN, ROLE, C, U

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = pytest.mark.alone

INPUT_TOKENS = 40


def answer(tokens: int, first_ms: float, gap_ms: float) -> Answer:
    """`NORMAL` of the cases, with the prompt tokens that the run asks for."""
    script: list[Write] = [(10, ROLE)]
    script += [(first_ms + k * gap_ms, C("x")) for k in range(tokens)]
    end = FIN("length") + U(INPUT_TOKENS, tokens) + DONE
    return Answer([*script, (first_ms + (tokens - 1) * gap_ms, end)])


def run(server: ScriptedServer, out: Path, *options: str, output_tokens: int) -> list[dict[str, Any]]:
    """The level objects of a run against the scripted server; invalid levels (too few samples) are looked at too."""
    ended = subprocess.run(
        [sys.executable, "-m", "loadgen", "run", "--base-url", server.url, "-o", str(out), "--metrics-port", "off"]
        + ["--tokenizer", str(tokenizer_folder()), "--input-tokens", str(INPUT_TOKENS)]
        + ["--output-tokens", str(output_tokens), "--no-ignore-eos", *options],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ended.returncode in (0, 3), ended.stderr
    assert "running event loop" not in ended.stderr + (out / "run.log").read_text()
    return list(json.loads((out / "summary.json").read_text())["levels"])


def test_t20_streams_of_locust_users_really_overlap(tmp_path: Path) -> None:
    with ScriptedServer(lambda k, _: answer(10, 100, 100)) as server:
        (level,) = run(
            server, tmp_path / "out", "--concurrency", "50", "--warmup", "1s", "--duration", "3s", output_tokens=10
        )
    assert server.peak_in_flight == 50
    assert level["achieved_concurrency"] == pytest.approx(50, rel=0.05)
    assert level["p50_ttft_ms"] >= 100 and level["p95_ttft_ms"] <= 140
    # One after another, fifty streams of one second would be one a second.
    assert level["request_throughput"] > 40


def test_t16_150_streams_through_one_worker_are_150_in_flight(tmp_path: Path) -> None:
    with ScriptedServer(lambda k, _: answer(2, 1000, 10)) as server:
        (level,) = run(
            server, tmp_path / "out", "--concurrency", "150", "--warmup", "2s", "--duration", "3s", output_tokens=2
        )
    assert server.peak_in_flight == 150
    assert level["achieved_concurrency"] == pytest.approx(150, rel=0.03)
    assert level["p50_ttft_ms"] >= 1000 and level["p95_ttft_ms"] <= 1100


def test_t19_prompts_differ_across_levels_and_workers(tmp_path: Path) -> None:
    with ScriptedServer(lambda k, _: answer(2, 50, 10)) as server:
        run(
            *[server, tmp_path / "out", "--concurrency", "1,2,4", "--warmup", "0.5s", "--duration", "1s"],
            *["--set", "workers.local=2"],
            output_tokens=2,
        )
    prompts = [request.json()["messages"][0]["content"].split() for request in server.requests]
    assert len(prompts) > 60
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
    # A word is a token, and a KV block has sixteen: no two prompts may share their first block.
    assert len({tuple(prompt[:12]) for prompt in prompts}) == len(prompts)


def test_t23_levels_do_not_mix(tmp_path: Path) -> None:
    def by_load(k: int, request: Request) -> Answer:
        """After 100 ms: more than two in flight, first token now; else at 500 ms."""

        def look(server: ScriptedServer) -> list[Write]:
            first_ms = 100 if server.in_flight > 2 else 500
            writes: list[Write] = [(first_ms + 20 * n, C("x")) for n in range(5)]
            return [*writes, (first_ms + 80, FIN("length") + U(INPUT_TOKENS, 5) + DONE)]

        return Answer([(100, look)])

    out = tmp_path / "out"
    with ScriptedServer(by_load) as server:
        two, four = run(server, out, "--concurrency", "2,4", "--warmup", "1s", "--duration", "4s", output_tokens=5)
    assert two["p50_ttft_ms"] == pytest.approx(500, abs=20)
    assert four["p50_ttft_ms"] == pytest.approx(100, abs=20) and four["p95_ttft_ms"] == pytest.approx(100, abs=30)
    # Requests begun in the first level belong to it alone.
    first, second = RunReader(RunFolder(out)).all()
    begun_in = [{(r.level, r.index) for r in data.records if r.level == data.plan.level} for data in (first, second)]
    assert not begun_in[0] & begun_in[1]
    assert two["requests"]["ok"] == sum(
        first.plan.window_start_ns <= (r.sent_ns or 0) < first.plan.window_end_ns for r in first.records if r.level == 0
    )
