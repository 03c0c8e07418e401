"""One step of the ladder: a metronome on its core, `loadgen run` with one worker on another; gives run and truth.

It is the product as people run it: the same command, worker process, recording, spool and judgement.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from loadgen.calibrate.comparison import Figures, compare
from loadgen.calibrate.cores import Cores, move
from loadgen.errors import LoadgenError
from loadgen.host import die_with_parent_option
from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from server.metronome.truth import load_truth
from server.process import NotReadyError, ServerProcess

_READY = "metronome listening on "
_READY_S = 20.0
_LOOK_S = 0.2
_INTERRUPT_S = 5.0
INPUT_TOKENS = 64
ENOUGH_REQUESTS = 24
FEWEST_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is the same in every step."""

    ttft_ms: float
    rate: float
    """Tokens per second of each stream."""
    output_tokens: int
    """Of each answer, but see `for_streams`."""
    window_s: float
    cores: Cores

    @property
    def itl_ms(self) -> float:
        return 1e3 / self.rate

    @property
    def request_s(self) -> float:
        """How long one answer takes."""
        return (self.ttft_ms + (self.output_tokens - 1) * self.itl_ms) / 1e3

    @property
    def ramp_s(self) -> float:
        """First requests are sent in its second half: over the time of one answer, so the streams stay out of step."""
        return 2 * self.request_s

    @property
    def warmup_s(self) -> float:
        return self.ramp_s + 0.5

    def for_streams(self, streams: int) -> Conditions:
        """With answers so short that few streams give enough requests to speak of a percentile."""
        longest_s = self.window_s * streams / ENOUGH_REQUESTS
        tokens = 1 + int((longest_s * 1e3 - self.ttft_ms) / self.itl_ms)
        return dataclasses.replace(self, output_tokens=min(self.output_tokens, max(FEWEST_TOKENS, tokens)))

    def step_s(self) -> float:
        """About how long a step takes: start, warm-up, window, drain, judgement."""
        return 4 + self.warmup_s + self.window_s + self.request_s


def run_step(streams: int, conditions: Conditions, folder: Path) -> Figures:
    """Measures one load. `folder` is made: `run/` is the run folder, `truth.bin` the metronome's log.

    Raises LoadgenError when it could not be measured; KeyboardInterrupt ends the run first.
    """
    conditions = conditions.for_streams(streams)
    folder.mkdir(parents=True)
    server = _start_metronome(conditions, folder)
    try:
        base_url = server.await_line(_READY, _READY_S)
        worker = _run(streams, base_url, conditions, folder)
    except NotReadyError as error:
        raise LoadgenError(f"The metronome did not start: {error}") from None
    finally:
        server.stop()
    run = RunFolder.open(folder / "run")
    level = orjson.loads((run.levels / "0.json").read_bytes())
    (data,) = RunReader(run).all()
    nonce = run.nonce()
    assert nonce is not None, "every run writes its own"
    figures = compare(level, data.plan, data.records, load_truth(folder / "truth.bin"), nonce)
    return {
        **figures,
        "output_tokens": conditions.output_tokens,
        "worker_peak_rss_mb": worker.peak_rss_mb,
        "worker_waited_share": worker.waited_share,
    }


def _start_metronome(conditions: Conditions, folder: Path) -> ServerProcess:
    command = [sys.executable, "-m", "server.metronome", "--port", "0", *die_with_parent_option()]
    command += ["--ttft-ms", str(conditions.ttft_ms), "--itl-ms", repr(conditions.itl_ms)]
    command += ["--truth", str(folder / "truth.bin")]
    if conditions.cores.server is not None:
        command += ["--cpu", str(conditions.cores.server)]
    return ServerProcess(command, folder / "server.log")


def _run(streams: int, base_url: str, conditions: Conditions, folder: Path) -> _Worker:
    """`loadgen run` against the metronome, to its end."""
    core = conditions.cores.worker
    command = [sys.executable, "-m", "loadgen.calibrate.launch", str(os.getpid()), "any" if core is None else str(core)]
    command += ["-m", "loadgen", "run", "--base-url", base_url, "-o", str(folder / "run")]
    command += ["--workers", "1", "--metrics-port", "off", "--name", "calibrate", "--seed", "1"]
    command += ["--concurrency", str(streams), "--input-tokens", str(INPUT_TOKENS)]
    command += ["--output-tokens", str(conditions.output_tokens), "--endpoint", "chat"]
    command += ["--ramp", f"{conditions.ramp_s}s", "--warmup", f"{conditions.warmup_s}s"]
    command += ["--duration", f"{conditions.window_s}s"]
    # Settings of the user's own runs are not meant for this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOADGEN_")}
    log = folder / "run.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches this program alone, which ends the run in order
        )
    try:
        worker = _watch(process, conditions.cores)
    except BaseException:
        _interrupt(process)
        raise
    if process.returncode not in (0, 3):  # 3: measured, and not valid: that is what is to be found out
        tail = log.read_text("utf-8", "replace").strip().splitlines()[-6:]
        raise LoadgenError(
            f"The run with {streams} streams ended with exit code {process.returncode}:\n" + "\n".join(tail),
            hint="the first lines say what to change; --streams takes smaller loads",
        )
    return worker


@dataclass(slots=True)
class _Worker:
    """What the system says of the worker's process; the last look counts."""

    pid: int = 0
    since_s: float = 0.0
    peak_rss_mb: float | None = None
    waited_share: float | None = None
    """Time in which its threads were ready and somebody else had their core, over the time since it was found."""

    def look(self) -> None:
        with contextlib.suppress(OSError):  # it may have ended
            status = Path(f"/proc/{self.pid}/status").read_text()
            peak_kb = next((line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")), None)
            threads = list(Path(f"/proc/{self.pid}/task").iterdir())
            waited_ns = sum(int((thread / "schedstat").read_text().split()[1]) for thread in threads)
            if peak_kb is not None:
                self.peak_rss_mb = int(peak_kb) / 1024
                self.waited_share = waited_ns / 1e9 / (time.monotonic() - self.since_s)


def _watch(process: subprocess.Popen[bytes], cores: Cores) -> _Worker:
    """Waits for the run's end; meanwhile looks at its worker, and moves the controller off the worker's core."""
    worker = _Worker()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)
            return worker
        if worker.pid:
            worker.look()
            continue
        worker.pid = next((pid for pid in _children(process.pid) if b"worker" in _arguments(pid)), 0)
        if worker.pid:
            worker.since_s = time.monotonic()
            if cores.others:
                move(process.pid, cores.others)  # the worker has inherited its core and keeps it


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Ends the run: the first signal begins its drain, the second ends that."""
    for _ in range(2):
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_INTERRUPT_S)
            return
    process.kill()
    process.wait()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def _arguments(pid: int) -> Sequence[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return ()
