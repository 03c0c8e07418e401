"""Runs vLLM's own scheduler without a model: takes a script on standard input, gives what each step did, as JSON.

Run with the environment's Python. Input: a list of {"model": folder, "settings": {…}, "arrivals": [[step, id, prompt token
ids, output tokens], …]}; output: for each a list of steps, {"scheduled": {id: tokens}, "preempted": [ids], "finished": [ids], "running", "waiting",
"kv_usage", "prefix_queries", "prefix_hits"}, the counts of the prefix cache those of the step. The tokens of a reply are all
1000 + id. The scheduler is the synchronous one: the asynchronous one takes a step more to see an end.
"""

import json
import sys

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager


def scheduler_of(model: str, settings: dict) -> Scheduler:
    length, size, blocks = (settings[name] for name in ("max_model_len", "block_size", "num_gpu_blocks"))
    cache = CacheConfig(block_size=size, enable_prefix_caching=settings["enable_prefix_caching"])
    cache.num_gpu_blocks = blocks
    config = VllmConfig(
        model_config=ModelConfig(model=model, dtype="bfloat16", max_model_len=length, enforce_eager=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=settings["max_num_seqs"],
            max_num_batched_tokens=settings["max_num_batched_tokens"],
            max_model_len=length,
            is_encoder_decoder=False,
            enable_chunked_prefill=settings["enable_chunked_prefill"],
            async_scheduling=False,
        ),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
    )
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    return Scheduler(
        vllm_config=config,
        kv_cache_config=kv,
        structured_output_manager=StructuredOutputManager(config),
        block_size=size,
        log_stats=True,
    )


def steps_of(asked: dict) -> list[dict]:
    settings = asked["settings"]
    scheduler = scheduler_of(asked["model"], settings)
    hasher = get_request_block_hasher(settings["block_size"], sha256)
    arrivals = sorted(asked["arrivals"])
    steps = []
    while arrivals or scheduler.has_unfinished_requests():
        while arrivals and arrivals[0][0] <= len(steps):
            _, number, prompt, output_tokens = arrivals.pop(0)
            parameters = SamplingParams(max_tokens=output_tokens, ignore_eos=True)
            scheduler.add_request(
                Request(
                    request_id=str(number),
                    prompt_token_ids=prompt,
                    sampling_params=parameters,
                    pooling_params=None,
                    block_hasher=hasher,
                )
            )
        output = scheduler.schedule()
        ids = list(output.num_scheduled_tokens)
        sampled = []
        for one in ids:
            request = scheduler.requests[one]
            # The scheduler has counted the tokens of this step already: a prompt that is not complete gives no token.
            complete = request.num_computed_tokens >= request.num_tokens
            sampled.append([1000 + int(one)] if complete else [])
        result = ModelRunnerOutput(
            req_ids=ids, req_id_to_index={one: n for n, one in enumerate(ids)}, sampled_token_ids=sampled
        )
        outputs = scheduler.update_from_output(output, result)
        stats = next((one.scheduler_stats for one in outputs.values() if one.scheduler_stats is not None), None)
        finished = [one.request_id for engine in outputs.values() for one in engine.outputs if one.finish_reason]
        steps.append(
            {
                "scheduled": {int(one): output.num_scheduled_tokens[one] for one in ids},
                "preempted": sorted(int(one) for one in output.preempted_req_ids or ()),
                "finished": sorted(map(int, finished)),
                "running": stats.num_running_reqs if stats else None,
                "waiting": stats.num_waiting_reqs if stats else None,
                "kv_usage": stats.kv_cache_usage if stats else None,
                "prefix_queries": stats.prefix_cache_stats.queries if stats else None,
                "prefix_hits": stats.prefix_cache_stats.hits if stats else None,
            }
        )
    return steps


if __name__ == "__main__":
    init_none_hash(sha256)
    json.dump([steps_of(asked) for asked in json.load(sys.stdin)], sys.stdout)
