"""Runs `loadgen run` as its user would and samples vLLM's and its own /metrics meanwhile.

Takes a server, gives what was seen, judges nothing but the exit code: the checks are in test_vllm.py.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from loadgen.record import OK, LevelPlan, RequestRecord
from loadgen.spool import read_records
from tests.live.launch import Vllm, free_port, on_cores, split_cores
from tests.live.scrape import Sampler, Scrape, scrape

LOADGEN = Path(sys.executable).with_name("loadgen")
CONCURRENCY = (1, 2, 4, 8)
INPUT_TOKENS = 128
OUTPUT_TOKENS = 32
WARMUP_S = 3
DURATION_S = 30
PROBE_OUTPUT_TOKENS = 4
"""`loadgen run` sends one such request, with a prompt of the wanted length, before the first level; it has no record."""
RUN_TIMEOUT_S = 600
IDLE_TIMEOUT_S = 30


@dataclass(frozen=True)
class Sweep:
    """A finished run and what both metrics endpoints said; `before` and `after` are of an idle vLLM."""

    folder: Path
    output: str
    """What the command wrote on standard output."""
    before: Scrape
    after: Scrape
    vllm_samples: Sequence[Scrape]
    loadgen_samples: Sequence[Scrape]

    @cached_property
    def plans(self) -> list[LevelPlan]:
        """One a level; the workers are on this machine, so their instants are of the same clock."""
        lines = (self.folder / "records" / "journal.jsonl").read_text().splitlines()
        by_level = {plan["level"]: LevelPlan(**plan) for plan in (json.loads(line)["plan"] for line in lines)}
        return [plan for _, plan in sorted(by_level.items())]

    @cached_property
    def records(self) -> list[RequestRecord]:
        """Every request of the run, read from the spools: not what the controller made of them."""
        spools = sorted((self.folder / "records").glob("*.spool"))
        return [record for spool in spools for record in read_records(spool)]

    @cached_property
    def summary(self) -> list[dict[str, Any]]:
        """The level objects of summary.json."""
        return list(json.loads((self.folder / "summary.json").read_text())["levels"])

    @property
    def finished(self) -> list[RequestRecord]:
        return [record for record in self.records if record.status == OK]

    @property
    def unfinished(self) -> list[RequestRecord]:
        return [record for record in self.records if record.status != OK]

    def rise(self, counter: str, **labels: str) -> float:
        """By how much a counter of vLLM rose over the whole run."""
        return self.after.value(counter, **labels) - self.before.value(counter, **labels)


def run_sweep(vllm: Vllm, folder: Path) -> Sweep:
    """Raises RuntimeError with the command's output when it does not exit with 0."""
    run_folder, metrics_port = folder / "run", free_port()
    command = [
        *(str(LOADGEN), "run"),
        *("--base-url", vllm.base_url),
        *("--concurrency", ",".join(map(str, CONCURRENCY))),
        *("--input-tokens", str(INPUT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS)),
        *("--warmup", f"{WARMUP_S}s", "--duration", f"{DURATION_S}s"),
        *("--metrics-port", str(metrics_port)),
        *("-o", str(run_folder)),
    ]
    _, generator_cores = split_cores()
    before = scrape_idle(vllm)
    with (
        Sampler(f"{vllm.base_url}/metrics") as of_vllm,
        Sampler(f"http://127.0.0.1:{metrics_port}/metrics") as of_loadgen,
    ):
        code, output, errors = _run(command, folder, generator_cores)
    if code != 0:
        raise RuntimeError(f"{' '.join(command)}\nended with exit code {code}:\n{output}\n{errors}")
    return Sweep(run_folder, output, before, scrape_idle(vllm), of_vllm.samples, of_loadgen.samples)


def scrape_idle(vllm: Vllm) -> Scrape:
    """vLLM's metrics when it has nothing left to do: only then do its counters stand still.

    It takes an abandoned request for running until it has noticed that its client has gone.
    """
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    while time.monotonic() < deadline:
        now = scrape(f"{vllm.base_url}/metrics")
        if now.value("vllm:num_requests_running") + now.value("vllm:num_requests_waiting") == 0:
            return now
        time.sleep(0.2)
    raise RuntimeError(
        f"vLLM still had requests {IDLE_TIMEOUT_S} s after the last client had gone; its log: {vllm.log}"
    )


def _run(command: list[str], folder: Path, cores: frozenset[int]) -> tuple[int, str, str]:
    output, errors = folder / "stdout.txt", folder / "stderr.txt"
    with output.open("wb") as out, errors.open("wb") as err, on_cores(cores):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
    try:
        code = process.wait(RUN_TIMEOUT_S)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return code, output.read_text(errors="replace"), errors.read_text(errors="replace")
