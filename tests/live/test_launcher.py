"""`loadgen run` starts a real vLLM for each setting, says what it ran with, and leaves no process, whatever happens."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.vllm.launch import Recipe, StartError, start_vllm
from tests.live.environment import Environment
from tests.live.launch import MODEL, split_cores
from tests.live.sweep import LOADGEN

pytestmark = [pytest.mark.live, pytest.mark.timeout(3600)]  # the first test also builds the environment

MAX_NUM_SEQS = (2, 4, 8)
CONCURRENCY = 8
VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
FLAGS = {"dtype": "bfloat16", "max_model_len": 2048, "block_size": 32, "enforce_eager": True}


@pytest.fixture
def python(environment: Environment, tmp_path: Path) -> str:
    """The environment's python, bound to the core that vLLM has to itself."""
    core, _ = split_cores()
    program = tmp_path / "python-on-one-core"
    program.write_text(f'#!/bin/sh\nexec taskset -c {core} {environment.python} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


@pytest.fixture(autouse=True)
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A variable that every process of this test inherits; none may be left."""
    mark = f"LAUNCHER_TEST={os.getpid()}-{tmp_path.name}"
    monkeypatch.setenv(*mark.split("="))
    yield mark
    deadline = time.monotonic() + 30
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")


def marked(mark: str) -> list[int]:
    """Processes that inherited the mark, under whatever title vLLM gives them; without this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            inherited = mark.encode() in (entry / "environ").read_bytes().split(b"\0")
            if inherited and (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def scenario(folder: Path, environment: Environment, python: str, **load: Any) -> Path:
    core, _ = split_cores()
    path = folder / "vllm.json"
    server = {**FLAGS, "model": str(environment.model_dir), "python": python, "max_num_seqs": list(MAX_NUM_SEQS)}
    path.write_text(
        json.dumps(
            {
                "target": {"server": "vllm", "model": MODEL},
                "workload": {"input_tokens": 64, "output_tokens": 16},
                "load": {"concurrency": CONCURRENCY, "warmup": "4s", "duration": "20s", **load},
                "server": {**server, "env": {**VARIABLES, "VLLM_CPU_OMP_THREADS_BIND": str(core)}},
                "metrics": {"port": "off"},
            }
        )
    )
    return path


def test_a_sweep_of_max_num_seqs_restarts_vllm_and_measures_each_setting(
    environment: Environment, python: str, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [str(LOADGEN), "run", str(scenario(tmp_path, environment, python)), "-o", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    levels = json.loads((tmp_path / "run/summary.json").read_text())["levels"]
    assert [level["server"] for level in levels] == [{"max_num_seqs": n} for n in MAX_NUM_SEQS]
    for level, asked in zip(levels, MAX_NUM_SEQS, strict=True):
        effective = level["effective"]
        assert (effective["max_num_seqs"], effective["max_model_len"], effective["dtype"]) == (asked, 2048, "bfloat16")
        assert (effective["enforce_eager"], effective["cuda_graphs"]) == (True, "NONE")
        assert (effective["block_size"], effective["quantization"]) == (32, None)
        assert effective["kv_cache_tokens"] == effective["kv_cache_blocks"] * 32
        assert effective["kv_cache_bytes"] == 1 << 30
        assert effective["max_concurrency"] == pytest.approx(effective["kv_cache_tokens"] / 2048, rel=0.01)
        assert (effective["model_files"]["parameters"], effective["model_files"]["quantized"]) == (134515008, False)
        assert effective["served_models"] == [MODEL]
        # Bytes of the cache by its blocks: two vectors of 3 heads of 64 in 30 layers, 2 bytes each.
        assert effective["kv_cache_tokens"] * 2 * 3 * 64 * 30 * 2 == pytest.approx(1 << 30, rel=0.01)
    # More sequences at once: more tokens a second, and less time in the queue.
    throughput = [level["output_throughput"] for level in levels]
    ttft = [level["p50_ttft_ms"] for level in levels]
    assert throughput == sorted(throughput)
    assert ttft == sorted(ttft, reverse=True)
    log = (tmp_path / "run/server.log").read_text()
    assert log.count("-m vllm.entrypoints.openai.api_server --model") == len(
        MAX_NUM_SEQS
    )  # `vllm serve` does not work there


def test_vllm_ends_with_a_run_that_is_killed(environment: Environment, python: str, tmp_path: Path, mark: str) -> None:
    path = scenario(tmp_path, environment, python, duration="300s")
    process = subprocess.Popen([str(LOADGEN), "run", str(path), "-o", str(tmp_path / "run")], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 400
    while not (tmp_path / "run/records/journal.jsonl").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.2)
    before = marked(mark)
    assert sum("VLLM" in title(pid) or "vllm" in title(pid) for pid in before) >= 3  # API server, engine, worker
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"max_num_sequences": 4}, "unknown_flag", "--max-num-sequences"),
        ({"dtype": "int4"}, "wrong_dtype", "int4"),
        ({"model": "/nowhere/at-all"}, "model_not_found", "/nowhere/at-all"),
        ({"max_model_len": 99999}, "max_model_len", "made for 8192"),
        ({"max_num_batched_tokens": 2, "max_num_seqs": 4}, "max_num_seqs", "less than max_num_seqs, 4"),
        ({"kv_cache_memory_bytes": 10_000_000}, "kv_cache_too_small", "max_model_len 2048"),
    ],
)
def test_what_a_real_vllm_says_of_a_start_that_fails_is_understood(
    environment: Environment, python: str, tmp_path: Path, settings: dict[str, Any], kind: str, text: str
) -> None:
    core, _ = split_cores()
    env = {**VARIABLES, "VLLM_CPU_OMP_THREADS_BIND": str(core)}
    if kind == "kv_cache_too_small":
        del env["VLLM_CPU_KVCACHE_SPACE"]  # it goes before the flag
    recipe = Recipe(python=python, env=env, served_model_name=MODEL)
    asked = {**FLAGS, "model": str(environment.model_dir), **settings}
    with pytest.raises(StartError) as caught:
        start_vllm(recipe, asked, log=tmp_path / "server.log", port=0, timeout_s=300, pause=time.sleep).stop()
    assert (caught.value.kind, text in str(caught.value)) == (kind, True), f"{caught.value}\n{caught.value.log_tail}"
