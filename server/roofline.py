"""What a step of a model costs on a GPU at best: takes figures of model, GPU and step, gives bytes, FLOPs, seconds. Pure.

A step moves every weight that it uses once, and the KV cache of every token that it looks back at, and it multiplies. It
cannot be faster than the slower of the two (S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009; the
counts for a transformer as in J. Kaplan et al., "Scaling Laws for Neural Language Models", 2020, section 2.1). All
figures err on the fast side: what is left out (activations, norms, sampling, communication) only adds time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GB = 1_000_000_000
GIB = 1 << 30
TERA = 1e12

MEMORY_UTILIZATION = 0.92
"""Share of a GPU's memory that vLLM takes for weights and KV cache by default: its gpu_memory_utilization (0.32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The figures of a decoder-only transformer that decide what a step costs."""

    parameters: int
    """All of them, whatever a token uses."""
    layers: int
    kv_heads: int
    head_size: int
    heads: int | None = None
    """Query heads; None: as many as KV heads."""
    hidden: int | None = None
    """Width of the residual stream; None: not known, nothing here needs it."""
    weight_bytes_per_parameter: float = 2.0
    """2 for FP16 and BF16, 1 for FP8 and INT8, about 0.56 for 4 bits with a scale for each 128 and a zero point."""
    kv_bytes_per_value: float = 2.0
    """2 for FP16 and BF16, 1 for an FP8 cache."""
    lookup_parameters: int = 0
    """Parameters of which a token reads a row only: the input embedding, when it is not the output head too."""
    head_parameters: int = 0
    """The output head, multiplied once for every token that is sampled, not for every token of a prompt."""
    experts: int = 0
    """Routed experts of a layer; 0: not a mixture of experts."""
    experts_per_token: int = 0
    expert_parameters: int = 0
    """Parameters of all routed experts of all layers."""
    latent_size: int | None = None
    """Values a layer keeps of a token where the cache is compressed (multi-head latent attention)."""

    @property
    def query_heads(self) -> int:
        """Query heads."""
        return self.kv_heads if self.heads is None else self.heads

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that the KV cache keeps of one token: key and value of every KV head of every layer."""
        if self.latent_size is not None:
            return self.layers * self.latent_size
        return 2 * self.layers * self.kv_heads * self.head_size

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that the KV cache keeps of one token."""
        return self.kv_values_per_token * self.kv_bytes_per_value

    @property
    def weight_bytes(self) -> float:
        """Bytes of memory that the weights take."""
        return self.parameters * self.weight_bytes_per_parameter

    @property
    def active_parameters(self) -> float:
        """Parameters that one token is multiplied with: without the rows it does not look up and experts not asked."""
        return self.parameters - self.lookup_parameters - self.expert_parameters * (1 - self._share(1))

    def parameters_read(self, tokens: float) -> float:
        """Parameters that a step with so many tokens reads; of experts those that at least one token asks for.

        Tokens choose evenly and independently: of E experts with k a token, E·(1 − (1 − k/E)^tokens) are read.
        """
        return self.parameters - self.lookup_parameters - self.expert_parameters * (1 - self._share(tokens))

    def _share(self, tokens: float) -> float:
        """Share of the experts that so many tokens ask for."""
        if not self.experts:
            return 1.0
        return float(1 - (1 - self.experts_per_token / self.experts) ** tokens)


@dataclass(frozen=True, slots=True)
class Gpu:
    """The figures of a GPU's data sheet: `flops_s` dense (not sparse), of 16-bit floats."""

    name: str
    bandwidth_bytes_s: float
    flops_s: float
    memory_bytes: float

    def times(self, count: int) -> Gpu:
        """So many of them as one (tensor parallel without the price of talking); ValueError below 1."""
        if count < 1:
            raise ValueError(f"at least one GPU is needed, got {count}")
        if count == 1:
            return self
        return replace(
            self,
            name=f"{count}x{self.name}",
            bandwidth_bytes_s=count * self.bandwidth_bytes_s,
            flops_s=count * self.flops_s,
            memory_bytes=count * self.memory_bytes,
        )


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        # NVIDIA's data sheets: A100 (2021), H100 (2023), H200 (2024), L4 (2023), L40S (2023).
        Gpu("A100-40GB", 1555 * GB, 312 * TERA, 40 * GIB),
        Gpu("A100-80GB", 2039 * GB, 312 * TERA, 80 * GIB),
        Gpu("A100-80GB-PCIe", 1935 * GB, 312 * TERA, 80 * GIB),
        Gpu("H100", 3350 * GB, 989.4 * TERA, 80 * GIB),
        Gpu("H100-PCIe", 2000 * GB, 756 * TERA, 80 * GIB),
        Gpu("H200", 4800 * GB, 989.4 * TERA, 141 * GB),
        Gpu("L4", 300 * GB, 121 * TERA, 24 * GIB),
        Gpu("L40S", 864 * GB, 362 * TERA, 48 * GIB),
    )
}
"""By name. `A100-80GB` and `H100` are the SXM modules."""


def gpu(name: str) -> Gpu:
    """A preset by its name in any case, `A100` being the one of 80 GB; ValueError names those that exist."""
    wanted = {"a100": "a100-80gb", "h100-sxm": "h100", "a100-80gb-sxm": "a100-80gb"}.get(name.lower(), name.lower())
    for known, figures in GPUS.items():
        if known.lower() == wanted:
            return figures
    raise ValueError(f"no figures of a GPU called {name!r}; known are {', '.join(GPUS)}")


def kv_bytes(model: Model, *, length: int, batch: int = 1) -> float:
    """Bytes of the KV cache of `batch` sequences of `length` tokens.

    2 · layers · KV heads · head size · length · batch · bytes of a value: 32 layers, 32 heads of 128, one sequence of
    2048 tokens in FP16 are 1,073,741,824 bytes.
    """
    return model.kv_bytes_per_token * length * batch


def bytes_per_step(model: Model, *, tokens: float, context_tokens: float) -> float:
    """Bytes moved by a step that computes `tokens` tokens and looks back at `context_tokens` of all sequences together.

    The weights once, however many tokens share them; the KV of the context; the KV written for the new tokens.
    """
    weights = model.parameters_read(tokens) * model.weight_bytes_per_parameter
    return weights + model.kv_bytes_per_token * (context_tokens + tokens)


def flops_per_step(model: Model, *, tokens: float, attended: float, sampled: float | None = None) -> float:
    """Floating-point operations of a step: two a parameter and token, and attention.

    `attended`: pairs of a token and one that it looks back at (a decoding sequence of length n adds n, a prompt of n
    tokens n·(n+1)/2); each costs 4 · layers · query heads · head size. `sampled`: tokens that the output head is
    applied to; None: all.
    """
    body = model.active_parameters - model.head_parameters
    head = model.head_parameters * (tokens if sampled is None else sampled)
    attention = 4 * model.layers * model.query_heads * model.head_size * attended
    return 2 * (body * tokens + head) + attention


def prompt_pairs(tokens: float, done: float = 0) -> float:
    """Pairs that `tokens` tokens of a prompt attend to when `done` tokens came before them: each sees all up to itself."""
    return tokens * done + tokens * (tokens + 1) / 2


def step_s(gpu: Gpu, *, moved_bytes: float, flops: float) -> float:
    """Least seconds of a step: moving and computing overlap perfectly."""
    return max(moved_bytes / gpu.bandwidth_bytes_s, flops / gpu.flops_s)


def multiplying(gpu: Gpu, model: Model) -> Gpu:
    """The GPU as fast as it may multiply these weights: two operations of 8 bits take the time of one of 16."""
    return gpu if model.weight_bytes_per_parameter > 1 else replace(gpu, flops_s=2 * gpu.flops_s)


def decode_step_s(model: Model, gpu: Gpu, *, batch: float, length: float, tokens_per_step: float = 1.0) -> float:
    """Least seconds of a step in which `batch` sequences, each `length` tokens long, get `tokens_per_step` tokens each.

    Of speculation only the tokens that count are computed here; those drafted in vain take more.
    """
    context = batch * length
    return step_s(
        multiplying(gpu, model),
        moved_bytes=bytes_per_step(model, tokens=batch, context_tokens=context),
        flops=flops_per_step(model, tokens=batch * tokens_per_step, attended=context * tokens_per_step),
    )


def decode_ceiling(model: Model, gpu: Gpu, *, batch: float, length: float, tokens_per_step: float = 1.0) -> float:
    """Most output tokens per second of `batch` sequences that are `length` tokens long on average, prompts left out.

    `tokens_per_step`: what a sequence gets of a step, above 1 with speculative decoding (`accepted_tokens`).
    """
    return (
        batch * tokens_per_step / decode_step_s(model, gpu, batch=batch, length=length, tokens_per_step=tokens_per_step)
    )


def prefill_ceiling(model: Model, gpu: Gpu, *, input_tokens: int) -> float:
    """Most prompt tokens per second for prompts of this length, computed and not taken from a cache.

    Many prompts may share one step, so the weights are not counted: only computing bounds it.
    """
    flops = flops_per_step(model, tokens=input_tokens, attended=prompt_pairs(input_tokens), sampled=1)
    return input_tokens * multiplying(gpu, model).flops_s / flops


def first_token_floor_s(model: Model, gpu: Gpu, *, input_tokens: int) -> float:
    """Least seconds to the first token of one prompt on an idle server, nothing of it cached."""
    return step_s(
        multiplying(gpu, model),
        moved_bytes=bytes_per_step(model, tokens=input_tokens, context_tokens=0),
        flops=flops_per_step(model, tokens=input_tokens, attended=prompt_pairs(input_tokens), sampled=1),
    )


def kv_capacity_tokens(
    model: Model, gpu: Gpu, *, memory_utilization: float = MEMORY_UTILIZATION, reserved_bytes: float = 0
) -> int:
    """Tokens whose KV fits beside the weights; 0 when the weights do not fit. `reserved_bytes`: activations, graphs."""
    left = gpu.memory_bytes * memory_utilization - model.weight_bytes - reserved_bytes
    return max(0, int(left // model.kv_bytes_per_token))


def accepted_tokens(draft_tokens: int, acceptance: float) -> float:
    """Tokens that a sequence gets of a step with speculative decoding: 1 + p + p² … + p^k.

    Each of k drafted tokens is right with probability p and counts only if all before it are (Y. Leviathan et al.,
    "Fast Inference from Transformers via Speculative Decoding", 2023, equation 1).
    """
    return sum(acceptance**n for n in range(draft_tokens + 1))
