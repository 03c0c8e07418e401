"""The server's own metrics through a whole run: sampled, judged, shown, and judged again from the folder."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadgen.outputs import write_outputs
from loadgen.run_folder import RunFolder
from tests.busy_machine import sound
from tests.simulator_process import SimulatorProcess, running_simulator

QUICK = [
    "--warmup",
    "1s",
    "--duration",
    "2.5s",
    "--isl",
    "32",
    "--osl",
    "16",
    "--metrics-port",
    "off",
    "--workers",
    "1",
]


def levels_of(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / "summary.json").read_text())["levels"])


class OtherTraffic:
    """Somebody else's requests to a simulator, one after another, while the block runs."""

    def __init__(self, simulator: SimulatorProcess) -> None:
        self._simulator = simulator
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(2)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        body = {"model": "sim", "prompt": "a b c", "max_tokens": 20, "ignore_eos": True, "stream": True}
        while not self._stop.is_set():
            try:
                self._simulator.ask("POST", "/v1/completions", body)
            except (OSError, http.client.HTTPException):
                return


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Three levels; in the last one somebody else uses the server too."""
    folder = tmp_path_factory.mktemp("run") / "out"
    command = [sys.executable, "-m", "loadgen", "run", "--concurrency", "2,12,3", "-o", str(folder), *QUICK]
    with (
        running_simulator("--max-num-seqs", "4") as simulator,
        subprocess.Popen(
            [*command, "--base-url", simulator.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        deadline = time.monotonic() + 90
        while not (folder / "levels/1.json").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        with OtherTraffic(simulator):
            out, err = process.communicate(timeout=90)
    return folder, subprocess.CompletedProcess(command, process.returncode, out, err)


def test_a_level_agrees_with_the_server_in_every_count_and_says_what_limits_it(
    run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, ended = run
    low, high, _ = levels_of(folder)
    for level in (low, high):
        server = level["server_metrics"]
        assert server["kind"] == "vllm" and server["restarts"] == 0
        assert server["samples"] >= 3
        found = server["reconciliation"]
        for name in ("first_tokens", "output_tokens", "finished_requests"):
            assert found[name]["server"] > 0
        assert abs(found["first_tokens"]["difference"]) <= found["tolerance_requests"]
        assert abs(found["output_tokens"]["difference"]) <= found["tolerance_tokens"]
        assert found["other_traffic_share"] == 0
        assert sound(level), level["reasons"]
        assert not {one["rule"] for one in level["warnings"]} & {"some_other_traffic", "tokens_disagree"}
    assert high["server_metrics"]["max_running"] == 4
    assert high["server_metrics"]["mean_waiting"] == pytest.approx(8, abs=1)
    if low["valid"] and high["valid"]:
        assert (low["limit"]["kind"], high["limit"]["kind"]) == ("none", "scheduler")
    assert "server metrics vLLM's" in " ".join(ended.stdout.split())
    assert "by the server's own metrics" in ended.stdout
    assert 'loadgen_level_server_running_requests{concurrency="12"' in (folder / "metrics.prom").read_text()
    assert "The server by its own account" in (folder / "report.html").read_text()
    metrics = json.loads((folder / "provenance.json").read_text())["target"]["metrics"]
    assert (metrics["kind"], metrics["problem"]) == ("vllm", None)
    assert metrics["url"].endswith("/metrics")


def test_others_traffic_in_the_server_makes_a_level_invalid(
    run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, ended = run
    level = levels_of(folder)[2]
    assert "other_traffic" in {reason["rule"] for reason in level["reasons"]}, ended.stderr
    found = level["server_metrics"]["reconciliation"]
    assert 0.1 < found["other_traffic_share"] < 0.8
    assert found["in_flight"]["difference"] > 0.5


def test_a_report_repeats_it_all_from_the_folder(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, ended = run
    levels = levels_of(folder)
    (folder / "summary.json").unlink()
    assert write_outputs(RunFolder.open(folder), Console(quiet=True)).exit_code == ended.returncode
    assert levels_of(folder) == levels
