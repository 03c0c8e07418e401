"""Starts vLLM's OpenAI-compatible server on one core: takes an environment, gives a base URL, leaves no process.

Never reaches a network: the model is a local folder, and vLLM's usage reports are off.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.live.environment import Environment, log_tail

MODEL = "smollm2"
MAX_NUM_SEQS = 4
MAX_MODEL_LEN = 2048
READY_TIMEOUT_S = 300
STOP_TIMEOUT_S = 30

ARGUMENTS = (
    *("--served-model-name", MODEL),
    *("--dtype", "bfloat16"),
    *("--max-model-len", str(MAX_MODEL_LEN)),
    *("--max-num-seqs", str(MAX_NUM_SEQS)),
    # The CPU build's default of 128 tokens would hide repeated prompts of that length from the prefix cache's counters.
    *("--block-size", "32"),
    # Without compilation it is ready three times sooner; what is tested here does not depend on its speed.
    "--enforce-eager",
)


DIE_WITH_PARENT = (
    *(sys.executable, "-c"),
    f"import os, sys; from server.parent import tie_to_parent; tie_to_parent({os.getpid()}); os.execv(sys.argv[1], sys.argv[1:])",
)
"""Before a command: it gets SIGTERM when a killed pytest could not stop it. What follows keeps pid, group and affinity."""


@dataclass(frozen=True, slots=True)
class Vllm:
    """A running vLLM: where it listens, on which core, and what it logs."""

    base_url: str
    core: int
    log: Path
    startup_s: float


def split_cores() -> tuple[int, frozenset[int]]:
    """One core for vLLM, this process's others for the load generator; raises RuntimeError when there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError(
            "The live tests need two cores: vLLM takes a whole one, and a generator on the same core would be measured "
            "in its place.\nhint: run them on a machine, or in a container, with at least two cores"
        )
    return cores[-1], frozenset(cores[:-1])


@contextmanager
def on_cores(cores: frozenset[int]) -> Iterator[None]:
    """Processes started inside are bound to `cores`: children inherit the affinity of the thread that starts them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def running_vllm(environment: Environment, core: int, log: Path, *more: str) -> Iterator[Vllm]:
    """A ready server on a free port, with `more` arguments; raises RuntimeError with its log's end when it dies or is not ready in time."""
    port = free_port()
    command = [*DIE_WITH_PARENT, str(environment.python), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(environment.model_dir), *ARGUMENTS, *more]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    variables = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        # So that nothing depends on how vLLM shares out cores by itself: "auto" also reserves some.
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
    }
    began_ns = time.monotonic_ns()
    with log.open("wb") as out, on_cores(frozenset({core})):
        # Its own group: vLLM is several processes, and all of them have to go.
        process = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, port, log)
        yield Vllm(f"http://127.0.0.1:{port}", core, log, (time.monotonic_ns() - began_ns) / 1e9)
    finally:
        _stop(process)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if (code := process.poll()) is not None:
            raise RuntimeError(
                f"vLLM ended with exit code {code} before it was ready.\nThe end of {log}:\n{log_tail(log)}"
            )
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.25)
    raise RuntimeError(f"vLLM was not ready after {READY_TIMEOUT_S} s.\nThe end of {log}:\n{log_tail(log)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """TERM, a wait, KILL; to the whole group, until no member of it is left."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + STOP_TIMEOUT_S
        try:
            os.killpg(process.pid, signal_number)
            while time.monotonic() < deadline:
                process.poll()  # reaps the leader, which would count as a member for ever
                os.killpg(process.pid, 0)
                time.sleep(0.1)
        except ProcessLookupError:
            return
    raise RuntimeError(f"vLLM's process group {process.pid} outlived SIGKILL")
