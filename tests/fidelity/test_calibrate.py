"""`loadgen calibrate` as people run it, on a small ladder: the whole product against the metronome."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

COMMAND = [sys.executable, "-m", "loadgen", "calibrate", "--duration", "1s", "--output-tokens", "16"]


def test_a_small_ladder_gives_the_tools_own_error(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    ended = subprocess.run(
        [*COMMAND, "--streams", "8", "--json", "-", "-o", str(folder)], capture_output=True, text=True, timeout=90
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    (step,) = report["steps"]
    assert step["streams"] == 8
    assert step["requests_unmatched"] == 0
    assert step["requests"] >= 16
    assert 0.9 * step["tokens"] <= step["arrival_error"]["n"] <= step["tokens"]
    # Whatever else the machine does, no token arrives before it was sent, and most are stamped at once.
    assert 0 <= step["arrival_error"]["p50_us"] < 20_000
    assert abs(step["ttft_error_of_a_request"]["p50_us"]) < 20_000
    assert step["ttft"]["p50"]["true_ms"] >= 50
    assert 0 < step["cpu_us_per_token"] < 100_000
    assert 30 < step["worker_peak_rss_mb"] < 2_000
    assert step["worker_waited_share"] >= 0
    assert report["conditions"]["ttft_ms"] == 50
    assert json.loads((folder / "calibration.json").read_text()) == report
    assert (folder / "8-streams" / "run" / "summary.json").exists()
    assert "TTFT" in ended.stderr


def test_an_interrupt_tells_what_was_measured_and_leaves_nothing_running(tmp_path: Path) -> None:
    file, folder = tmp_path / "report.json", tmp_path / "kept"
    command = [*COMMAND, "--streams", "2,4", "--keep-going", "--json", str(file), "-o", str(folder)]
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background ignores it
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while not (folder / "4-streams" / "run.log").exists():
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    report = json.loads(file.read_text())
    assert report["interrupted"] is True
    assert [step["streams"] for step in report["steps"]] == [2]
    assert "interrupted" in errors
    assert "TTFT" in output
    assert processes_that_name(str(folder)) == []


def processes_that_name(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                arguments = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in arguments:
                found.append(arguments)
    return found
