"""The simulator's settings: what a step costs, what fits into one, what the server calls itself. Values only.

Their effect is elsewhere: `step_time` the length of a step, `engine` the scheduling, `kv_cache` the memory, `faults` what
goes wrong on demand.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from server.roofline import GIB, MEMORY_UTILIZATION, Gpu, Model, kv_capacity_tokens
from server.simulator.hardware import chosen_gpu, chosen_model

_RESERVED_BYTES = 1 * GIB
"""Of the GPU's memory: activations of a step and captured graphs."""


class SimulatorSettings(BaseModel):
    """How the simulated server is configured; the names are vLLM's where vLLM has one.

    A step lasts `step_overhead_ms + prefill tokens · prefill_time_per_token_ms`, and, when any sequence decodes in it,
    `+ decode_base_ms + decoding sequences · decode_time_per_seq_ms`; with a `simulated_model` and a `gpu` it lasts what
    the roofline of both says (`step_time`).

    With the defaults one stream gets 100 tok/s, sixteen get 1000 tok/s together, and 128 prompt tokens on an idle
    server take 33.6 ms to the first token.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    served_model_name: str = Field("sim", min_length=1, description="Name of the model.")
    max_num_seqs: int = Field(16, ge=1, description="Sequences in one step; the others wait in order of arrival.")
    max_num_batched_tokens: int = Field(
        2048, ge=1, description="Tokens in one step: those of the decoding sequences, the rest for prompts."
    )
    max_model_len: int = Field(8192, ge=2, description="Prompt and output tokens of one request together.")
    enable_chunked_prefill: bool = Field(
        True, description="A prompt that does not fit into a step goes on in the next one."
    )
    stream_interval: int = Field(1, ge=1, description="Tokens of an event, after the first event.")
    num_speculative_tokens: int = Field(0, ge=0, description="Tokens drafted for each sequence of a step.")
    speculative_acceptance_rate: float = Field(
        0.7, ge=0, le=1, description="Probability that a drafted token is right, if those before it are."
    )
    block_size: int = Field(16, ge=1, description="Tokens of a block of the KV cache.")
    num_gpu_blocks_override: int | None = Field(
        None, ge=2, description="Blocks of the KV cache; default: what memory allows, or enough for every sequence."
    )
    enable_prefix_caching: bool = Field(False, description="Full blocks of earlier prompts and replies are used again.")
    step_overhead_ms: float = Field(8.0, ge=0, description="Milliseconds of every step, whatever is in it.")
    prefill_time_per_token_ms: float = Field(
        0.2, ge=0, description="Milliseconds of a step for each prompt token, and for each drafted token."
    )
    decode_base_ms: float = Field(1.6, ge=0, description="Milliseconds of a step in which any sequence decodes.")
    decode_time_per_seq_ms: float = Field(
        0.4, ge=0, description="Milliseconds of a step for each sequence that decodes in it."
    )
    simulated_model: str | None = Field(
        None, description="A config.json, its folder, or a known name: with --gpu, steps take what its roofline says."
    )
    gpu: str | None = Field(None, description="A100-80GB, H100 or another known GPU; or give the three figures.")
    gpu_bandwidth_gb_s: float | None = Field(
        None, gt=0, description="Memory bandwidth of one GPU, 10^9 bytes a second."
    )
    gpu_tflops: float | None = Field(None, gt=0, description="Dense 16-bit 10^12 operations a second of one GPU.")
    gpu_memory_gib: float | None = Field(None, gt=0, description="Memory of one GPU, in GiB.")
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs that share every step.")
    gpu_memory_utilization: float = Field(
        MEMORY_UTILIZATION, gt=0, le=1, description="Share of the GPU's memory for weights and KV cache."
    )
    quantization: str | None = Field(None, description="fp8, int8, awq, gptq …: bytes of a weight.")
    weight_bytes_per_parameter: float | None = Field(None, gt=0, description="Bytes of a weight, whatever its name.")
    kv_cache_dtype: Literal["auto", "fp8"] = Field("auto", description="fp8: one byte a value.")
    bandwidth_share: float = Field(0.8, gt=0, le=1, description="Share of the bandwidth that a step attains.")
    flops_share: float = Field(0.5, gt=0, le=1, description="Share of the operations that a step attains.")
    engine_overhead_ms: float = Field(1.0, ge=0, description="Milliseconds of every step beside the roofline.")
    engine_overhead_per_seq_ms: float = Field(
        0.0, ge=0, description="Milliseconds of a step for each of its sequences, beside the roofline."
    )
    startup_delay_s: float = Field(0.0, ge=0, description="Seconds from the start until the port answers.")
    warmup_steps: int = Field(0, ge=0, description="Steps after the start that are slower.")
    warmup_factor: float = Field(4.0, ge=1, description="How many times as long the first of them takes; falls to 1.")
    step_noise: float = Field(0.0, ge=0, le=1, description="Spread of a step's length (coefficient of variation).")
    faults: str = Field("", description="What goes wrong, such as '429 share=0.1'; see docs/simulator.md.")
    seed: int = Field(0, description="Of replies, natural lengths, noise, acceptance and of whom a fault hits.")
    stream: bool = Field(True, description="False: a stream request is answered with plain JSON.")

    @model_validator(mode="after")
    def _check_batch(self) -> Self:
        per_sequence = 1 + self.num_speculative_tokens
        if self.max_num_batched_tokens < self.max_num_seqs * per_sequence:
            drafts = f" with {self.num_speculative_tokens} drafted tokens each" if self.num_speculative_tokens else ""
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}){drafts}: every decoding sequence needs its tokens of the step"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is smaller than max_model_len "
                f"({self.max_model_len}). This effectively limits the maximum sequence length to "
                "max_num_batched_tokens and makes vLLM reject longer sequences. Please increase "
                "max_num_batched_tokens or decrease max_model_len."
            )
        return self

    @model_validator(mode="after")
    def _check_time(self) -> Self:
        if self.roofline is not None:
            return self
        if self.step_ns(prefill_tokens=0, decoding=1) == 0 or self.step_ns(prefill_tokens=1, decoding=0) == 0:
            raise ValueError("a step must take time: give step_overhead_ms a value above 0")
        return self

    @model_validator(mode="after")
    def _check_memory(self) -> Self:
        longest = self.max_model_len + self.num_speculative_tokens
        if self.kv_blocks * self.block_size < longest:
            raise ValueError(
                f"To serve at least one request with the model's max seq len ({self.max_model_len}), the KV cache must "
                f"hold {longest} tokens, and it holds {self.kv_blocks * self.block_size}. Try increasing "
                "`gpu_memory_utilization` or `num_gpu_blocks_override`, or decreasing `max_model_len`"
            )
        return self

    @model_validator(mode="after")
    def _check_faults(self) -> Self:
        from server.simulator.faults import read_faults

        read_faults(self.faults)
        return self

    @cached_property
    def roofline(self) -> tuple[Model, Gpu] | None:
        """Model and GPU whose roofline times the steps; None: the linear formula does. ValueError for half of it."""
        model = chosen_model(
            self.simulated_model,
            quantization=self.quantization,
            weight_bytes_per_parameter=self.weight_bytes_per_parameter,
            kv_cache_dtype=self.kv_cache_dtype,
        )
        card = chosen_gpu(
            self.gpu,
            bandwidth_gb_s=self.gpu_bandwidth_gb_s,
            tflops=self.gpu_tflops,
            memory_gib=self.gpu_memory_gib,
            count=self.tensor_parallel_size,
        )
        if (model is None) != (card is None):
            missing = "simulated_model" if model is None else "gpu"
            raise ValueError(f"a roofline needs a model and a GPU: give {missing} too")
        return None if model is None or card is None else (model, card)

    @cached_property
    def num_gpu_blocks(self) -> int:
        """Blocks of the KV cache as vLLM counts them: one of them is never used."""
        if self.num_gpu_blocks_override is not None:
            return self.num_gpu_blocks_override
        if self.roofline is not None:
            tokens = kv_capacity_tokens(
                *self.roofline, memory_utilization=self.gpu_memory_utilization, reserved_bytes=_RESERVED_BYTES
            )
            return max(1, tokens // self.block_size)
        longest = self.max_model_len + self.num_speculative_tokens
        return self.max_num_seqs * -(-longest // self.block_size) + 1

    @property
    def kv_blocks(self) -> int:
        """Blocks that requests can have."""
        return self.num_gpu_blocks - 1

    def step_ns(self, *, prefill_tokens: int, decoding: int) -> int:
        """Nanoseconds of a step with so many prompt tokens and decoding sequences, by the linear formula."""
        step_ms = self.step_overhead_ms + prefill_tokens * self.prefill_time_per_token_ms
        if decoding:
            step_ms += self.decode_base_ms + decoding * self.decode_time_per_seq_ms
        return round(step_ms * 1e6)
