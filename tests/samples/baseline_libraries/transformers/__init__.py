"""A model whose prompt takes 30 ms and each further token 2 ms, and which knows `dtype` only by its older name."""

import time
from types import SimpleNamespace

import torch

__version__ = "4.40.0"

PREFILL_S = 0.03
TOKEN_S = 0.002


class Model:
    dtype = "torch.float16"
    device = SimpleNamespace(type="cpu")
    config = SimpleNamespace(
        quantization_config={"quant_method": "gptq"}, get_text_config=lambda: SimpleNamespace(vocab_size=1000)
    )

    def to(self, device):
        assert device == "cpu"
        return self

    def eval(self):
        return self

    def num_parameters(self):
        return 7

    def get_memory_footprint(self):
        return 14

    def generate(self, ids, *, attention_mask, do_sample, max_new_tokens, min_new_tokens, pad_token_id, streamer):
        assert attention_mask.shape == ids.shape and not do_sample and max_new_tokens == min_new_tokens
        streamer.put(ids)
        time.sleep(PREFILL_S)
        streamer.put([1])
        for _ in range(max_new_tokens - 1):
            time.sleep(TOKEN_S)
            streamer.put([1])
        streamer.end()
        return torch.Tensor([row + [1] * max_new_tokens for row in ids.rows])


class AutoModelForCausalLM:
    @staticmethod
    def from_pretrained(name, *, torch_dtype):
        assert torch_dtype == "auto"
        return Model()
