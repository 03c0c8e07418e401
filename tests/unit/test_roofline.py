"""The hardware model against figures that can be worked out by hand, and models against their published sizes."""

import json
from pathlib import Path

import pytest

from server import roofline
from server.model_config import KNOWN_CONFIGS, model_from_config, read_model
from server.roofline import GB, GPUS, Gpu, Model, gpu

LLAMA_7B = Model(parameters=6_738_415_616, layers=32, kv_heads=32, head_size=128)
PLAIN = Gpu("plain", 1000 * GB, 100e12, 80 * GB)


def test_the_kv_cache_of_2048_tokens_of_a_7b_model_in_fp16_is_one_gibibyte() -> None:
    assert roofline.kv_bytes(LLAMA_7B, length=2048, batch=1) == 1_073_741_824
    assert roofline.kv_bytes(LLAMA_7B, length=2048, batch=3) == 3 * 1_073_741_824


def test_grouped_queries_and_a_byte_a_value_make_the_cache_smaller() -> None:
    grouped = Model(
        parameters=8_030_261_248, layers=32, kv_heads=8, heads=32, head_size=128, hidden=4096, kv_bytes_per_value=1
    )
    assert roofline.kv_bytes(grouped, length=2048) == 1_073_741_824 / 8
    assert grouped.query_heads == 32


def test_a_step_moves_the_weights_once_and_every_sequences_cache() -> None:
    one = roofline.bytes_per_step(LLAMA_7B, tokens=1, context_tokens=1000)
    ten = roofline.bytes_per_step(LLAMA_7B, tokens=10, context_tokens=10_000)
    assert one == 2 * 6_738_415_616 + 524_288 * 1001
    assert ten - one == 524_288 * (10_010 - 1001)


def test_a_tokens_operations_are_two_a_parameter_and_four_a_pair_and_channel() -> None:
    assert roofline.flops_per_step(LLAMA_7B, tokens=1, attended=0) == 2 * 6_738_415_616
    pairs = roofline.flops_per_step(LLAMA_7B, tokens=1, attended=100) - 2 * 6_738_415_616
    assert pairs == 4 * 32 * 4096 * 100


def test_the_prompt_pairs_of_chunks_add_up_to_those_of_the_whole() -> None:
    assert roofline.prompt_pairs(100) == 100 * 101 / 2
    parts = [(30, 0), (50, 30), (20, 80)]
    assert sum(roofline.prompt_pairs(tokens, done) for tokens, done in parts) == roofline.prompt_pairs(100)


def test_one_stream_is_bound_by_bandwidth_and_many_by_computing() -> None:
    one = roofline.decode_ceiling(LLAMA_7B, PLAIN, batch=1, length=0)
    assert one == pytest.approx(1000e9 / (2 * 6_738_415_616 + 524_288))
    assert roofline.decode_ceiling(LLAMA_7B, PLAIN, batch=10, length=0) == pytest.approx(10 * one, rel=0.001)
    # Beyond flops / bandwidth sequences, more of them bring nothing.
    many = roofline.decode_ceiling(LLAMA_7B, PLAIN, batch=100_000, length=0)
    assert many == pytest.approx(100e12 / (2 * 6_738_415_616), rel=0.001)


def test_longer_contexts_lower_the_ceiling() -> None:
    lengths = (0, 1000, 10_000, 100_000)
    ceilings = [roofline.decode_ceiling(LLAMA_7B, PLAIN, batch=8, length=length) for length in lengths]
    assert ceilings == sorted(ceilings, reverse=True)


def test_a_prompt_is_bound_by_computing_or_by_reading_the_weights() -> None:
    assert roofline.first_token_floor_s(LLAMA_7B, PLAIN, input_tokens=1) == pytest.approx(0.013478, rel=0.001)
    rate = roofline.prefill_ceiling(LLAMA_7B, PLAIN, input_tokens=4096)
    assert roofline.first_token_floor_s(LLAMA_7B, PLAIN, input_tokens=4096) == pytest.approx(4096 / rate)


def test_experts_that_no_token_asks_for_are_not_read() -> None:
    mixtral = read_model("mixtral-8x7b")
    # Mistral AI: "46.7B total parameters but only uses 12.9B parameters per token".
    assert mixtral.parameters == 46_702_792_704
    assert mixtral.active_parameters + mixtral.lookup_parameters == pytest.approx(12.9e9, rel=0.01)
    assert mixtral.parameters_read(1) == mixtral.active_parameters
    assert mixtral.parameters_read(1000) == pytest.approx(mixtral.parameters - mixtral.lookup_parameters)
    # Two tokens, each two of eight: 8 · (1 − (6/8)²) = 3.5 of them.
    two = mixtral.parameters - mixtral.lookup_parameters - mixtral.expert_parameters * (1 - 3.5 / 8)
    assert mixtral.parameters_read(2) == pytest.approx(two)


def test_the_tokens_of_a_speculative_step_follow_leviathans_formula() -> None:
    assert roofline.accepted_tokens(0, 0.9) == 1
    assert roofline.accepted_tokens(3, 1.0) == 4
    assert roofline.accepted_tokens(4, 0.8) == pytest.approx((1 - 0.8**5) / (1 - 0.8))


def test_what_is_left_of_the_memory_holds_the_cache() -> None:
    llama = read_model("llama-3.1-8b")
    tokens = roofline.kv_capacity_tokens(llama, gpu("A100-80GB"))
    assert tokens == int((0.92 * 80 * roofline.GIB - 2 * llama.parameters) // 131_072)
    assert roofline.kv_capacity_tokens(read_model("llama-3.1-70b"), gpu("A100-80GB")) == 0
    assert roofline.kv_capacity_tokens(read_model("llama-3.1-70b"), gpu("A100-80GB").times(4)) > 100_000


def test_gpus_are_found_by_name_and_several_are_added_up() -> None:
    assert gpu("a100") is GPUS["A100-80GB"]
    assert gpu("H100-SXM").bandwidth_bytes_s == 3350 * GB
    assert gpu("H100").times(2).flops_s == 2 * gpu("H100").flops_s
    with pytest.raises(ValueError, match="RTX 5090"):
        gpu("RTX 5090")
    with pytest.raises(ValueError, match="at least one"):
        gpu("H100").times(0)


@pytest.mark.parametrize(
    ("name", "parameters"),
    # Of the models' safetensors on Hugging Face.
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("qwen2.5-7b", 7_615_616_512),
        ("mistral-7b", 7_248_023_552),
        ("mixtral-8x7b", 46_702_792_704),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_parameters_counted_from_a_config_are_those_of_the_weights(name: str, parameters: int) -> None:
    assert read_model(name).parameters == parameters


def test_a_config_is_read_from_a_file_and_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(KNOWN_CONFIGS["smollm2-135m"]))
    assert read_model(tmp_path) == read_model(tmp_path / "config.json") == read_model("SmolLM2-135M")


def test_quantized_weights_are_as_long_as_their_config_says() -> None:
    config = dict(KNOWN_CONFIGS["llama-3.1-8b"])
    awq = model_from_config({**config, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}})
    assert awq.weight_bytes_per_parameter == (4 + 20 / 128) / 8
    assert model_from_config({**config, "quantization_config": {"quant_method": "fp8"}}).weight_bytes_per_parameter == 1
    assert model_from_config({**config, "torch_dtype": "float32"}).kv_bytes_per_value == 4


def test_a_compressed_cache_keeps_one_latent_of_a_token() -> None:
    # DeepSeek-V2-Lite: 27 layers, 512 + 64 values each.
    config = {
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "vocab_size": 102400,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
    }
    lite = model_from_config(config)
    assert lite.kv_values_per_token == 27 * 576
    assert lite.parameters == pytest.approx(15.7e9, rel=0.01)
    assert lite.active_parameters + lite.lookup_parameters == pytest.approx(2.66e9, rel=0.02)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({}, "hidden_size or n_embd"),
        ({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}, "vocab_size"),
        ({"hidden_size": "big"}, "hidden_size is 'big'"),
    ],
)
def test_a_config_that_says_too_little_is_refused_by_its_key(
    config: dict[str, object], named: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=named) as refused:
        read_model(path)
    assert str(path) in str(refused.value)


def test_a_config_that_is_not_there_or_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no config\.json there"):
        read_model(tmp_path / "gone")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        read_model(tmp_path)
