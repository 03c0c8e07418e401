"""The simulator's scheduler against vLLM's own, step by step: who runs, who waits, who gives way, what the caches hold."""

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from server.simulator.engine import Engine, Request
from server.simulator.kv_cache import block_hashes
from server.simulator.metrics import EngineMetrics
from server.simulator.settings import SimulatorSettings
from tests.live.environment import Environment

SCRIPT = Path(__file__).with_name("vllm_scheduler.py")
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

Arrivals = list[tuple[int, int, list[int], int]]
"""(step, id, prompt token ids, output tokens)."""

CASES: dict[str, dict[str, Any]] = {
    "places": {"max_num_seqs": 4},
    "chunks": {"max_num_seqs": 16, "max_num_batched_tokens": 64},
    "whole prompts": {"enable_chunked_prefill": False, "max_num_batched_tokens": 512},
    "memory": {"max_num_seqs": 32, "num_gpu_blocks_override": 50},
    "memory and chunks": {"max_num_seqs": 32, "num_gpu_blocks_override": 40, "max_num_batched_tokens": 96},
    "prefixes": {"max_num_seqs": 8, "enable_prefix_caching": True},
    "prefixes and little memory": {
        "max_num_seqs": 32,
        "enable_prefix_caching": True,
        "num_gpu_blocks_override": 50,
        "max_num_batched_tokens": 128,
    },
}


def settings(case: str) -> SimulatorSettings:
    return SimulatorSettings.model_validate({"max_model_len": 512, "max_num_batched_tokens": 512, **CASES[case]})


def arrivals(case: str) -> Arrivals:
    """A burst, then some at a time; prompts of which many begin alike."""
    draw = random.Random(case)
    prefixes = [[draw.randrange(900) for _ in range(draw.randrange(20, 200))] for _ in range(3)]
    found: Arrivals = []
    for number in range(60):
        step = 0 if number < 20 else draw.randrange(250)
        own = [draw.randrange(900) for _ in range(draw.randrange(1, 150))]
        prompt = (draw.choice(prefixes) + own) if draw.random() < 0.6 else own
        found.append((step, number, prompt, draw.randrange(1, 150)))
    return sorted(found)


def asked(environment: Environment, case: str) -> dict[str, Any]:
    chosen = settings(case)
    names = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "enable_prefix_caching")
    return {
        "model": str(environment.model_dir),
        "settings": {
            **{name: getattr(chosen, name) for name in (*names, "enable_chunked_prefill")},
            "num_gpu_blocks": chosen.num_gpu_blocks,
        },
        "arrivals": arrivals(case),
    }


@pytest.fixture(scope="module")
def of_vllm(environment: Environment) -> dict[str, list[dict[str, Any]]]:
    """What vLLM's scheduler does, by case; one process for all, since its imports take longest."""
    ended = subprocess.run(
        [str(environment.python), "-P", str(SCRIPT)],
        input=json.dumps([asked(environment, case) for case in CASES]),
        env=os.environ | QUIET,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    steps = json.loads(ended.stdout[ended.stdout.index("[[{") :])
    return dict(zip(CASES, steps, strict=True))


def of_simulator(case: str) -> list[dict[str, Any]]:
    """What the simulator's engine does with the same arrivals, in the same form."""
    chosen = settings(case)
    engine = Engine(chosen)
    metrics = EngineMetrics(chosen, engine)
    coming = arrivals(case)
    steps: list[dict[str, Any]] = []
    requests: dict[int, Request] = {}
    before = (0, 0)
    while True:
        while coming and coming[0][0] <= len(steps):
            _, number, prompt, output_tokens = coming.pop(0)
            reply = [1000 + number] * output_tokens
            requests[number] = Request(number, len(prompt), output_tokens, block_hashes(prompt + reply, 16))
            engine.add(requests[number])
        step = engine.step()
        if step is None:
            if not coming:
                return steps
            steps.append({})
            continue
        metrics.began(step, 0)
        metrics.ended(step, 0, [(request, "length") for request, _, last in step.emissions if last], planned_ns=0)
        values = metrics.values()
        counts = (engine.counts.prefix_queries, engine.counts.prefix_hits)
        steps.append(
            {
                "tokens": step.prefill_tokens + step.decoding,
                "preempted": sorted(request.id for request in step.preempted),
                "finished": sorted(request.id for request, _, last in step.emissions if last),
                "running": values["vllm:num_requests_running"],
                "waiting": values["vllm:num_requests_waiting"],
                "kv_usage": values["vllm:kv_cache_usage_perc"],
                "prefix_queries": counts[0] - before[0],
                "prefix_hits": counts[1] - before[1],
            }
        )
        before = counts


@pytest.mark.parametrize("case", CASES)
def test_every_step_is_that_of_vllms_scheduler(of_vllm: dict[str, list[dict[str, Any]]], case: str) -> None:
    theirs, ours = of_vllm[case], of_simulator(case)
    preempted = hits = 0
    for number, (their, our) in enumerate(zip(theirs, ours, strict=False)):
        if not our:
            assert not their["scheduled"], number
            continue
        assert sum(their["scheduled"].values()) == our["tokens"], number
        for name in ("preempted", "finished", "running", "waiting", "prefix_queries", "prefix_hits"):
            assert their[name] == our[name], (number, name)
        assert their["kv_usage"] == pytest.approx(our["kv_usage"]), number
        preempted += len(their["preempted"])
        hits += their["prefix_hits"]
    assert len(theirs) == len(ours) > 250
    # The cases are what they are called.
    assert (preempted > 3) is ("memory" in case)
    assert (hits > 500) is ("prefixes" in case)
