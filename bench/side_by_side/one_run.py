"""One run of one tool on one rung: a fresh server on one core, the tool's whole process tree on another.

Gives the figures, or raises ToolError with the reason in one line. Leaves no process behind.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.side_by_side import footprint, truth
from bench.side_by_side.burning import free_port
from bench.side_by_side.measured import Task, ToolError
from bench.side_by_side.rungs import TTFT_MS, Rung
from bench.side_by_side.toolbox import Tool
from server.metronome.truth import load_truth
from server.simulator.tokenizer import folder as tokenizer_folder

ROOT = Path(__file__).parents[2]
MODEL = "metronome"
SERVER_CPU, CLIENT_CPU = 0, 1
# Where there are but two cores, the sampler shares the client's: the server's is never idle, and if it were late all
# its streams would be late together, a burst that no client would get otherwise.
SAMPLER_CPU = min(os.sched_getaffinity(0) - {SERVER_CPU, CLIENT_CPU}, default=CLIENT_CPU)
_START_S = 60.0
"""How long a tool may take beside its load: start, warm-up, report."""
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "DO_NOT_TRACK": "1"}


def measure(tool: Tool, rung: Rung, *, keep: Path | None = None) -> dict[str, Any]:
    """The figures of one run (see `truth.compare`), and what it cost. `keep`: where the tool's files are left."""
    folder = Path(tempfile.mkdtemp(prefix="side-by-side-"))
    try:
        return _measure(tool, rung, folder)
    finally:
        if keep is not None:
            shutil.copytree(folder, keep, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def _measure(tool: Tool, rung: Rung, folder: Path) -> dict[str, Any]:
    log, samples_file, own = folder / "truth.bin", folder / "footprint.jsonl", folder / "tool"
    own.mkdir()
    with _server(rung, log) as base_url:
        wall_minus_monotonic_ns = time.time_ns() - time.monotonic_ns()
        task = Task(base_url, MODEL, tokenizer_folder(), own, free_port(), wall_minus_monotonic_ns)
        command = tool.command(rung, task)
        begun_ns = time.monotonic_ns()
        cpu_s, ended_ns = _run_tool(
            command,
            folder,
            samples_file,
            good_codes=tool.good_codes,
            timeout_s=_START_S + 4 * (rung.load_s + rung.request_s),
        )
    try:
        measured = tool.read(rung, task)
    except (OSError, KeyError, ValueError, IndexError) as error:
        raise ToolError(f"its result cannot be read: {error!r}; it said: {last_line(folder / 'output.txt')}") from None
    log_of_server = load_truth(log)
    server = truth.served(log_of_server)
    figures = truth.compare(measured, server, rung)
    window_ns = figures.pop("window_ns")
    samples = footprint.read_samples(samples_file)
    used = [{"t_ns": begun_ns, "cpu_ns": 0}, *samples, {"t_ns": ended_ns, "cpu_ns": round(cpu_s * 1e9)}]
    window_cpu_s = footprint.cpu_s(used, *window_ns)
    sends = len(log_of_server.sends_ns)
    return figures | {
        "cpu_us_per_token": window_cpu_s / figures["tokens"] * 1e6 if window_cpu_s and figures["tokens"] else None,
        "cpu_us_per_token_whole": cpu_s / sends * 1e6,
        "peak_pss_mb": footprint.peak_mb(samples, "pss_mb"),
        "largest_process_pss_mb": footprint.peak_mb(samples, "largest_pss_mb"),
        "peak_rss_mb": footprint.peak_mb(samples, "rss_mb"),
        "first_request_s": (int(log_of_server.arrived_ns.min()) - begun_ns) / 1e9,
        "wall_s": (ended_ns - begun_ns) / 1e9,
        "server_late_p99_ms": float(np.percentile(log_of_server.lateness_ns(), 99)) / 1e6,
    }


@contextlib.contextmanager
def _server(rung: Rung, log: Path) -> Iterator[str]:
    """A metronome on its own core; gives its URL, and ends it in order so that its log is whole."""
    command = [sys.executable, "-m", "server.metronome", "--ttft-ms", f"{TTFT_MS:g}", "--itl-ms", f"{rung.itl_ms:g}"]
    command += ["--truth", str(log), "--cpu", str(SERVER_CPU), "--served-model-name", MODEL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        try:
            said = server.stdout.readline().split()
            if not said:
                raise ToolError("the server did not start")
            yield said[-1]
        finally:
            server.terminate()


def _run_tool(
    command: list[str], folder: Path, samples_file: Path, *, good_codes: tuple[int, ...], timeout_s: float
) -> tuple[float, int]:
    """Runs the tool on its core; gives the processor time of its whole tree, and when it ended. Raises ToolError."""
    output = folder / "output.txt"
    environment = os.environ | _OFFLINE
    with output.open("w") as out:
        process = subprocess.Popen(
            ["taskset", "--cpu-list", str(CLIENT_CPU), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
            preexec_fn=_many_descriptors,
        )
    sampler = subprocess.Popen(
        [sys.executable, "-m", "bench.side_by_side.footprint", str(process.pid), str(samples_file), str(SAMPLER_CPU)],
        cwd=ROOT,
    )
    try:
        code, used = _wait(process, timeout_s)
        ended_ns = time.monotonic_ns()
    finally:
        _end_leftovers(samples_file)
        try:
            sampler.wait(timeout=5)
        except subprocess.TimeoutExpired:
            sampler.kill()
            sampler.wait()
    if code is None:
        raise ToolError(f"it had not ended after {timeout_s:.0f} s; it said: {last_line(output)}")
    if code not in good_codes:
        raise ToolError(f"exit code {code}; it said: {last_line(output)}")
    return used.ru_utime + used.ru_stime, ended_ns


def _many_descriptors() -> None:
    """Every tool gets the descriptors that it may have, so that none fails for want of a `ulimit -n`."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[int | None, resource.struct_rusage]:
    """(exit code, or None where it had to be killed; what it and all it waited for have used)."""
    deadline, killed = time.monotonic() + timeout_s, False
    while True:
        pid, status, used = os.wait4(process.pid, 0 if killed else os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return (None if killed else process.returncode), used
        if time.monotonic() > deadline:
            process.kill()
            killed = True
        time.sleep(0.02)


def _end_leftovers(samples_file: Path) -> None:
    """Kills what the tool has left behind: processes that were seen in its tree and live still."""
    seen: set[tuple[int, int]] = set()
    with contextlib.suppress(OSError, ValueError):
        for sample in footprint.read_samples(samples_file):
            seen.update((pid, started) for pid, started in sample["members"])
    time.sleep(0.3)
    for pid, started in seen:
        found = footprint.read_process(pid)
        if found is not None and found.started == started and not found.zombie:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def last_line(output: Path) -> str:
    """The last line with words in what a tool has printed, or `nothing`."""
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines()]
    return next((line[:200] for line in reversed(lines) if any(map(str.isalpha, line))), "nothing")
