"""256 streams of 100 tokens a second through one worker: every token that the server sent is in a record, in order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.record import OK
from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from tests.simulator_process import running_simulator

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = pytest.mark.alone

STEP = ["--step-overhead-ms", "10", "--prefill-time-per-token-ms", "0", "--decode-base-ms", "0"]
ENGINE = [*STEP, "--decode-time-per-seq-ms", "0", "--max-num-seqs", "256", "--max-num-batched-tokens", "65536"]


def test_no_event_of_256_streams_is_lost(tmp_path: Path) -> None:
    folder, truth = tmp_path / "out", tmp_path / "truth.jsonl"
    with running_simulator(*ENGINE, "--truth", str(truth)) as simulator:
        ended = subprocess.run(
            [sys.executable, "-m", "loadgen", "run", "--base-url", simulator.url, "-o", str(folder), "--workers", "1"]
            + ["--concurrency", "256", "--warmup", "2s", "--ramp", "2s", "--duration", "4s"]
            + ["--input-tokens", "64", "--output-tokens", "128", "--metrics-port", "off"],
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert ended.returncode in (0, 3), ended.stderr  # on a busy machine the level may be judged client-bound
    sent = {entry["client_request_id"]: entry for entry in map(json.loads, truth.read_text().splitlines())}
    nonce = next(i for i in sent if i != "loadgen-probe").partition("-")[0]
    (level,) = RunReader(RunFolder(folder)).all()
    finished = [request for request in level.records if request.status == OK]
    assert len(finished) > 500
    for request in finished:
        tokens_ns = sent[f"{nonce}-0-{request.index}"]["token_ns"]
        assert len(request.arrivals_ns) == len(tokens_ns) == request.output_tokens == 128
        assert (request.arrivals_ns >= tokens_ns).all()
    # Throughput of the window by the server's own clock, which is also ours.
    start_ns, end_ns = level.plan.window_start_ns, level.plan.window_end_ns
    true = sum(start_ns <= ns < end_ns for entry in sent.values() for ns in entry["token_ns"])
    (summary,) = json.loads((folder / "summary.json").read_text())["levels"]
    assert abs(summary["output_throughput"] * 4 - true) / true < 0.01
