"""A worker on another host has another monotonic clock: its records come out in the controller's."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from tests.busy_machine import measured
from tests.simulator_process import running_simulator

SHIFT_NS = 3_600_000_000_000
OTHER_HOST = f"""
import time
true_ns = time.monotonic_ns
time.monotonic_ns = lambda: true_ns() + {SHIFT_NS}
from loadgen import host, run_folder
host.boot_id = lambda: "another kernel"
run_folder.RunFolder.nonce = lambda self: None
from loadgen.cli import main
main()
"""
"""A worker whose clock is an hour ahead and that does not see the run folder."""


def test_a_workers_clock_is_converted_within_its_stated_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    folder, truth = tmp_path / "out", tmp_path / "truth.jsonl"
    with running_simulator("--truth", str(truth)) as simulator:
        worker = subprocess.Popen(
            [sys.executable, "-c", OTHER_HOST, "worker", "--master-port", port], stderr=subprocess.DEVNULL
        )
        ended = subprocess.run(
            [sys.executable, "-m", "loadgen", "run", "--base-url", simulator.url, "-o", str(folder)]
            + ["--workers", "1", "--expect-workers", "1", "--master-bind-host", "127.0.0.1", "--master-bind-port", port]
            + ["--concurrency", "4", "--warmup", "1s", "--duration", "3s", "--metrics-port", "off"]
            + ["--input-tokens", "64", "--output-tokens", "32"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert worker.wait(20) == 0
    assert measured(ended), ended.stderr
    (entry,) = RunFolder(folder).plans()
    far = next(index for index, offset_ns in entry.clock_offsets_ns.items() if offset_ns != 0)
    assert entry.clock_offsets_ns[1 - far] == 0
    (level,) = RunReader(RunFolder(folder)).all()
    error_ns = next(health.clock_error_ns for health in level.health if health.worker == far)
    assert abs(entry.clock_offsets_ns[far] - SHIFT_NS) <= max(error_ns, 1_000_000)
    assert error_ns < 20_000_000

    sent = {one["client_request_id"]: one for one in map(json.loads, truth.read_text().splitlines())}
    nonce = next(i for i in sent if i != "loadgen-probe").partition("-")[0]
    lateness_ns = {0: [], 1: []}
    for request in level.records:
        true_ns = sent[f"{nonce}-0-{request.index}"]["token_ns"]
        if request.status == "ok":
            lateness_ns[request.worker].append(request.arrivals_ns - np.array(true_ns))
    # Both workers saw the tokens at the same distance from the truth, but for the error of the clock's offset.
    medians = [float(np.median(np.concatenate(values))) for values in lateness_ns.values()]
    assert abs(medians[0] - medians[1]) < max(error_ns, 1_000_000)
    (summary,) = json.loads((folder / "summary.json").read_text())["levels"]
    assert summary["achieved_concurrency"] > 3.8
    assert summary["client"]["clock_error_max_ms"] == error_ns / 1e6
    assert 0 <= summary["clock_change_ms"] < 20  # both are one clock, an hour apart all the time
