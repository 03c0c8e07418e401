"""The server's metrics in virtual time: what a scrape every second would have seen, under vLLM's names."""

import statistics
import time

import numpy as np
import pytest

from loadgen.record import OK
from loadgen.virtual import ServerState, closed_loop, open_loop
from server.simulator.settings import SimulatorSettings

SECOND = 1_000_000_000
SETTINGS = SimulatorSettings(max_num_seqs=4)


def load(settings: SimulatorSettings, concurrency: int, duration_s: int = 20, **changes: int) -> list[ServerState]:
    samples: list[ServerState] = []
    chosen = {"input_tokens": 64, "output_tokens": 32, **changes}
    closed_loop(
        settings, concurrency=concurrency, duration_ns=duration_s * SECOND, start_ns=SECOND, samples=samples, **chosen
    )
    return samples


def test_there_is_a_sample_a_second_from_the_start_to_the_end() -> None:
    samples = load(SETTINGS, 2)
    assert [sample.at_ns for sample in samples] == [SECOND * n for n in range(1, 22)]
    assert set(samples[0].values) == set(samples[-1].values)


def test_running_and_waiting_say_how_the_last_step_left_things() -> None:
    for concurrency, running, waiting in ((2, 2, 0), (4, 4, 0), (10, 4, 6)):
        # The first samples are of a server that is filling.
        samples = load(SETTINGS, concurrency, ramp_ns=SECOND, duration_s=60)[3:]
        seen = [sample.values["vllm:num_requests_running"] for sample in samples]
        # Those that ended with the last step have left, and their users' next ones have not been looked at.
        assert max(seen) == running
        assert statistics.mean(seen) > running - 0.5
        assert {sample.values["vllm:num_requests_waiting"] for sample in samples} == {waiting}
        by_reason = {sample.values['vllm:num_requests_waiting_by_reason{reason="capacity"}'] for sample in samples}
        assert by_reason == {waiting}


def test_counters_agree_with_the_records() -> None:
    samples: list[ServerState] = []
    records = closed_loop(
        SETTINGS, concurrency=3, input_tokens=50, output_tokens=20, duration_ns=20 * SECOND, start_ns=0, samples=samples
    )
    instants = np.concatenate([r.arrivals_ns for r in records])
    for sample in samples[1::5]:
        # A scrape at the very instant of a step's end sees what was before it.
        assert sample.values["vllm:generation_tokens_total"] == (instants < sample.at_ns).sum()
        done = [r for r in records if r.status == OK and r.finished_ns < sample.at_ns]
        assert sample.values['vllm:request_success_total{finished_reason="length"}'] == len(done)
        firsts = [r for r in records if r.first_token_ns is not None and r.first_token_ns < sample.at_ns]
        assert sample.values["vllm:prompt_tokens_total"] == 50 * len(firsts)
        assert sample.values["vllm:time_to_first_token_seconds_count"] == len(firsts)
        ttft_s = sum((r.first_token_ns - r.sent_ns) / SECOND for r in firsts)  # type: ignore[operator]
        assert sample.values["vllm:time_to_first_token_seconds_sum"] == pytest.approx(ttft_s)
        assert sample.values['vllm:time_to_first_token_seconds_bucket{le="+Inf"}'] == len(firsts)


def test_parts_of_a_request_add_up_and_every_step_is_counted_once() -> None:
    values = load(SETTINGS, 8)[-1].values
    parts = sum(values[f"vllm:request_{part}_time_seconds_sum"] for part in ("queue", "prefill", "decode"))
    assert parts == pytest.approx(values["vllm:e2e_request_latency_seconds_sum"])
    itl, firsts = values["vllm:inter_token_latency_seconds_count"], values["vllm:time_to_first_token_seconds_count"]
    assert itl + firsts == values["vllm:generation_tokens_total"]
    assert values["vllm:iteration_tokens_total_sum"] == (
        values["vllm:generation_tokens_total"] + values["vllm:prompt_tokens_total"]
    )


def test_a_small_kv_cache_fills_and_preempts() -> None:
    tight = SimulatorSettings(max_num_seqs=64, num_gpu_blocks_override=65, max_model_len=1024)
    samples = load(tight, 32, input_tokens=64, output_tokens=128, duration_s=30)
    usage = [sample.values["vllm:kv_cache_usage_perc"] for sample in samples[5:]]
    assert statistics.mean(usage) > 0.8 and max(usage) <= 1
    preemptions = [sample.values["vllm:num_preemptions_total"] for sample in samples]
    assert preemptions == sorted(preemptions) and preemptions[-1] > 10
    # Never all 64 places: it is memory, not the scheduler.
    assert max(sample.values["vllm:num_requests_running"] for sample in samples) <= 16
    assert samples[-1].values["vllm:request_num_preemptions_sum"] > 0


def test_preempted_requests_still_have_every_token_and_a_gap_for_each() -> None:
    tight = SimulatorSettings(max_num_seqs=64, num_gpu_blocks_override=65, max_model_len=1024)
    samples: list[ServerState] = []
    records = closed_loop(
        tight,
        concurrency=16,
        input_tokens=64,
        output_tokens=128,
        duration_ns=30 * SECOND,
        start_ns=0,
        samples=samples,
    )
    assert all(r.event_tokens.sum() == 128 for r in records if r.status == OK)
    values = samples[-1].values
    gaps = np.concatenate([np.diff(r.arrivals_ns[r.arrivals_ns < samples[-1].at_ns]) for r in records])
    assert values["vllm:inter_token_latency_seconds_count"] == gaps.size
    assert values["vllm:inter_token_latency_seconds_sum"] == pytest.approx(gaps.sum() / SECOND)


def test_a_shared_prefix_is_found_and_makes_the_first_token_come_sooner() -> None:
    cold, warm = SETTINGS, SETTINGS.model_copy(update={"enable_prefix_caching": True})
    ttfts = []
    for settings in (cold, warm):
        samples = load(settings, 2, input_tokens=512, shared_prefix_tokens=400)
        values = samples[-1].values
        ttfts.append(values["vllm:time_to_first_token_seconds_sum"] / values["vllm:time_to_first_token_seconds_count"])
        share = values["vllm:prefix_cache_hits_total"] / max(1, values["vllm:prefix_cache_queries_total"])
        assert share == pytest.approx(400 / 512 if settings is warm else 0, abs=0.01)
        assert values["vllm:prompt_tokens_cached_total"] == pytest.approx(
            values["vllm:prefix_cache_hits_total"], abs=1024
        )
    assert ttfts[1] < 0.5 * ttfts[0]


def test_several_tokens_come_as_one_event_where_they_are_drafted_or_held_back() -> None:
    for settings, most in (
        (SimulatorSettings(stream_interval=4), 4),
        (SimulatorSettings(num_speculative_tokens=3, speculative_acceptance_rate=0.9), 4),
    ):
        records = closed_loop(settings, concurrency=2, input_tokens=16, output_tokens=30, duration_ns=5 * SECOND)
        done = [r for r in records if r.status == OK]
        assert done
        for record in done:
            assert record.event_tokens.sum() == 30
            assert record.event_tokens[0] == 1 and record.event_tokens.max() == most


def test_drafts_are_counted_under_vllms_names() -> None:
    values = load(SimulatorSettings(num_speculative_tokens=2, speculative_acceptance_rate=0.5), 2)[-1].values
    drafts = values["vllm:spec_decode_num_drafts_total"]
    assert values["vllm:spec_decode_num_draft_tokens_total"] == 2 * drafts
    assert values["vllm:spec_decode_num_accepted_tokens_total"] / drafts == pytest.approx(0.75, rel=0.1)
    assert "vllm:spec_decode_num_drafts_total" not in load(SETTINGS, 1)[-1].values


def test_an_open_loop_has_samples_too_to_its_end() -> None:
    samples: list[ServerState] = []
    open_loop(
        SETTINGS,
        offsets_s=[0.5, 1.0, 1.1],
        input_tokens=64,
        output_tokens=32,
        duration_ns=10 * SECOND,
        start_ns=0,
        samples=samples,
    )
    assert [sample.at_ns // SECOND for sample in samples] == list(range(11))
    assert samples[-1].values['vllm:request_success_total{finished_reason="length"}'] == 3
    assert samples[-1].values["vllm:num_requests_running"] == 0


def test_a_server_with_all_it_can_do_is_still_much_faster_than_real_time() -> None:
    settings = SimulatorSettings(
        simulated_model="llama-3.1-8b",
        gpu="H100",
        max_num_seqs=64,
        enable_prefix_caching=True,
        num_speculative_tokens=1,
        step_noise=0.1,
    )
    began = time.perf_counter()
    records = closed_loop(
        settings,
        concurrency=64,
        input_tokens=256,
        output_tokens=256,
        duration_ns=30 * SECOND,
        shared_prefix_tokens=128,
        samples=[],
    )
    elapsed_s = time.perf_counter() - began
    tokens = sum(int(r.event_tokens.sum()) for r in records)
    assert tokens > 100_000
    assert tokens / elapsed_s > 50_000, "measured 0.5 to 1 million a second on an idle core"
