"""Workers and controllers that die, freeze, come late or cannot write: no request is lost or counted twice, and no level
is silently smaller.

After each fault, the requests that the simulator saw are those that the run folder has, each once.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
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
# Long answers, so that some are always under way when the fault comes.
LOAD = ["--warmup", "1s", "--input-tokens", "64", "--output-tokens", "64", "--metrics-port", "off"]


class Run:
    """A `loadgen run` under way against a simulator that logs the truth."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, truth: Path) -> None:
        self.process = process
        self.folder = folder
        self.truth = truth

    def await_window(self, level: int = 0) -> None:
        """Waits until half a second of the level's window has passed."""
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            plans = [plan for entry in RunFolder(self.folder).plans() if (plan := entry.plan).level == level]
            if plans:
                time.sleep(max(0.0, plans[0].window_start_ns / 1e9 + 0.5 - time.monotonic()))
                return
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)
        raise AssertionError("the window did not come")

    def workers(self) -> list[int]:
        """Process ids of the local workers."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid), "-f", "loadgen worker"], capture_output=True)
        return [int(line) for line in found.stdout.split()]

    def end(self, timeout_s: float = 60) -> tuple[int, str]:
        """(exit code, standard error)."""
        _, stderr = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, stderr

    def levels(self) -> list[dict[str, Any]]:
        return list(json.loads((self.folder / "summary.json").read_text())["levels"])

    def recorded(self) -> Counter[tuple[int, int]]:
        """How often each (level, index) is in the folder, begun but unfinished requests included."""
        reader = RunReader(RunFolder(self.folder))
        return Counter((r.level, r.index) for data in reader.all() for r in data.records)

    def seen(self) -> set[tuple[int, int]]:
        """(level, index) of every request that the simulator received."""
        ids = [json.loads(line)["client_request_id"] for line in self.truth.read_text().splitlines()]
        return {(int(i.split("-")[1]), int(i.split("-")[2])) for i in ids if i != "loadgen-probe"}


@contextmanager
def running(tmp_path: Path, *options: str, file_bytes: int | None = None) -> Iterator[Run]:
    def limit() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    truth, folder = tmp_path / "truth.jsonl", tmp_path / "out"
    with running_simulator("--truth", str(truth)) as simulator:
        process = subprocess.Popen(
            [*LOADGEN, "run", "--base-url", simulator.url, "-o", str(folder), *LOAD, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=limit,
        )
        run = Run(process, folder, truth)
        try:
            yield run
        finally:
            for worker in run.workers():
                os.kill(worker, signal.SIGCONT)
            if process.poll() is None:
                process.kill()
                process.communicate()
    # The simulator has stopped: its log is whole.


def assert_nothing_lost_or_double(run: Run) -> None:
    recorded = run.recorded()
    assert max(recorded.values()) == 1, "a request was counted twice"
    begun_but_never_sent = set(recorded) - run.seen()
    assert run.seen() <= set(recorded), "a request that the server saw is in no record"
    assert len(begun_but_never_sent) <= 8, "more requests than users cannot have been cut off between note and send"


def rules(level: dict[str, Any]) -> set[str]:
    return {reason["rule"] for reason in level["reasons"]}


def test_a_killed_worker_makes_its_level_invalid_and_the_next_one_is_measured_without_it(tmp_path: Path) -> None:
    with running(tmp_path, "--workers", "2", "--concurrency", "4,5", "--duration", "4s") as run:
        run.await_window()
        killed_s = time.monotonic()
        os.kill(run.workers()[0], signal.SIGKILL)
        while not any(entry.plan.lost_workers for entry in RunFolder(run.folder).plans()):
            assert time.monotonic() - killed_s < 6, "the level was not marked within six seconds"
            time.sleep(0.05)
        exit_code, stderr = run.end()
    assert "went missing: the level is invalid, and goes on with 1 of 2 workers until Ctrl-C ends it" in stderr
    first, second = run.levels()
    assert not first["valid"] and "worker_lost" in rules(first)
    assert "client_not_watched" not in {warning["rule"] for warning in first["warnings"]}
    assert (first["workers"], first["lost_workers"]) == (2, 1)
    assert sound(second), second["reasons"]
    assert (second["workers"], second["lost_workers"]) == (1, 0)
    assert exit_code == (0 if second["valid"] else 3), stderr
    assert_nothing_lost_or_double(run)


def test_a_frozen_worker_is_marked_and_counts_again_after_its_return(tmp_path: Path) -> None:
    with running(tmp_path, "--workers", "2", "--concurrency", "4,5", "--duration", "9s") as run:
        run.await_window()
        frozen = run.workers()[0]
        os.kill(frozen, signal.SIGSTOP)
        stopped_s = time.monotonic()
        while not any(entry.plan.lost_workers for entry in RunFolder(run.folder).plans()):
            assert time.monotonic() - stopped_s < 6, "the level was not marked within six seconds"
            time.sleep(0.05)
        os.kill(frozen, signal.SIGCONT)
        run.end()
    first, second = run.levels()
    assert not first["valid"] and "worker_lost" in rules(first)
    assert (second["workers"], second["lost_workers"]) == (2, 0)
    assert sound(second), second["reasons"]
    assert_nothing_lost_or_double(run)


def test_a_short_freeze_that_no_heartbeat_misses_is_still_found(tmp_path: Path) -> None:
    with running(tmp_path, "--workers", "1", "--concurrency", "4", "--duration", "4s") as run:
        run.await_window()
        (worker,) = run.workers()
        os.kill(worker, signal.SIGSTOP)
        time.sleep(1)
        os.kill(worker, signal.SIGCONT)
        exit_code, _ = run.end()
    (level,) = run.levels()
    assert not level["valid"] and "worker_stalled" in rules(level)
    assert exit_code == 3
    assert_nothing_lost_or_double(run)


def test_a_killed_controller_takes_its_workers_along_and_recover_rebuilds_the_run(tmp_path: Path) -> None:
    with running(tmp_path, "--workers", "2", "--concurrency", "3,4", "--duration", "3s") as run:
        run.await_window(level=1)
        workers = run.workers()
        assert len(workers) == 2
        run.process.kill()
        run.process.wait()
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{worker}").exists() for worker in workers):
            assert time.monotonic() < deadline, "a worker outlived its controller"
            time.sleep(0.05)
        assert run.process.stderr is not None
        run.process.stderr.close()
    assert not (run.folder / "summary.json").exists()
    recovered = subprocess.run([*LOADGEN, "recover", str(run.folder)], capture_output=True, text=True, timeout=60)
    whole, cut = run.levels()
    assert sound(whole) and whole["requests"]["ok"] > 0
    assert recovered.returncode == (0 if whole["valid"] else 3), recovered.stderr
    assert not cut["valid"] and "interrupted" in rules(cut)
    assert cut["requests"]["ok"] >= 0 and cut["window_s"] < 3
    assert_nothing_lost_or_double(run)


def test_a_full_disk_ends_the_run_with_what_was_measured(tmp_path: Path) -> None:
    # A limit on file size is a full disk for the spool alone; nobody needs to be root for it.
    with running(tmp_path, "--workers", "1", "--concurrency", "8", "--duration", "30s", file_bytes=30_000) as run:
        exit_code, stderr = run.end()
    assert exit_code == 1
    assert "cannot be written" in stderr and "hint:" in stderr and "Traceback" not in stderr
    (level,) = run.levels()
    assert not level["valid"] and "interrupted" in rules(level)
    assert level["requests"]["ok"] > 0
    assert_nothing_lost_or_double(run)


def test_a_torn_spool_costs_its_last_block_and_says_so(tmp_path: Path) -> None:
    with running(tmp_path, "--workers", "1", "--concurrency", "8", "--duration", "3s") as run:
        exit_code, stderr = run.end()
    (level,) = run.levels()
    assert sound(level), stderr
    spool = run.folder / "records" / "worker-0.spool"
    os.truncate(spool, spool.stat().st_size - 7)
    again = subprocess.run([*LOADGEN, "report", str(run.folder)], capture_output=True, text=True, timeout=60)
    assert again.returncode == exit_code, again.stderr
    assert re.search(r"\d+ bytes of records/worker-0\.spool are torn or damaged", again.stdout)
    (level,) = run.levels()
    assert level["requests"]["ok"] > 0

    content = bytearray(spool.read_bytes())
    content[len(content) // 2] ^= 0xFF
    spool.write_bytes(content)
    again = subprocess.run([*LOADGEN, "report", str(run.folder)], capture_output=True, text=True, timeout=60)
    assert again.returncode == 3, "a level that has lost records of its window is valid for nothing"
    (damaged,) = run.levels()
    assert "records_missing" in rules(damaged) and damaged["missing_records"] > 0


REMOTE = (
    "import sys; from loadgen import run_folder; run_folder.RunFolder.nonce = lambda self: None; "
    "from loadgen.cli import main; main()"
)
"""A worker that does not see the controller's folder, as on another host."""


def test_a_remote_worker_ships_its_spool_and_a_late_one_is_sent_away(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    options = ["--expect-workers", "1", "--workers", "1", "--master-bind-host", "127.0.0.1", "--master-bind-port", port]
    command = [sys.executable, "-c", REMOTE, "worker", "--master-port", port]
    with running(tmp_path, *options, "--concurrency", "4,5", "--duration", "3s") as run:
        remote = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        run.await_window()
        late = subprocess.run([*LOADGEN, "worker", "--master-port", port], capture_output=True, text=True, timeout=30)
        exit_code, stderr = run.end()
        assert remote.wait(20) == 0
        assert remote.stderr is not None
        said = remote.stderr.read()
        remote.stderr.close()
    own = Path(re.search(r"spool: (.*)", said)[1])  # type: ignore[index]
    shipped = [path for path in (run.folder / "records").glob("*.spool") if path.read_bytes() == own.read_bytes()]
    assert len(shipped) == 1
    first, second = run.levels()
    assert "worker_late" in rules(first), first["reasons"]
    assert sound(second), second["reasons"]
    assert exit_code == (0 if second["valid"] else 3), stderr
    assert (second["workers"], second["achieved_concurrency"]) == (2, pytest.approx(5, rel=0.1))
    assert late.returncode == 0
    assert_nothing_lost_or_double(run)
