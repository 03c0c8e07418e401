"""`generate` of transformers, timed token by token: prompts of random ids, greedy, as many tokens as asked whatever they are.

Called with one JSON object: model, dtype, device, attention, input_tokens, output_tokens, batch, passes, seed.
"""

import platform
import time
from typing import Any

from told import devices, prompt_ids, run, tell  # type: ignore[import-not-found]


def measure(asked: dict[str, Any]) -> None:
    import torch  # type: ignore[import-not-found]
    import transformers
    from transformers import AutoModelForCausalLM
    from transformers.generation.streamers import BaseStreamer

    class Stamps(BaseStreamer):  # type: ignore[misc]
        """The instant of each step; `generate` gives the prompt first, then each step's tokens once they are on the host."""

        def __init__(self) -> None:
            self.at_ns: list[int] = []

        def put(self, value: Any) -> None:
            self.at_ns.append(time.perf_counter_ns())

        def end(self) -> None:
            pass

    kind, gpus = devices(torch)
    device = kind if asked["device"] == "auto" else asked["device"]
    release = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    how = {"dtype" if release >= (4, 56) else "torch_dtype": asked["dtype"]}
    if asked["attention"] is not None:
        how["attn_implementation"] = asked["attention"]
    began_ns = time.perf_counter_ns()
    model = AutoModelForCausalLM.from_pretrained(asked["model"], **how).to(device).eval()
    loaded_ns = time.perf_counter_ns()
    config = model.config
    method = getattr(config, "quantization_config", None)
    method = getattr(method, "quant_method", None) or (method.get("quant_method") if isinstance(method, dict) else None)
    text = config.get_text_config()
    tell(
        "loaded",
        load_s=(loaded_ns - began_ns) / 1e9,
        versions={
            "python": platform.python_version(),
            "transformers": transformers.__version__,
            "torch": torch.__version__,
        },
        effective={
            "dtype": str(model.dtype).removeprefix("torch."),
            "quantization": None if method is None else str(getattr(method, "value", method)),
            "parameters": model.num_parameters(),
            "weight_bytes": model.get_memory_footprint(),
            "device": str(model.device),
            "gpus": gpus if model.device.type == "cuda" else [],
            "threads": torch.get_num_threads(),
            "attention": getattr(config, "_attn_implementation", None),
            "cuda_graphs": False,
            "prefix_caching": False,
        },
    )
    wanted = asked["output_tokens"]
    for number in range(asked["passes"]):
        rows = [
            prompt_ids(text.vocab_size, asked["input_tokens"], asked["seed"], number, row)
            for row in range(asked["batch"])
        ]
        ids = torch.tensor(rows, device=model.device)
        stamps = Stamps()
        began_ns = time.perf_counter_ns()
        with torch.inference_mode():
            made = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=wanted,
                min_new_tokens=wanted,
                pad_token_id=0,
                streamer=stamps,
            )
        _, *steps = stamps.at_ns
        tell(
            "pass",
            output_tokens=int(made.shape[0] * (made.shape[1] - ids.shape[1])),
            prefill_s=(steps[0] - began_ns) / 1e9,
            total_s=(steps[-1] - began_ns) / 1e9,
        )
    tell("done")


if __name__ == "__main__":
    run(measure)
