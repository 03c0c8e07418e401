"""The simulator's settings: what a step costs, what fits into one, what the server calls itself. Values only."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SimulatorSettings(BaseModel):
    """How the simulated server is configured; the names are vLLM's where vLLM has one.

    A step lasts `step_overhead_ms + prefill tokens · prefill_time_per_token_ms`, and, when any sequence decodes in it,
    `+ decode_base_ms + decoding sequences · decode_time_per_seq_ms`.

    With the defaults one stream gets 100 tok/s, sixteen get 1000 tok/s together, and 128 prompt tokens on an idle
    server take 33.6 ms to the first token.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    served_model_name: str = Field("sim", min_length=1)
    max_num_seqs: int = Field(16, ge=1)
    """Sequences in one step; the others wait in order of arrival."""
    max_num_batched_tokens: int = Field(2048, ge=1)
    """Tokens in one step: one for every decoding sequence, the rest for prompts."""
    max_model_len: int = Field(8192, ge=2)
    """Prompt and output tokens of one request together."""
    seed: int = 0
    """Changes the replies' words and their natural lengths, never their timing."""
    step_overhead_ms: float = Field(8.0, ge=0)
    prefill_time_per_token_ms: float = Field(0.2, ge=0)
    decode_base_ms: float = Field(1.6, ge=0)
    decode_time_per_seq_ms: float = Field(0.4, ge=0)
    stream: bool = True
    """False: a stream request is answered with plain JSON, as by a server that does not stream."""

    @model_validator(mode="after")
    def _check_batch(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): every decoding sequence needs one token of the step"
            )
        if self.step_ns(prefill_tokens=0, decoding=1) == 0 or self.step_ns(prefill_tokens=1, decoding=0) == 0:
            raise ValueError("a step must take time: give step_overhead_ms a value above 0")
        return self

    def step_ns(self, *, prefill_tokens: int, decoding: int) -> int:
        """Nanoseconds of a step with so many prompt tokens and decoding sequences."""
        step_ms = self.step_overhead_ms + prefill_tokens * self.prefill_time_per_token_ms
        if decoding:
            step_ms += self.decode_base_ms + decoding * self.decode_time_per_seq_ms
        return round(step_ms * 1e6)
