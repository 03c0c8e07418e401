"""vLLM's `LLM.generate` on a batch: once for a token of each prompt, once for all tokens, so that prefill stands apart.

Called with one JSON object: engine (keywords of `LLM`, the model among them), input_tokens, output_tokens, batch, passes, seed.
"""

import platform
import time
from typing import Any

from told import devices, prompt_ids, run, tell  # type: ignore[import-not-found]


def named(root: Any, path: str) -> Any:
    """A setting deep in vLLM's configuration, as a value for JSON; None where this version keeps it elsewhere."""
    for name in path.split("."):
        root = getattr(root, name, None)
    return root if root is None or isinstance(root, bool | int | float) else str(root).removeprefix("torch.")


def measure(asked: dict[str, Any]) -> None:
    import torch  # type: ignore[import-not-found]
    import vllm  # type: ignore[import-not-found]
    from vllm import LLM, SamplingParams

    began_ns = time.perf_counter_ns()
    llm = LLM(**asked["engine"])
    loaded_ns = time.perf_counter_ns()
    config = llm.llm_engine.vllm_config
    _, gpus = devices(torch)
    eager = named(config, "model_config.enforce_eager")
    tell(
        "loaded",
        load_s=(loaded_ns - began_ns) / 1e9,
        versions={"python": platform.python_version(), "vllm": vllm.__version__, "torch": torch.__version__},
        effective={
            "dtype": named(config, "model_config.dtype"),
            "quantization": named(config, "model_config.quantization"),
            "kv_cache_dtype": named(config, "cache_config.cache_dtype"),
            "max_model_len": named(config, "model_config.max_model_len"),
            "max_num_seqs": named(config, "scheduler_config.max_num_seqs"),
            "max_num_batched_tokens": named(config, "scheduler_config.max_num_batched_tokens"),
            "chunked_prefill": named(config, "scheduler_config.enable_chunked_prefill"),
            "prefix_caching": named(config, "cache_config.enable_prefix_caching"),
            "tensor_parallel_size": named(config, "parallel_config.tensor_parallel_size"),
            "speculative": getattr(config, "speculative_config", None) is not None,
            "device": named(config, "device_config.device_type"),
            "gpus": gpus,
            "enforce_eager": eager,
            "cuda_graphs": None if eager is None else bool(gpus) and not eager,
        },
    )
    vocabulary = config.model_config.get_vocab_size()

    def generate(number: int, output_tokens: int) -> tuple[float, int]:
        """(seconds, tokens) of one batch; no two batches share a prompt."""
        prompts = [
            {
                "prompt_token_ids": prompt_ids(
                    vocabulary, asked["input_tokens"], asked["seed"], number, output_tokens, row
                )
            }
            for row in range(asked["batch"])
        ]
        params = SamplingParams(
            temperature=0, max_tokens=output_tokens, min_tokens=output_tokens, ignore_eos=True, seed=asked["seed"]
        )
        began_ns = time.perf_counter_ns()
        answers = llm.generate(prompts, params, use_tqdm=False)
        took_ns = time.perf_counter_ns() - began_ns
        return took_ns / 1e9, sum(len(answer.outputs[0].token_ids) for answer in answers)

    for number in range(asked["passes"]):
        prefill_s, _ = generate(number, 1)
        total_s, output_tokens = generate(number, asked["output_tokens"])
        tell("pass", output_tokens=output_tokens, prefill_s=prefill_s, total_s=total_s)
    tell("done")


if __name__ == "__main__":
    run(measure)
