"""Servers that die while they are measured, targets that go away, and runs that are cut off and taken up again.

After each, the run folder has every level that was measured, and each level of the sweep once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from tests.busy_machine import sound
from tests.simulator_process import running_simulator

# Each is a fleet of its own that is measured: two at once would spoil each other's levels.
pytestmark = pytest.mark.alone

LOADGEN = [sys.executable, "-m", "loadgen"]
LOAD = ["--warmup", "500ms", "--input-tokens", "64", "--output-tokens", "32", "--metrics-port", "off", "--workers", "1"]


class Run:
    """A `loadgen run` under way."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.folder = folder

    def await_window(self, level: int) -> None:
        """Waits until a part of the level's window has passed."""

        def there() -> bool:
            plans = [entry.plan for part in RunFolder(self.folder).parts() for entry in part.plans()]
            now_ns = time.monotonic_ns()
            return any(plan.level == level and plan.window_start_ns + 3e8 < now_ns for plan in plans)

        self.until(there)

    def until(self, true: Callable[[], Any], timeout_s: float = 60) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (found := true()):
            assert time.monotonic() < deadline, "it did not come"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)
        return found

    def server(self) -> int:
        """Process id of the simulator that the run has started."""
        return int(self.until(lambda: children(self.process.pid, "serve sim"))[0])

    def end(self) -> tuple[int, str]:
        """(exit code, standard error)."""
        _, stderr = self.process.communicate(timeout=90)
        return self.process.returncode, stderr

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "summary.json").read_text()))


def children(pid: int, of: str) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", of], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Run]:
    process = subprocess.Popen(
        [*LOADGEN, "run", *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        yield Run(process, folder)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def steps(summary: dict[str, Any]) -> list[tuple[int, bool]]:
    """(step, whether it was interrupted) of each level."""
    return [(level["step"], level["interrupted"]) for level in summary["levels"]]


def test_a_server_that_dies_ends_its_level_and_is_started_once_more(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with running(folder, "-o", str(folder), *LOAD, "--concurrency", "2,3", "--duration", "3s") as run:
        run.await_window(0)
        killed_s = time.monotonic()
        os.kill(run.server(), signal.SIGKILL)
        run.until(lambda: any(entry.plan.interrupted for entry in RunFolder(folder).plans()))
        assert time.monotonic() - killed_s < 3, "the level went on against a server that is not there"
        exit_code, stderr = run.end()
    summary = run.summary()
    assert steps(summary) == [(0, True), (0, False), (1, False)], stderr
    cut, *whole = summary["levels"]
    assert "The simulator ended with exit code -9" in cut["reasons"][0]["evidence"]
    assert all(sound(level) for level in whole), [level["reasons"] for level in whole]
    assert exit_code == (0 if any(level["valid"] for level in whole) else 3)
    (failed,) = summary["answers"]["failed"]
    assert not failed["gave_up"] and failed["failures"] == 1


def test_a_setting_whose_server_dies_twice_is_left_and_the_sweep_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    options = ["--sweep", "max_num_seqs=2,4", "--concurrency", "1,2", "--duration", "2s"]
    with running(folder, "-o", str(folder), *LOAD, *options) as run:
        for level in (0, 1):
            run.await_window(level)
            os.kill(run.server(), signal.SIGKILL)
            run.until(lambda level=level: len(RunFolder(folder).failures()) == level + 1)
        exit_code, stderr = run.end()
    summary = run.summary()
    assert steps(summary) == [(0, True), (0, True), (2, False), (3, False)], stderr
    assert "nothing more is measured with max_num_seqs 2" in stderr
    assert summary["answers"]["failed"][0]["server"] == {"max_num_seqs": 2}
    assert summary["answers"]["failed"][0]["gave_up"]
    assert exit_code in (0, 3) and "Traceback" not in stderr
    assert not children(run.process.pid, "serve sim")


def test_a_setting_that_cannot_start_ends_the_run_unless_it_is_to_go_on(tmp_path: Path) -> None:
    options = [
        *LOAD,
        "--concurrency",
        "1",
        "--duration",
        "1s",
        "--sweep",
        "startup_delay_s=30,0",
        "--ready-timeout",
        "2s",
    ]
    refused = subprocess.run([*LOADGEN, "run", *options, "-o", str(tmp_path / "no")], capture_output=True, text=True)
    assert refused.returncode == 1 and "did not start" in refused.stderr
    assert not (tmp_path / "no").exists()
    folder = tmp_path / "on"
    with running(folder, "-o", str(folder), *options, "--continue-on-error") as run:
        exit_code, stderr = run.end()
    summary = run.summary()
    assert steps(summary) == [(1, False)], stderr
    assert exit_code in (0, 3)
    (failed,) = summary["answers"]["failed"]
    assert failed["server"] == {"max_num_seqs": 16, "startup_delay_s": 30.0} and failed["gave_up"]


def test_a_target_that_goes_away_ends_its_level_and_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with running_simulator() as first:
        port = re.search(r":(\d+)", first.url)[1]  # type: ignore[index]
        options = [
            "--base-url",
            first.url,
            *LOAD,
            "--concurrency",
            "2,3",
            "--duration",
            "20s",
            "--ready-timeout",
            "40s",
        ]
        process = running(folder, "-o", str(folder), *options)
        run = process.__enter__()
        try:
            run.await_window(0)
        except BaseException:
            process.__exit__(None, None, None)
            raise
    gone_s = time.monotonic()
    try:
        run.until(lambda: RunFolder(folder).failures())
        assert time.monotonic() - gone_s < 14, "minutes of failures"
        with running_simulator("--port", port):
            run.await_window(1)
            run.process.send_signal(signal.SIGINT)
            exit_code, stderr = run.end()
    finally:
        process.__exit__(None, None, None)
    assert exit_code == 130
    assert "takes no connections any more" in stderr and "until the server answers again" in stderr
    first_level, again = run.summary()["levels"]
    assert "takes no connections any more" in first_level["reasons"][0]["evidence"]
    assert first_level["window_s"] < 20
    assert (again["step"], again["interrupted"], again["requests"]["ok"] > 0) == (0, True, True)


def test_a_run_whose_controller_was_killed_goes_on_where_it_ended(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    options = ["--concurrency", "4,5,6", "--duration", "3s", "--seed", "5"]
    with running(folder, "-o", str(folder), *LOAD, *options) as run:
        run.await_window(1)
        server = run.server()
        run.process.kill()
        run.process.wait()
        deadline = time.monotonic() + 10
        while Path(f"/proc/{server}").exists():
            assert time.monotonic() < deadline, "the server outlived its controller"
            time.sleep(0.05)
    for torn in (folder / "records" / "worker-0.spool", folder / "records" / "journal.jsonl"):
        with torn.open("ab") as file:
            file.write(b"\x07torn")
    with running(folder, "--resume", str(folder), "--metrics-port", "off") as run:
        exit_code, stderr = run.end()
    assert "resumed: 1 level is measured, and kept" in stderr, stderr
    summary = run.summary()
    assert steps(summary) == [(0, False), (1, False), (2, False)]
    assert all(sound(level) for level in summary["levels"]), [level["reasons"] for level in summary["levels"]]
    assert exit_code in (0, 3)
    # A resumed level is a fresh one: nothing of the level that was cut off is in it, and its requests are the same.
    first, second, _ = RunReader(RunFolder.open(folder)).all()
    assert {record.level for record in second.records if record.level != second.plan.level} == set()
    numbers = sorted(record.index for record in second.records)
    assert numbers == list(range(len(numbers)))
    assert second.plan.window_start_ns > first.plan.window_end_ns
    provenance = json.loads((folder / "provenance.json").read_text())
    assert len(provenance["resumed"]) == 1 and provenance["resumed"][0]["seed"] == 5
    again = subprocess.run([*LOADGEN, "run", "--resume", str(folder)], capture_output=True, text=True)
    assert again.returncode == 2 and "Nothing is left to run" in again.stderr
    other = subprocess.run([*LOADGEN, "run", "--resume", str(folder), "--isl", "65"], capture_output=True, text=True)
    assert other.returncode == 2 and "another scenario: workload.input_tokens (64, now 65)" in other.stderr
