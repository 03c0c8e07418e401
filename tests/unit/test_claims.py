"""What the roofline says of a claim, with figures worked out by hand; KV cache sizes; which conditions are missing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest

from loadgen.claims.claim import DEPENDS, IMPOSSIBLE, NEEDS_BATCHING, NEEDS_LESS_TO_READ, PLAUSIBLE, Claim, judge
from loadgen.claims.figures import gpu_figures, model_figures
from loadgen.claims.kv_cache import kv_cache
from loadgen.claims.quantities import bytes_text, count_text, parse_bandwidth, parse_bytes, parse_count
from loadgen.claims.stated import CONDITIONS, missing

H100_BANDWIDTH = gpu_figures(name=None, bandwidth="3.35TB/s")


def claim(tok_s: float, params: str = "70B", *, dtype: str = "bf16", **changes: object) -> Claim:
    model, known = model_figures(params=params, dtype=dtype)
    return Claim(**{"tok_s": tok_s, "model": model, "kv_known": known, "gpu": H100_BANDWIDTH, **changes})  # type: ignore[arg-type]


def test_single_stream_ceiling_is_bandwidth_over_the_weights() -> None:
    assert judge(claim(20))["single_stream_ceiling"] == pytest.approx(3.35e12 / 140e9)
    assert judge(claim(20))["verdict"] == PLAUSIBLE
    assert judge(claim(20))["nature"] == "single stream"


def test_278_tokens_per_second_of_a_70b_model_is_no_single_stream() -> None:
    judged = judge(claim(278))
    assert (judged["verdict"], judged["nature"]) == (NEEDS_BATCHING, "aggregate")
    assert judged["least_batch"] == 12  # 278 / 23.93 = 11.6
    alone = judge(claim(278, concurrency=1))
    assert alone["verdict"] == NEEDS_LESS_TO_READ
    assert "both 4-bit weights and 2.9 tokens accepted a step" in alone["reasons"][0]  # 278 / (4 · 23.93)
    together = judge(claim(278, concurrency=16))
    assert (together["verdict"], together["nature"]) == (PLAUSIBLE, "aggregate")
    assert "each gets 17.4 tokens/s" in together["reasons"][0]


def test_batch_that_is_too_small_is_told_how_many_it_takes() -> None:
    judged = judge(claim(2780, concurrency=2))  # 58 times the ceiling: no quantization and speculation will do
    assert judged["verdict"] == NEEDS_BATCHING
    assert judged["least_batch"] == 117
    assert any("at least 117 requests" in reason for reason in judged["reasons"])


def test_smaller_weights_alone_are_enough_up_to_four_times_of_16_bits() -> None:
    judged = judge(claim(90, concurrency=1))
    assert judged["verdict"] == NEEDS_LESS_TO_READ
    assert any("4-bit weights" in reason for reason in judged["reasons"])
    assert any("3.8 tokens accepted a step" in reason for reason in judged["reasons"])


def test_stated_quantization_and_speculation_raise_the_ceiling() -> None:
    model, known = model_figures(params="70B", dtype="bf16", quantization="fp8")
    eight_bit = Claim(tok_s=40, model=model, kv_known=known, gpu=H100_BANDWIDTH, concurrency=1)
    assert judge(eight_bit)["ceiling"] == pytest.approx(3.35e12 / 70e9)
    speculative = claim(60, concurrency=1, draft_tokens=3, acceptance=0.8)
    assert speculative.tokens_per_step == pytest.approx(1 + 0.8 + 0.64 + 0.512)
    assert judge(speculative)["verdict"] == PLAUSIBLE
    assert judge(claim(60, concurrency=1))["verdict"] == NEEDS_LESS_TO_READ


def test_weights_that_do_not_fit_make_it_impossible() -> None:
    judged = judge(claim(20, gpu=gpu_figures(name="H100", bandwidth=None)))
    assert judged["verdict"] == IMPOSSIBLE
    assert "the weights take 140 GB, and H100 has 85.9 GB" in judged["reasons"][0]
    assert judge(claim(20, gpu=gpu_figures(name="H100", bandwidth=None, count=2)))["verdict"] == PLAUSIBLE


def test_what_is_not_stated_is_no_reason_to_call_a_claim_impossible() -> None:
    one = gpu_figures(name="H100", bandwidth=None)
    asked = claim(20, gpu=one, gpus_stated=False)
    judged = judge(asked)
    assert judged["verdict"] == DEPENDS
    assert judged["reasons"][0].startswith("on one GPU: impossible, since the weights take 140 GB")
    assert judged["reasons"][1].startswith("on 2 GPUs: plausible")
    either = judge(claim(20, gpu=one, gpus_stated=False, precision_stated=False))
    assert "on one GPU with 8-bit weights: plausible" in either["reasons"][1]
    assert judge(claim(20, gpu=one, precision_stated=False))["verdict"] == DEPENDS
    never = judge(claim(1e9, gpu=one, gpus_stated=False, precision_stated=False))
    assert never["verdict"] == IMPOSSIBLE
    assert never["reasons"][0].startswith("even on 64 GPUs with 4-bit weights: ")


def test_a_single_stream_that_more_gpus_would_allow_depends_on_their_number() -> None:
    one = gpu_figures(name="H100", bandwidth=None)
    judged = judge(claim(400, "8B", gpu=one, concurrency=1, gpus_stated=False))
    assert judged["verdict"] == DEPENDS
    assert judged["reasons"][1].startswith("on 2 GPUs: plausible, it is 96%")
    assert judge(claim(400, "8B", gpu=one, concurrency=1))["verdict"] == NEEDS_LESS_TO_READ
    # The precision is not stated either: a plausible pair comes before one that needs still smaller weights.
    both = judge(claim(300, gpu=one, concurrency=1, gpus_stated=False, precision_stated=False))
    assert both["reasons"][1].startswith("on 4 GPUs with 4-bit weights: plausible")


def test_a_sum_stays_a_sum_and_says_which_gpus_would_make_it_one_request() -> None:
    judged = judge(claim(278, gpus_stated=False))
    assert judged["verdict"] == NEEDS_BATCHING
    assert judged["reasons"][-1].startswith("or on 16 GPUs: plausible")


@pytest.mark.parametrize(
    ("parse", "text", "told"),
    [
        (parse_count, "70", "write 70B for billions"),
        (parse_count, "0.0001B", "fewer than any model has"),
        (parse_bytes, "80", "write 80GB"),
        (parse_bytes, "8kB", "no GPU's memory"),
        (parse_bytes, "", "is not a size"),
        (parse_bandwidth, "3.35", "write 3.35TB/s"),
        (parse_bandwidth, "864", "write 864GB/s"),
        (parse_bandwidth, "0.001TB/s", "no GPU's bandwidth"),
    ],
)
def test_a_slip_of_the_unit_is_refused_with_what_is_probably_meant(
    parse: Callable[[str], float], text: str, told: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse(text)


def test_kv_cache_is_read_with_every_token_and_bounds_the_batch() -> None:
    model, known = model_figures(params="7B", dtype="fp16", layers=32, kv_heads=32, head_size=128)
    gpu = gpu_figures(name=None, bandwidth="1TB/s", memory="24GB")
    asked = Claim(tok_s=350, model=model, kv_known=known, gpu=gpu, length=2047)
    assert known
    # A step reads the weights, the context's KV, and writes one token: 2048 tokens of 524,288 bytes.
    assert asked.ceiling(1) == pytest.approx(1e12 / (14e9 + 2048 * 524_288))
    assert asked.most_that_fit() == int(10e9 // (2047 * 524_288)) == 9
    judged = judge(asked)
    assert judged["verdict"] == NEEDS_BATCHING
    assert asked.ceiling(judged["least_batch"]) >= 350 > asked.ceiling(judged["least_batch"] - 1)
    too_much = judge(Claim(tok_s=40_000, model=model, kv_known=known, gpu=gpu, length=2047))
    assert too_much["verdict"] == IMPOSSIBLE
    assert "the 9 requests that fit into memory get at most" in too_much["reasons"][0]


def test_requests_that_do_not_fit_into_memory_add_nothing_to_the_sum() -> None:
    model, known = model_figures(params="7B", dtype="fp16", layers=32, kv_heads=32, head_size=128)
    gpu = gpu_figures(name=None, bandwidth="1TB/s", memory="24GB")
    asked = Claim(tok_s=700, model=model, kv_known=known, gpu=gpu, length=2047, concurrency=64)
    assert asked.ceiling(64) > 700 > asked.ceiling(9), "of the 64 that are stated 9 fit"
    judged = judge(asked)
    assert judged["verdict"] != PLAUSIBLE
    assert judged["ceiling"] == asked.ceiling(9)
    none_fits = Claim(tok_s=5, model=model, kv_known=known, gpu=gpu, length=100_000, concurrency=1)
    assert judge(none_fits)["verdict"] == IMPOSSIBLE


def test_arithmetic_bounds_what_bandwidth_does_not() -> None:
    model, known = model_figures(params="8B", dtype="bf16")
    gpu = gpu_figures(name="H100", bandwidth=None)
    # No batch goes beyond 989.4e12 operations / 16e9 a token.
    assert judge(Claim(tok_s=60_000, model=model, kv_known=known, gpu=gpu))["verdict"] == NEEDS_BATCHING
    assert judge(Claim(tok_s=400_000, model=model, kv_known=known, gpu=gpu))["verdict"] == IMPOSSIBLE
    assert Claim(tok_s=1, model=model, kv_known=known, gpu=gpu).ceiling(4096) == pytest.approx(989.4e12 / 16e9)


def test_weights_of_eight_bits_may_be_multiplied_twice_as_fast() -> None:
    # H100: 1,979e12 operations of 8 bits a second / 140e9 a token are 14,134 tokens/s.
    model, known = model_figures(params="70B", quantization="fp8")
    gpu = gpu_figures(name="H100", bandwidth=None)
    asked = Claim(tok_s=13_000, model=model, kv_known=known, gpu=gpu, concurrency=2048)
    assert asked.ceiling(2048) == pytest.approx(2 * 989.4e12 / 140e9)
    assert judge(asked)["verdict"] == PLAUSIBLE


def test_speculation_is_no_way_past_the_arithmetic() -> None:
    model, known = model_figures(params="8B", dtype="int4")
    gpu = gpu_figures(name="H100", bandwidth=None)
    ceiling = 2 * 989.4e12 / 16e9
    above = Claim(tok_s=1.5 * ceiling, model=model, kv_known=known, gpu=gpu, concurrency=4096)
    assert judge(above)["verdict"] == IMPOSSIBLE
    drafting = Claim(tok_s=1, model=model, kv_known=known, gpu=gpu, concurrency=4096, draft_tokens=3)
    assert drafting.ceiling(4096) == pytest.approx(ceiling)


def test_mixture_of_experts_reads_its_active_parameters_for_one_stream() -> None:
    model, known = model_figures(params="47B", active_params="13B", dtype="bf16")
    asked = Claim(tok_s=1, model=model, kv_known=known, gpu=H100_BANDWIDTH)
    assert asked.ceiling(1) == pytest.approx(3.35e12 / 26e9, rel=1e-3)
    assert asked.ceiling(256) == pytest.approx(256 * 3.35e12 / 94e9, rel=1e-3), "a large batch reads all experts"


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_closeness_to_the_ceiling_is_told(share: float) -> None:
    (reason,) = judge(claim(share * 3.35e12 / 140e9, concurrency=1))["reasons"]
    assert f"{share:.0%} of the ceiling" in reason
    assert ("ask how" in reason) == (share > 0.9)


def test_kv_cache_of_the_known_case_is_one_gibibyte() -> None:
    model, _ = model_figures(params="7B", dtype="fp16", layers=32, kv_heads=32, head_size=128)
    made = kv_cache(model, length=2048, batch=1, gpu=None, memory_utilization=0.9)
    assert made["bytes"] == 1_073_741_824
    assert made["bytes_per_token"] == 524_288
    assert made["sequences_that_fit"] is None
    assert kv_cache(model, length=2048, batch=16, gpu=None, memory_utilization=0.9)["bytes"] == 16 * 2**30


def test_sequences_that_fit_are_what_memory_leaves_beside_the_weights() -> None:
    model, _ = model_figures(params="7B", dtype="fp16", layers=32, kv_heads=32, head_size=128)
    gpu = gpu_figures(name=None, bandwidth="1TB/s", memory="24GiB")
    made = kv_cache(model, length=2048, batch=1, gpu=gpu, memory_utilization=0.9)
    left = 0.9 * 24 * 2**30 - 14e9
    assert made["tokens_that_fit"] == left // 524_288
    assert made["sequences_that_fit"] == left // 524_288 // 2048 == 8
    none = kv_cache(
        model,
        length=2048,
        batch=1,
        gpu=gpu_figures(name=None, bandwidth="1TB/s", memory="12GB"),
        memory_utilization=0.9,
    )
    assert none["sequences_that_fit"] == 0


def test_config_gives_shape_and_parameters() -> None:
    model, known = model_figures(params=None, config="llama-3.1-8b")
    assert known and model.parameters == pytest.approx(8.03e9, rel=0.001)
    assert model.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2
    halved, _ = model_figures(params=None, config="llama-3.1-8b", kv_dtype="fp8")
    assert halved.kv_bytes_per_token == 32 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"params": None}, "--params"),
        ({"params": "many"}, "'many' is not a number such as 70B"),
        ({"params": "1e300T"}, "more than any such number"),
        ({"params": "7B", "layers": 32}, "all three"),
        ({"params": "7B", "dtype": "bf17"}, "'bf17' is none of"),
        ({"params": "7B", "quantization": "magic"}, "'magic' is none of"),
        ({"params": "7B", "active_params": "8B"}, "more than all"),
        ({"params": None, "config": "/no/such/file"}, "no config.json there"),
    ],
)
def test_what_is_wrong_with_a_model_is_said(given: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        model_figures(**given)  # type: ignore[arg-type]


def test_what_is_wrong_with_a_gpu_is_said() -> None:
    with pytest.raises(ValueError, match="--bandwidth"):
        gpu_figures(name=None, bandwidth=None)
    with pytest.raises(ValueError, match="'H1000'"):
        gpu_figures(name="H1000", bandwidth=None)
    with pytest.raises(ValueError, match=r"bandwidth such as 3\.35TB/s"):
        gpu_figures(name=None, bandwidth="3.35TB")


@pytest.mark.parametrize(
    ("text", "value"),
    [("70B", 7e10), ("8.03b", 8.03e9), ("135 M", 1.35e8), ("405000000000", 4.05e11), (".5B", 5e8)],
)
def test_counts_are_read_as_people_write_them(text: str, value: float) -> None:
    assert parse_count(text) == value


def test_sizes_need_their_unit_and_know_both_kinds() -> None:
    assert parse_bytes("80GB") == 80e9
    assert parse_bytes("80GiB") == 80 * 2**30
    assert parse_bandwidth("864 GB/s") == 864e9
    for wrong in ("80", "0GB", "-1GB", "80 bits"):
        with pytest.raises(ValueError, match="its unit"):
            parse_bytes(wrong)


def test_numbers_are_told_with_three_digits() -> None:
    assert [bytes_text(1.4e11), bytes_text(1_073_741_824), bytes_text(12)] == ["140 GB", "1.07 GB", "12 bytes"]
    assert [count_text(7e10), count_text(8.03e9), count_text(1.35e8)] == ["70 B", "8.03 B", "135 M"]


def test_every_condition_that_is_not_stated_is_missing() -> None:
    assert [one.name for one in missing({})] == [one.name for one in CONDITIONS]
    stated = dict.fromkeys((one.name for one in CONDITIONS), "said")
    assert missing(stated) == []
    assert [one.name for one in missing({**stated, "CUDA graphs": None})] == ["CUDA graphs"]
    assert missing({**stated, "speculative decoding": 0}) == [], "none at all is a statement"
    with pytest.raises(KeyError):
        missing({"colour": "red"})


def test_nothing_that_is_told_is_infinite() -> None:
    judged = judge(claim(278))
    assert all(math.isfinite(value) for value in judged.values() if isinstance(value, float))
