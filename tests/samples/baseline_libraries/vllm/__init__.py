"""An LLM that takes 2 ms for a prompt of any length and 1 ms for each further token, however many there are at once."""

import os
import signal
import sys
import time
from types import SimpleNamespace

__version__ = "9.9.fake"

PREFILL_S = 0.002
TOKEN_S = 0.001


class SamplingParams:
    def __init__(self, **given):
        assert given["ignore_eos"] and given["min_tokens"] == given["max_tokens"], given
        self.tokens = given["max_tokens"]


class LLM:
    def __init__(self, **engine):
        self.how = os.environ["FAKE_VLLM"]
        if self.how == "memory":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if self.how == "engine":
            print("ValueError: the moon is in the wrong quarter", file=sys.stderr)
            raise RuntimeError("Engine core initialization failed. See root cause above.")
        print("half a line without an end", end="", flush=True)
        model = SimpleNamespace(
            dtype="torch.bfloat16",
            quantization=engine.get("quantization"),
            max_model_len=engine["max_model_len"],
            enforce_eager=engine.get("enforce_eager", False),
            get_vocab_size=lambda: 1000,
        )
        scheduler = SimpleNamespace(max_num_seqs=engine["max_num_seqs"], max_num_batched_tokens=2048)
        cache = SimpleNamespace(cache_dtype="auto", enable_prefix_caching=engine["enable_prefix_caching"])
        config = SimpleNamespace(
            model_config=model, scheduler_config=scheduler, cache_config=cache, speculative_config=None
        )
        self.llm_engine = SimpleNamespace(vllm_config=config)
        self.seen = set()

    def generate(self, prompts, params, use_tqdm):
        if self.how == "hang":
            time.sleep(600)
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        rows = [tuple(one["prompt_token_ids"]) for one in prompts]
        assert len(set(rows)) == len(rows) and not self.seen & set(rows), "a prompt that was seen before"
        self.seen |= set(rows)
        time.sleep(PREFILL_S + TOKEN_S * (params.tokens - 1))
        made = params.tokens - (self.how == "short" and params.tokens > 1)
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1] * made)]) for _ in prompts]
