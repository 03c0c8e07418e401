"""What the simulator's settings imply, worked out, is what its engine does in virtual time; and by hand in the plain case."""

import numpy as np
import pytest

from loadgen.record import OK, RequestRecord
from loadgen.virtual import closed_loop
from server.simulator.capacity import LoadShape, SteadyState, capacity, running_limit, steady_state
from server.simulator.settings import SimulatorSettings

SECOND = 1_000_000_000


def settled(
    settings: SimulatorSettings, load: LoadShape, concurrency: int, planned: SteadyState, duration_s: float
) -> tuple[float, float, float]:
    """Output tokens per second, mean TTFT and mean TPOT in seconds of the last part of a closed loop."""
    records = closed_loop(
        settings,
        concurrency=concurrency,
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        shared_prefix_tokens=load.shared_prefix_tokens,
        duration_ns=round(duration_s * SECOND),
        start_ns=0,
        # Evenly out of step, as the formula takes them to be.
        ramp_ns=round(min(duration_s / 3, planned.e2el_s) * SECOND),
    )
    from_ns, to_ns = round(0.4 * duration_s * SECOND), round(duration_s * SECOND)
    instants = np.concatenate([np.repeat(r.arrivals_ns, r.event_tokens) for r in records])
    rate = ((instants >= from_ns) & (instants < to_ns)).sum() / ((to_ns - from_ns) / SECOND)
    done = [r for r in records if r.status == OK and (r.sent_ns or 0) >= from_ns]
    return float(rate), float(np.mean([ttft_s(r) for r in done])), float(np.mean([tpot_s(r) for r in done]))


def ttft_s(record: RequestRecord) -> float:
    assert record.first_token_ns is not None and record.sent_ns is not None
    return (record.first_token_ns - record.sent_ns) / SECOND


def tpot_s(record: RequestRecord) -> float:
    assert record.last_token_ns is not None and record.first_token_ns is not None and record.output_tokens is not None
    return (record.last_token_ns - record.first_token_ns) / SECOND / (record.output_tokens - 1)


SHORT = LoadShape(128, 64)
CASES = {
    "linear": (SimulatorSettings(), SHORT, (1, 2, 8, 16, 32), 60),
    "one prompt is many steps": (
        SimulatorSettings(max_num_seqs=64, max_num_batched_tokens=256),
        LoadShape(1000, 16),
        (16, 64),
        60,
    ),
    "roofline": (
        SimulatorSettings(simulated_model="llama-3.1-8b", gpu="H100", max_num_seqs=64, max_num_batched_tokens=4096),
        LoadShape(512, 128),
        (1, 8, 64, 128),
        20,
    ),
    "drafts": (SimulatorSettings(num_speculative_tokens=3), SHORT, (1, 8, 16, 32), 60),
    "prefix cache": (
        SimulatorSettings(enable_prefix_caching=True),
        LoadShape(1024, 64, shared_prefix_tokens=1000),
        (1, 8, 16, 32),
        60,
    ),
    "whole prompts": (
        SimulatorSettings(enable_chunked_prefill=False, max_model_len=2048),
        LoadShape(1024, 64),
        (1, 8, 16, 32),
        60,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_throughput_and_latencies_are_those_worked_out(name: str) -> None:
    settings, load, concurrencies, duration_s = CASES[name]
    for concurrency in concurrencies:
        planned = steady_state(settings, load, concurrency)
        rate, ttft, tpot = settled(settings, load, concurrency, planned, duration_s)
        assert rate == pytest.approx(planned.output_throughput, rel=0.02), concurrency
        assert tpot == pytest.approx(planned.tpot_s, rel=0.03), concurrency
        # Where prompts meet in a step by chance, they wait for each other: that is not in the formula.
        assert ttft == pytest.approx(planned.ttft_s, rel=0.35), concurrency


def test_one_user_is_worked_out_to_the_token() -> None:
    one = steady_state(SimulatorSettings(), SHORT, 1)
    assert one.ttft_s == pytest.approx(0.0336)
    assert one.tpot_s == pytest.approx(0.010)
    assert one.e2el_s == pytest.approx(0.0336 + 63 * 0.010)
    assert one.output_throughput == pytest.approx(64 / 0.6636)


def test_the_ceiling_of_max_num_seqs_is_worked_out_by_hand() -> None:
    # Sixteen places, 64 steps each: a quarter of a prompt a step; 8 + 1.6 + 15.75 · 0.4 + 0.25 · 128 · 0.2 = 22.3 ms.
    ceiling = capacity(SimulatorSettings(), SHORT).ceiling
    assert ceiling.request_throughput == pytest.approx(0.25 / 0.0223, rel=0.005)
    assert (ceiling.concurrency, ceiling.limit) == (16, "none")
    assert steady_state(SimulatorSettings(), SHORT, 17).limit == "scheduler"


def test_users_beyond_the_places_only_wait() -> None:
    ceiling, double = (steady_state(SimulatorSettings(), SHORT, users) for users in (16, 32))
    assert double.output_throughput == pytest.approx(ceiling.output_throughput)
    assert double.tpot_s == pytest.approx(ceiling.tpot_s)
    assert double.ttft_s - ceiling.ttft_s == pytest.approx(16 / ceiling.request_throughput)


def test_a_real_client_comes_a_step_late_unless_it_is_alone_or_another_waits_for_its_place() -> None:
    late = LoadShape(128, 64, late_steps=1)
    for users, steps_of_it in ((1, 64), (8, 65), (16, 65), (17, 64)):
        plain, of_late = (steady_state(SimulatorSettings(), load, users) for load in (SHORT, late))
        assert of_late.request_throughput == pytest.approx(plain.request_throughput * 64 / steps_of_it, rel=0.01)


@pytest.mark.parametrize("max_num_seqs", [4, 8, 16, 32])
def test_the_slo_capacity_is_the_last_level_that_holds(max_num_seqs: int) -> None:
    settings = SimulatorSettings(max_num_seqs=max_num_seqs)
    for limits in ({"tpot_s": 0.016}, {"ttft_s": 0.2}, {"ttft_s": 2.0, "tpot_s": 0.025}):
        answer = capacity(settings, SHORT, **limits)
        assert answer.slo is not None
        above = steady_state(settings, SHORT, answer.slo.concurrency + 1)
        for state, holds in ((answer.slo, True), (above, False)):
            assert state.tpot_s is not None
            within = state.ttft_s <= limits.get("ttft_s", 1e9) and state.tpot_s <= limits.get("tpot_s", 1e9)
            # Without a limit on the first token, more users than places change nothing any more.
            assert within is holds or state.concurrency > max_num_seqs


def test_a_limit_that_one_user_breaks_has_no_capacity() -> None:
    assert capacity(SimulatorSettings(), SHORT, tpot_s=0.009).slo is None


def test_the_kv_cache_limits_what_runs_and_its_ceiling_is_an_upper_bound() -> None:
    settings = SimulatorSettings(max_num_seqs=64, num_gpu_blocks_override=513, max_model_len=2048)
    load = LoadShape(256, 256)
    # 16 to 32 blocks, 24.5 on average.
    assert running_limit(settings, load) == int(512 / 24.5)
    planned = steady_state(settings, load, 40)
    assert planned.limit == "kv_cache"
    rate, _, _ = settled(settings, load, 40, planned, 60)
    assert 0.8 * planned.output_throughput < rate <= planned.output_throughput
    # A prefix that all share is there once.
    shared = settings.model_copy(update={"enable_prefix_caching": True})
    assert running_limit(shared, LoadShape(256, 256, shared_prefix_tokens=192)) == int(500 / 12.5)


def test_a_load_without_users_is_refused() -> None:
    with pytest.raises(ValueError, match="concurrency=0"):
        steady_state(SimulatorSettings(), SHORT, 0)
