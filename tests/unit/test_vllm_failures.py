"""Why vLLM did not start, from texts that vLLM, torch, transformers and argparse wrote in public reports of it."""

from __future__ import annotations

import pytest

from server.vllm.failures import explain

TEXTS = [
    (
        "kv_cache_too_small",
        (
            "(EngineCore_DP0 pid=1094) ValueError: To serve at least one request with the models's max seq len (262144), "
            "(24.0 GiB KV cache is needed, which is larger than the available KV cache memory (3.18 GiB). Based on the available "
            "memory, the estimated maximum model length is 34736. Try increasing `gpu_memory_utilization` or decreasing "
            "`max_model_len` when initializing the engine."
        ),
        "needs 24.0 GiB, and 3.18 GiB are left",
        "set max_model_len to at most 34736, then raise gpu_memory_utilization, then lower max_num_seqs",
    ),
    (
        "kv_cache_too_small",
        (
            "ValueError: To serve at least one request with the model's max seq len (100000), (4.26 GiB KV cache is needed, which "
            "is larger than the available KV cache memory (4.25 GiB). Try increasing `gpu_memory_utilization` (which also controls"
        ),
        "max_model_len 100000",
        "lower max_model_len, then raise",
    ),
    (
        "kv_cache_too_small",
        (
            "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be stored in KV "
            "cache (3664). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        ),
        "holds 3664 tokens",
        "at most 3664",
    ),
    (
        "kv_cache_too_small",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when",
        "no memory for a KV cache",
        "gpu_memory_utilization",
    ),
    (
        "memory_taken",
        (
            "ValueError: Free memory on device cuda:0 (19.77/22.05 GiB) on startup is less than desired GPU memory utilization "
            "(0.9, 19.84 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
        ),
        "wants 19.84 of 22.05 GiB",
        "nvidia-smi",
    ),
    (
        "memory_taken",
        (
            "ValueError: Free memory on device (59.32/79.15 GiB) on startup is less than desired GPU memory utilization (0.9, "
            "71.24 GiB). Decrease GPU"
        ),
        "only 59.32 GiB are free",
        "lower gpu_memory_utilization",
    ),
    (
        "memory_taken",
        (
            "ValueError: Available memory on node 0 (13.9/31.3 GiB) on startup is less than desired CPU memory utilization "
            "(0.92, 28.8 GiB). On the CPU backend, the `--gpu-memory-utilization` flag"
        ),
        "wants 28.8 of 31.3 GiB",
        "share of the host's memory",
    ),
    (
        "out_of_memory",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1002.00 MiB. GPU 0 has a total capacity of 23.65 GiB",
        "not enough memory",
        "max_model_len, then lower gpu_memory_utilization",
    ),
    (
        "out_of_memory",
        (
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering "
            "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
        ),
        "1024 sequences",
        "lower max_num_seqs",
    ),
    (
        "port_taken",
        "OSError: [Errno 98] Address already in use",
        "port is taken",
        "leave server.port out",
    ),
    (
        "port_taken",
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
        "port is taken",
        "server.port",
    ),
    (
        "model_not_found",
        "ValueError: Invalid repository ID or local directory specified: 'nope/nope'.\nPlease verify the following",
        "no model 'nope/nope'",
        "server.model",
    ),
    (
        "model_not_found",
        "OSError: nope/nope is not a local folder and is not a valid model identifier listed on 'https://huggingface.co",
        "no model 'nope/nope'",
        "server.model",
    ),
    (
        "model_not_found",
        "OSError: You are trying to access a gated repo.\nMake sure to have access to it at",
        "gated",
        "HF_TOKEN",
    ),
    (
        "wrong_dtype",
        "vllm serve: error: argument --dtype: invalid choice: 'int4' (choose from auto, bfloat16, float, float16, float32, half)",
        "'int4' is not a dtype",
        "bfloat16",
    ),
    (
        "wrong_dtype",
        (
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has "
            "compute capability 7.5. You can use float16 instead by explicitly setting the `dtype` flag"
        ),
        "capability 8.0",
        "float16",
    ),
    (
        "wrong_dtype",
        "ValueError: torch.bfloat16 is not supported for quantization method awq. Supported dtypes: [torch.float16]",
        "awq",
        "torch.float16",
    ),
    (
        "unknown_flag",
        "usage: vllm serve [model_tag] [options]\nvllm serve: error: unrecognized arguments: --max-num-sequences 4",
        "--max-num-sequences 4",
        "keys under server",
    ),
    (
        "wrong_value",
        "vllm serve: error: argument --max-num-seqs: invalid int value: 'many'",
        "--max-num-seqs: invalid int value",
        "that key",
    ),
    (
        "no_gpu",
        "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`",
        "no GPU",
        "CUDA_VISIBLE_DEVICES",
    ),
    ("no_gpu", "RuntimeError: No CUDA GPUs are available", "no GPU", "nvidia-smi"),
    (
        "max_model_len",
        (
            "ValueError: User-specified max_model_len (99999) is greater than the derived max_model_len "
            "(max_position_embeddings=8192 or model_max_length=None in model's config.json)."
        ),
        "99999, and the model was made for 8192",
        "at most 8192",
    ),
    (
        "max_num_seqs",
        "Value error, max_num_batched_tokens (16) must be greater than or equal to max_num_seqs (32).",
        "16, less than max_num_seqs, 32",
        "linked",
    ),
    (
        "tensor_parallel",
        "ValueError: Total number of attention heads (9) must be divisible by tensor parallel size (2).",
        "9 attention heads",
        "divisor of 9",
    ),
    (
        "quantization",
        (
            "ValueError: Quantization method specified in the model config (awq) does not match the quantization method "
            "specified in the `quantization` argument (gptq)."
        ),
        "asks for gptq",
        "leave server.quantization out",
    ),
    (
        "broken_command",
        "importlib.metadata.PackageNotFoundError: No package metadata was found for vllm",
        "does not work",
        "server.python",
    ),
    ("not_installed", "/opt/x/bin/python: No module named vllm", "not installed", "server.python"),
]


@pytest.mark.parametrize(("kind", "log", "text", "hint"), TEXTS, ids=[f"{one[0]}-{n}" for n, one in enumerate(TEXTS)])
def test_a_text_that_vllm_is_known_for_is_explained_with_its_remedy(kind: str, log: str, text: str, hint: str) -> None:
    whole = f"(EngineCore pid=1) INFO 11-29 23:41:51 [core.py:133] Initializing\n{log}\nRuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}\n"
    failure = explain(whole, 1)
    assert (failure.kind, text in failure.text, hint in failure.hint) == (kind, True, True), failure


def test_the_prefix_and_colour_of_a_process_hide_nothing() -> None:
    log = "\x1b[0;36m(EngineCore pid=12)\x1b[0;0m ERROR 11-29 23:41:51 [core.py:9] OSError: [Errno 98] Address already in use"
    assert explain(log, 1).kind == "port_taken"


def test_of_an_error_that_nobody_knows_the_root_is_told_and_not_what_follows_from_it() -> None:
    log = "(EngineCore pid=2) KeyError: 'rope_theta'\n(APIServer pid=1) RuntimeError: Engine core initialization failed. See\n"
    failure = explain(log, 1)
    assert failure.kind == "unknown"
    assert "KeyError: 'rope_theta'" in failure.text


def test_a_server_that_was_killed_without_a_word_points_at_the_hosts_memory() -> None:
    assert explain("loading\n", -9).kind == explain("loading\n", 137).kind == "killed"


def test_an_ordinary_start_explains_nothing() -> None:
    assert (
        explain("(APIServer pid=1) INFO 11-29 23:41:44 [model.py:2152] Using max model len 2048", 0).kind == "unknown"
    )
