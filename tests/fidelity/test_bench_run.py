"""One run of the benchmark for real: the server on one core, a tool on another, and the tool's ends of every kind."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from bench.side_by_side.footprint import read_process
from bench.side_by_side.measured import Measured, Task, ToolError
from bench.side_by_side.one_run import measure
from bench.side_by_side.rungs import COLD_GENERATIONS, Rung
from bench.side_by_side.toolbox import TOOLS, Tool

RUNG = Rung(2, 100, start="cold")

pytestmark = [
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs cores 0 and 1"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


def script(text: str) -> Tool:
    """A tool that runs a line of shell and never has a result."""

    def read(rung: Rung, task: Task) -> Measured:
        raise FileNotFoundError(task.folder / "result")

    return Tool("script", "", "", lambda rung, task: ["sh", "-c", text], read, lambda: "1", (0,))


def test_a_clients_figures_are_compared_with_the_truth_of_the_same_requests() -> None:
    figures = measure(TOOLS["c"], RUNG)
    assert figures["requests"] == COLD_GENERATIONS * RUNG.streams
    assert (figures["unmatched"], figures["failed"]) == (0, 0)
    # How late the client was is the machine's business; that it was late and never early is not.
    assert all(reported >= 49.9 for reported in figures["ttft_ms"])
    assert all(true >= 49.9 for true in figures["ttft_true_ms"])
    assert figures["ttft_true_ms"][0] <= figures["ttft_ms"][0]
    assert figures["cpu_us_per_token_whole"] > 0
    assert 0 < figures["first_request_s"] < figures["wall_s"]
    assert figures["peak_rss_mb"] > 0


def test_a_tool_that_fails_is_no_result_with_its_last_words() -> None:
    with pytest.raises(ToolError, match="exit code 7; it said: out of luck"):
        measure(script("echo out of luck; echo; exit 7"), RUNG)


def test_a_tool_without_a_result_file_is_no_result() -> None:
    with pytest.raises(ToolError, match="its result cannot be read: FileNotFoundError"):
        measure(script("echo done"), RUNG)


def test_a_process_that_a_tool_leaves_behind_is_ended(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(ToolError):
        measure(script(f"sleep 600 & echo $! > {pid_file}; sleep 2"), RUNG)
    left = int(pid_file.read_text())
    deadline = time.monotonic() + 10
    while (found := read_process(left)) is not None and not found.zombie and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found is None or found.zombie
