"""Soaks as people run them: the target restarts in the middle, others have to be spared, a public address is refused."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from loadgen.soak_file import FILE_NAME, read_windows
from tests.command_here import loadgen_here
from tests.simulator_process import COMMAND, running_simulator

LOADGEN = (sys.executable, "-m", "loadgen")
SMALL = ("--isl", "32", "--osl", "16", "--warmup", "1s", "--workers", "1", "--set", "metrics.linger=0s")


SOON = (
    "from loadgen.stats import soak_windows; soak_windows.SEAL_AFTER_NS = 5_000_000_000; "
    "from loadgen.cli import main; main()"
)
"""`loadgen` where a window is told five seconds after its end, and not fifteen."""


def await_windows(run: Path, count: int, ended: subprocess.Popen[str]) -> None:
    """Until the run folder has so many windows, or the run is over."""
    deadline = time.monotonic() + 90
    while len(read_windows(run)) < count and ended.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)


def test_a_soak_goes_on_while_its_target_restarts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with running_simulator() as first:
        soak = subprocess.Popen(
            [*LOADGEN, "run", "--base-url", first.url, "--concurrency", "2", "-t", "18s", "--soak-window", "1s", *SMALL]
            + ["--metrics-port", "off", "-o", str(run)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        deadline = time.monotonic() + 60
        while not (run / "records/journal.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(3.5)  # a second of warm-up and two windows
        first.stop()
        time.sleep(4.5)
        again = subprocess.Popen([*COMMAND[:-1], str(first.port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            output, _ = soak.communicate(timeout=120)
        finally:
            again.terminate()
            again.wait(10)
    (level,) = json.loads((run / "summary.json").read_text())["levels"]
    found = level["soak"]
    assert not level["interrupted"], output
    assert len(found["windows"]) == 18 and found["duration_s"] == 18
    assert found["server_restarts"] == 1 and found["marked_windows"] >= 3
    marks = [one["mark"] for one in found["windows"]]
    assert marks[0] is None and "no request succeeded" in marks
    after = found["windows"][marks.index("no request succeeded") :]
    assert sum(one["requests"]["ok"] for one in after) > 0  # the load went on
    assert found["requests"]["connect"] > 0 and 0 < found["error_rate"] < 1
    # The file was made again from the records, and is what the level object says.
    written = read_windows(run)
    assert [{**one, "level": 0} for one in found["windows"]] == written
    assert "Soak: " in output
    (run / FILE_NAME).unlink()
    subprocess.run([*LOADGEN, "report", str(run)], check=False, capture_output=True)
    assert read_windows(run) == written


def test_a_run_whose_target_fails_stops_and_drains(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = subprocess.run(
        [*LOADGEN, "run", "--concurrency", "4", "-t", "60s", "--set", "server.faults=503 share=0.6", *SMALL]
        + ["--stop-on-error-rate", "30%", "--safety-period", "3s", "--metrics-port", "off", "-o", str(run)],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ended.returncode == 1, ended.stderr
    assert "safety.stop_on_error_rate" in ended.stderr and "hint:" in ended.stderr
    levels = json.loads((run / "summary.json").read_text())["levels"]
    assert all(level["interrupted"] and "safety.stop_on_error_rate" in level["interrupted_by"] for level in levels)


def test_a_run_whose_target_hangs_stops_long_before_its_timeouts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = subprocess.run(
        [*LOADGEN, "run", "--concurrency", "4", "-t", "60s", "--set", "server.faults=stall every=10", *SMALL]
        + ["--stop-on-stall", "2s", "--drain-timeout", "1s", "--metrics-port", "off", "-o", str(run)],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ended.returncode == 1, ended.stderr
    assert "with 4 requests in flight the target has sent no token and no answer for" in ended.stderr
    assert "Run the level again." not in ended.stdout
    levels = json.loads((run / "summary.json").read_text())["levels"]
    assert all(level["interrupted"] and "safety.stop_on_stall" in level["interrupted_by"] for level in levels)


def test_a_stop_on_the_servers_ttft_needs_its_metrics(tmp_path: Path) -> None:
    with running_simulator() as target:
        ended = subprocess.run(
            [*LOADGEN, "run", "--base-url", target.url, "--server-metrics", f"{target.url}/nothing", *SMALL]
            + ["--stop-on-server-ttft", "1s", "--metrics-port", "off", "-o", str(tmp_path / "run")],
            capture_output=True,
            text=True,
            timeout=110,
        )
    assert ended.returncode == 2
    assert "safety.stop_on_server_ttft is 1 s, and the server's metrics tell no TTFT" in ended.stderr
    assert "level 1/" not in ended.stderr


def test_a_public_address_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    ended = loadgen_here("run", "--base-url", "http://8.8.8.8:8000", "-o", str(tmp_path / "run"))
    assert ended.returncode == 2
    assert "8.8.8.8 is neither this host nor on a private network" in ended.stderr
    assert not (tmp_path / "run").exists()


def test_the_windows_are_in_metrics_while_a_soak_goes_on(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    soak = subprocess.Popen(
        [sys.executable, "-c", SOON, "run", "--concurrency", "2", "-t", "60s", "--soak-window", "1s", *SMALL]
        + ["--metrics-port", str(port), "-o", "run"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
    )
    try:
        await_windows(tmp_path / "run", 1, soak)
        first = read_windows(tmp_path / "run")[0]
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        series = dict(line.split() for line in page.splitlines() if line.startswith("loadgen_soak_"))
        assert float(series["loadgen_soak_windows"]) >= 1 and float(series["loadgen_soak_window_marked"]) == 0
        assert float(series["loadgen_soak_window_requests_per_second"]) > 0
        assert float(series["loadgen_soak_window_ttft_p95_seconds"]) > 0
        assert first["window"] == 0 and first["requests"]["ok"] > 0 and first["p95_ttft_ms"] > 0
    finally:
        soak.send_signal(signal.SIGINT)
        soak.wait(60)
    assert soak.returncode == 130
    (level,) = json.loads((tmp_path / "run/summary.json").read_text())["levels"]
    assert level["interrupted"] and level["soak"]["windows"][0]["requests"] == first["requests"]
