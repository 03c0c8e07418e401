"""Step times are found again from what a simulated server's clients saw."""

import numpy as np
import pytest

from loadgen.record import OK
from loadgen.virtual import closed_loop
from server.simulator.capacity import LoadShape, steady_state
from server.simulator.fit import Measured, fitted
from server.simulator.settings import SimulatorSettings

SECOND = 1_000_000_000


def planned(settings: SimulatorSettings, concurrency: int, input_tokens: int, output_tokens: int) -> Measured:
    state = steady_state(settings, LoadShape(input_tokens, output_tokens, late_steps=1), concurrency)
    assert state.tpot_s is not None
    return Measured(concurrency, input_tokens, output_tokens, state.ttft_s, state.tpot_s)


def seen(settings: SimulatorSettings, concurrency: int, input_tokens: int, output_tokens: int) -> Measured:
    """Of virtual clients that are not late."""
    records = closed_loop(
        settings,
        concurrency=concurrency,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        duration_ns=200 * SECOND,
        ramp_ns=5 * SECOND,
    )
    done = [r for r in records if r.status == OK][concurrency:]
    ttft_s = np.mean([(r.first_token_ns - r.sent_ns) / SECOND for r in done])  # type: ignore[operator]
    tpot_s = np.mean([(r.last_token_ns - r.first_token_ns) / SECOND / (output_tokens - 1) for r in done])  # type: ignore[operator]
    return Measured(concurrency, input_tokens, output_tokens, float(ttft_s), float(tpot_s))


TRUE = SimulatorSettings(
    max_num_seqs=16,
    step_overhead_ms=20,
    prefill_time_per_token_ms=1.5,
    decode_base_ms=15,
    decode_time_per_seq_ms=3,
)


def test_step_times_come_back_from_the_latencies_that_they_make() -> None:
    levels = [planned(TRUE, c, i, o) for c in (1, 2, 4, 8, 16) for i, o in ((128, 64), (512, 32))]
    found = fitted(SimulatorSettings(max_num_seqs=16), levels)
    assert found.step_overhead_ms == pytest.approx(20, rel=0.01)
    assert found.prefill_time_per_token_ms == pytest.approx(1.5, rel=0.01)
    assert found.decode_base_ms == pytest.approx(15, rel=0.01)
    assert found.decode_time_per_seq_ms == pytest.approx(3, rel=0.01)
    assert found.max_num_seqs == 16


def test_a_level_that_was_not_fitted_is_foretold() -> None:
    # From noisy latencies of few levels to the throughput of another concurrency and other lengths.
    noisy = TRUE.model_copy(update={"step_noise": 0.1})
    found = fitted(SimulatorSettings(max_num_seqs=16), [seen(noisy, c, 128, 64) for c in (1, 2, 4)])
    for concurrency, load in ((8, LoadShape(128, 64)), (16, LoadShape(64, 128))):
        foretold = steady_state(found, load, concurrency).output_throughput
        assert foretold == pytest.approx(steady_state(TRUE, load, concurrency).output_throughput, rel=0.1)


def test_no_step_time_is_negative() -> None:
    # A server that gets faster with more sequences, which no step time can say.
    odd = [Measured(1, 128, 64, 0.5, 0.020), Measured(4, 128, 64, 0.5, 0.010)]
    found = fitted(SimulatorSettings(), odd)
    assert found.decode_time_per_seq_ms == 0
    assert min(found.step_overhead_ms, found.prefill_time_per_token_ms, found.decode_base_ms) >= 0


def test_too_few_levels_and_queues_are_refused() -> None:
    level = planned(TRUE, 1, 128, 64)
    with pytest.raises(ValueError, match="at least two levels"):
        fitted(TRUE, [level])
    with pytest.raises(ValueError, match=r"max_num_seqs=16 have a queue: \[32\]"):
        fitted(TRUE, [level, Measured(32, 128, 64, 1.0, 0.1)])
