"""How long a step lasts: takes what is in it, gives nanoseconds; by the linear formula or by the roofline. No clock.

Roofline: `engine_overhead_ms + sequences · engine_overhead_per_seq_ms` and the longer of moving (weights once, KV of
every sequence) at `bandwidth_share` of the bandwidth and computing at `flops_share` of the peak. A prompt's tokens and
the decoding sequences share the step, and so its weights: chunked prefill.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import NamedTuple

from server.roofline import Gpu, Model, bytes_per_step, flops_per_step, step_s
from server.simulator.settings import SimulatorSettings


class StepWork(NamedTuple):
    """What a step computes."""

    decoding: int
    """Sequences that get tokens after their first."""
    drafted: int
    """Tokens that are checked beside those, of all sequences together."""
    context_tokens: int
    """Lengths of the decoding sequences together, the token that is computed included."""
    prefill_tokens: int = 0
    prefill_context: int = 0
    """Tokens of the prompts under way whose KV was there already."""
    prefill_pairs: float = 0
    """Pairs of a prompt token and one that it looks back at (`roofline.prompt_pairs`)."""
    prompts_done: int = 0
    """Prompts that are complete with this step, so that it gives their first token."""


class StepTime:
    """The length of each step, in order: warm-up counts them, noise draws once for each."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self._planned_ns = planned_step_ns(settings)
        self._noise = settings.step_noise
        # A factor of mean 1 whose standard deviation is the noise.
        self._sigma = math.sqrt(math.log1p(settings.step_noise**2))
        self._draw = random.Random(settings.seed)
        self._warmup_steps = settings.warmup_steps
        self._warmup_factor = settings.warmup_factor
        self._steps = 0

    def ns(self, work: StepWork) -> int:
        """Nanoseconds of the next step."""
        duration_ns = self._planned_ns(work)
        if self._steps < self._warmup_steps:
            cold = 1 - self._steps / self._warmup_steps
            duration_ns = round(duration_ns * (1 + (self._warmup_factor - 1) * cold))
            self._steps += 1
        if self._noise:
            factor = self._draw.lognormvariate(-self._sigma * self._sigma / 2, self._sigma)
            duration_ns = max(1, round(duration_ns * factor))
        return duration_ns


def planned_step_ns(settings: SimulatorSettings) -> Callable[[StepWork], int]:
    """Nanoseconds of a step by its work alone: neither warm-up nor noise."""
    if settings.roofline is None:
        return lambda work: settings.step_ns(prefill_tokens=work.prefill_tokens + work.drafted, decoding=work.decoding)
    model, gpu = settings.roofline
    attained = Gpu(
        gpu.name,
        gpu.bandwidth_bytes_s * settings.bandwidth_share,
        gpu.flops_s * settings.flops_share,
        gpu.memory_bytes,
    )

    def roofline_ns(work: StepWork) -> int:
        sequences = work.decoding + work.prompts_done
        overhead_ms = settings.engine_overhead_ms + sequences * settings.engine_overhead_per_seq_ms
        return max(1, round(overhead_ms * 1e6 + roofline_s(model, attained, work) * 1e9))

    return roofline_ns


def roofline_s(model: Model, gpu: Gpu, work: StepWork) -> float:
    """Least seconds of a step on these figures; a drafted token looks back as far as the one that it follows."""
    checked = work.decoding + work.drafted
    per_sequence = checked / work.decoding if work.decoding else 1.0
    tokens = checked + work.prefill_tokens
    return step_s(
        gpu,
        moved_bytes=bytes_per_step(model, tokens=tokens, context_tokens=work.context_tokens + work.prefill_context),
        flops=flops_per_step(
            model,
            tokens=tokens,
            attended=work.context_tokens * per_sequence + work.prefill_pairs,
            sampled=checked + work.prompts_done,
        ),
    )
