"""The simulator's engine in virtual time with limits that were built into it: each is found, by its own metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from loadgen.record import LevelPlan
from loadgen.stats.classes import RequestKind
from loadgen.stats.level import level_object
from loadgen.stats.limit import with_limits
from loadgen.virtual import ServerState, closed_loop
from server.simulator.settings import SimulatorSettings
from tests.level_records import health
from tests.server_samples import of_states

S = 1_000_000_000


def sweep(
    settings: SimulatorSettings,
    concurrency: Sequence[int],
    *,
    input_tokens: int = 64,
    output_tokens: int = 32,
    shared_prefix_tokens: int = 0,
    intended: int | None = None,
    window_s: int = 8,
) -> list[dict[str, Any]]:
    """The levels, with limits. `intended`: tokens that the workload says are shared, by default those that are."""
    kinds = [RequestKind("all", 1.0, shared_prefix_tokens if intended is None else intended)]
    levels = []
    for number, users in enumerate(concurrency):
        states: list[ServerState] = []
        records = closed_loop(
            settings,
            concurrency=users,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            duration_ns=(window_s + 15) * S,
            level=number,
            start_ns=0,
            ramp_ns=S,
            shared_prefix_tokens=shared_prefix_tokens,
            samples=states,
        )
        plan = LevelPlan(
            number,
            users,
            3 * S,
            (3 + window_s) * S,
            drained_ns=(window_s + 13) * S,
            server={"max_num_seqs": settings.max_num_seqs},
        )
        server = of_states(states)
        levels.append(level_object(plan, records, [health(level=number)], kinds=kinds, server=server))
    return with_limits(levels)


def kinds(levels: Sequence[dict[str, Any]]) -> list[str]:
    return [level["limit"]["kind"] for level in levels]


def test_the_engines_counters_agree_with_the_records_and_fire_no_rule() -> None:
    for level in sweep(SimulatorSettings(max_num_seqs=8), (3, 16)):
        found = level["server_metrics"]["reconciliation"]
        for name in ("first_tokens", "finished_requests", "output_tokens", "prompt_tokens"):
            assert found[name]["difference"] == 0, name
        assert found["ttft"]["difference_ms"] == pytest.approx(0, abs=1e-6)
        assert found["e2el"]["difference_ms"] == pytest.approx(0, abs=1e-6)
        assert level["valid"]
        assert not {one["rule"] for one in level["warnings"]} - {"coalesced"}


def test_the_exact_percentile_lies_in_the_range_that_the_servers_histogram_gives() -> None:
    (level,) = sweep(SimulatorSettings(max_num_seqs=8), (16,))
    latencies = level["server_metrics"]["latencies"]
    for name in ("ttft", "itl", "tpot", "e2el"):
        for percent in (50, 95):
            low, high = (latencies[name][f"p{percent}_{end}_ms"] for end in ("low", "high"))
            # The server's are of the requests that got so far in the window, ours of those sent in it.
            assert low * 0.999 <= level[f"p{percent}_{name}_ms"] <= high * 1.001, (name, percent)


def test_max_num_seqs_is_found_as_the_schedulers_limit() -> None:
    levels = sweep(SimulatorSettings(max_num_seqs=8), (2, 8, 32))
    assert kinds(levels)[0] == "none"
    assert kinds(levels)[2] == "scheduler"
    assert levels[2]["limit"]["evidence"]["mean_running"] == pytest.approx(8, abs=0.2)


def test_a_small_cache_is_found_as_the_limit_with_its_preemptions() -> None:
    # 48 blocks of 16 hold eight sequences of 96 tokens, and 32 may run.
    settings = SimulatorSettings(max_num_seqs=32, max_model_len=256, num_gpu_blocks_override=48)
    levels = sweep(settings, (2, 32))
    assert kinds(levels)[1] == "kv_cache"
    server = levels[1]["server_metrics"]
    assert server["max_kv_usage"] > 0.9
    assert server["mean_running"] < 16
    assert "KV cache" in levels[1]["limit"]["text"]


def test_longer_steps_are_found_as_the_limit_of_compute() -> None:
    assert kinds(sweep(SimulatorSettings(max_num_seqs=256), (8, 64, 128)))[1:] == ["compute", "compute"]


def test_prompts_that_take_the_steps_are_found_as_the_limit() -> None:
    settings = SimulatorSettings(max_num_seqs=64, max_num_batched_tokens=256)
    levels = sweep(settings, (1, 4, 16), input_tokens=800, output_tokens=8, window_s=20)
    assert kinds(levels)[1:] == ["prefill", "prefill"]


def test_hits_of_the_prefix_cache_stand_beside_the_share_that_was_meant() -> None:
    settings = SimulatorSettings(max_num_seqs=8, enable_prefix_caching=True)
    (meant,) = sweep(settings, (4,), input_tokens=96, shared_prefix_tokens=64)
    assert meant["intended_prefix_share"] == pytest.approx(64 / 96)
    assert meant["server_metrics"]["prefix_cache_hit_share"] == pytest.approx(64 / 96, abs=0.02)
    assert "prefix_cache_did_the_work" not in {one["rule"] for one in meant["warnings"]}
    (surprise,) = sweep(settings, (4,), input_tokens=96, shared_prefix_tokens=64, intended=0)
    assert "prefix_cache_did_the_work" in {one["rule"] for one in surprise["warnings"]}
    (distinct,) = sweep(settings, (4,), input_tokens=96)
    assert distinct["server_metrics"]["prefix_cache_hit_share"] == 0
