"""A generator that is not given its CPU: every level is refused, nothing is answered, and the exit code says so."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.simulator_process import running_simulator

STOPPED_S, RUNNING_S = 0.8, 0.5
"""A stall of the loop beyond what a level bears, some of it in every window."""


def workers_of(controller: int) -> list[int]:
    children = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    return [pid for pid in map(int, children) if b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_throttled_client_has_all_its_levels_refused_and_answers_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with running_simulator() as simulator:
        controller = subprocess.Popen(
            [
                *(sys.executable, "-m", "loadgen", "run", "--base-url", simulator.url, "-o", str(run)),
                *("--concurrency", "2,4", "--warmup", "1s", "--duration", "3s", "--metrics-port", "off"),
                *("--input-tokens", "32", "--output-tokens", "8", "--slo", "ttft_p95<60s"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        deadline = time.monotonic() + 100
        while controller.poll() is None and time.monotonic() < deadline:
            # Not before there is something to measure: a worker that cannot start is another matter.
            throttled = workers_of(controller.pid) if (run / "records/journal.jsonl").exists() else []
            for number, pause_s in ((signal.SIGSTOP, STOPPED_S), (signal.SIGCONT, RUNNING_S)):
                for pid in throttled:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                time.sleep(pause_s if throttled else 0.02)
        told = controller.communicate(timeout=20)[0]
    assert controller.returncode == 3, told
    summary = json.loads((run / "summary.json").read_text())
    assert [level["valid"] for level in summary["levels"]] == [False, False]
    assert all("worker_stalled" in {one["rule"] for one in level["reasons"]} for level in summary["levels"])
    assert summary["answers"]["highest_output_throughput"] is None
    assert all(one["level"] is None for one in summary["answers"]["capacity"])
