"""How long steps last: by the roofline of a model and a GPU, at the start, with noise, and by the linear formula."""

import statistics

import pytest
from pydantic import ValidationError

from server.roofline import gpu
from server.simulator.settings import SimulatorSettings
from server.simulator.step_time import StepTime, StepWork, planned_step_ns

MS = 1_000_000
LLAMA_H100 = {"simulated_model": "llama-3.1-8b", "gpu": "H100", "engine_overhead_ms": 0}


def roofline(**changes: object) -> SimulatorSettings:
    return SimulatorSettings.model_validate({**LLAMA_H100, "bandwidth_share": 1, "flops_share": 1, **changes})


def decode(sequences: int, length: int, drafted: int = 0) -> StepWork:
    return StepWork(sequences, sequences * drafted, sequences * length)


def test_one_sequence_takes_as_long_as_reading_the_weights_and_its_cache() -> None:
    read_bytes = 2 * (8_030_261_248 - 128256 * 4096) + 131_072 * 1001
    assert planned_step_ns(roofline())(decode(1, 1000)) == pytest.approx(read_bytes / 3350e9 * 1e9, rel=1e-6)


def test_a_prompt_takes_as_long_as_computing_it() -> None:
    work = StepWork(0, 0, 0, prefill_tokens=2000, prefill_pairs=2000 * 2001 / 2, prompts_done=1)
    body = 8_030_261_248 - 2 * 128256 * 4096
    operations = 2 * (body * 2000 + 128256 * 4096) + 4 * 32 * 4096 * 2000 * 2001 / 2
    assert planned_step_ns(roofline())(work) == pytest.approx(operations / 989.4e12 * 1e9, rel=1e-6)


def test_a_prompt_beside_decoding_sequences_shares_their_reading_of_the_weights() -> None:
    planned = planned_step_ns(roofline())
    prompt = StepWork(0, 0, 0, prefill_tokens=64, prefill_pairs=64 * 65 / 2, prompts_done=1)
    both = decode(8, 500)._replace(prefill_tokens=64, prefill_pairs=64 * 65 / 2, prompts_done=1)
    assert planned(both) < 0.6 * (planned(prompt) + planned(decode(8, 500)))


def test_shares_overheads_quantization_and_more_gpus_change_a_step_as_they_should() -> None:
    full = planned_step_ns(roofline())(decode(1, 1))
    assert planned_step_ns(roofline(bandwidth_share=0.5))(decode(1, 1)) == pytest.approx(2 * full, rel=1e-6)
    assert planned_step_ns(roofline(tensor_parallel_size=2))(decode(1, 1)) == pytest.approx(full / 2, rel=1e-6)
    assert planned_step_ns(roofline(quantization="fp8"))(decode(1, 1)) == pytest.approx(full / 2, rel=0.001)
    assert planned_step_ns(roofline(weight_bytes_per_parameter=0.5))(decode(1, 1)) == pytest.approx(full / 4, rel=0.001)
    assert planned_step_ns(roofline(gpu="A100-80GB"))(decode(1, 1)) == pytest.approx(full * 3350 / 2039, rel=1e-6)
    slower = roofline(engine_overhead_ms=2, engine_overhead_per_seq_ms=0.5)
    assert planned_step_ns(slower)(decode(4, 1)) - planned_step_ns(roofline())(decode(4, 1)) == pytest.approx(4 * MS)
    context = planned_step_ns(roofline())(decode(16, 4000)) - planned_step_ns(roofline())(decode(16, 0))
    halved = roofline(kv_cache_dtype="fp8")
    assert planned_step_ns(halved)(decode(16, 4000)) - planned_step_ns(halved)(decode(16, 0)) == pytest.approx(
        context / 2, rel=1e-5
    )


def test_checking_drafts_costs_nearly_nothing_while_reading_is_the_limit() -> None:
    plain, drafted = planned_step_ns(roofline())(decode(4, 500)), planned_step_ns(roofline())(decode(4, 500, 3))
    assert plain < drafted < 1.001 * plain


def test_a_gpu_can_be_given_by_its_figures() -> None:
    own = {"gpu": None, "gpu_bandwidth_gb_s": 3350, "gpu_tflops": 989.4, "gpu_memory_gib": 80}
    assert planned_step_ns(roofline(**own))(decode(3, 30)) == planned_step_ns(roofline())(decode(3, 30))
    assert roofline(**own).num_gpu_blocks == roofline().num_gpu_blocks
    assert roofline(gpu_bandwidth_gb_s=6700).roofline[1].flops_s == gpu("H100").flops_s  # type: ignore[index]
    with pytest.raises(ValidationError, match="needs gpu_bandwidth_gb_s, gpu_tflops and gpu_memory_gib"):
        roofline(gpu=None, gpu_tflops=1)
    with pytest.raises(ValidationError, match="give simulated_model too"):
        SimulatorSettings(gpu="H100")
    with pytest.raises(ValidationError, match="quantization 'int3'"):
        roofline(quantization="int3")


def test_memory_decides_how_many_blocks_there_are() -> None:
    # 0.92 · 80 GiB, less 16.06 GB of weights and 1 GiB, at 131072 bytes a token.
    expected = int((0.92 * 80 * 2**30 - 2 * 8_030_261_248 - 2**30) // 131_072) // 16
    assert roofline().num_gpu_blocks == expected
    assert roofline(kv_cache_dtype="fp8").num_gpu_blocks == pytest.approx(2 * expected, abs=1)
    assert roofline(num_gpu_blocks_override=1000).num_gpu_blocks == 1000


def test_the_linear_formula_is_the_default_and_takes_drafts_for_prompt_tokens() -> None:
    settings = SimulatorSettings()
    assert planned_step_ns(settings)(decode(4, 1000)) == settings.step_ns(prefill_tokens=0, decoding=4)
    assert planned_step_ns(settings)(decode(4, 1000, 3)) == settings.step_ns(prefill_tokens=12, decoding=4)


def test_the_first_steps_are_slower() -> None:
    time = StepTime(SimulatorSettings(warmup_steps=4, warmup_factor=3))
    assert [time.ns(decode(1, 1)) / (10 * MS) for _ in range(6)] == [3, 2.5, 2, 1.5, 1, 1]


def test_noise_has_the_spread_that_was_asked_for_the_plans_mean_and_the_seeds_values() -> None:
    settings = SimulatorSettings(step_noise=0.2, seed=5)
    time = StepTime(settings)
    lengths = [time.ns(decode(1, 1)) for _ in range(20_000)]
    assert statistics.mean(lengths) == pytest.approx(10 * MS, rel=0.01)
    assert statistics.stdev(lengths) == pytest.approx(2 * MS, rel=0.05)
    again, other = StepTime(settings), StepTime(settings.model_copy(update={"seed": 6}))
    assert [again.ns(decode(1, 1)) for _ in range(50)] == lengths[:50]
    assert [other.ns(decode(1, 1)) for _ in range(50)] != lengths[:50]
