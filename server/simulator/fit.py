"""Finds the step times of a real server: takes levels of a closed loop, gives the settings that make the simulator alike.

Who runs in a step does not depend on how long it takes, so every mean latency of `capacity` is a sum of the four step
times, each with a known factor. The step times are those with the least squares of the relative errors, none below 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.simulator.capacity import LoadShape, steady_state
from server.simulator.settings import SimulatorSettings

STEP_TIMES = ("step_overhead_ms", "prefill_time_per_token_ms", "decode_base_ms", "decode_time_per_seq_ms")


@dataclass(frozen=True, slots=True)
class Measured:
    """A level of constant lengths at a server without a queue: means of its requests."""

    concurrency: int
    input_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float


def fitted(settings: SimulatorSettings, levels: Sequence[Measured]) -> SimulatorSettings:
    """`settings` with the step times that fit the levels best.

    Levels need users of one and of several, since a single one cannot tell what a sequence adds. Raises ValueError for
    fewer than two levels, and for one with more users than places: its latencies are those of a queue.
    """
    if len(levels) < 2:
        raise ValueError(f"at least two levels are needed, got {len(levels)}")
    queued = [level.concurrency for level in levels if level.concurrency > settings.max_num_seqs]
    if queued:
        raise ValueError(f"levels with more users than max_num_seqs={settings.max_num_seqs} have a queue: {queued}")
    rows = [row for level in levels for row in _equations(settings, level)]
    times_ms = _least_squares(np.array([factors for factors, _ in rows]), np.array([value for _, value in rows]))
    return settings.model_copy(update=dict(zip(STEP_TIMES, map(float, times_ms), strict=True)))


def _equations(settings: SimulatorSettings, level: Measured) -> Iterator[tuple[NDArray[np.float64], float]]:
    """Factors of the step times and what they sum up to, for TTFT and TPOT, both as shares of what was measured."""
    load = LoadShape(level.input_tokens, level.output_tokens, late_steps=1)

    def latencies_s(times_ms: dict[str, float]) -> NDArray[np.float64]:
        state = steady_state(settings.model_copy(update=times_ms), load, level.concurrency)
        assert state.tpot_s is not None
        return np.array([state.ttft_s, state.tpot_s])

    ones = dict.fromkeys(STEP_TIMES, 1.0)
    plain = latencies_s(ones)
    factors = np.array([latencies_s({**ones, name: 2.0}) - plain for name in STEP_TIMES])
    for of_one, value in zip(factors.T, (level.ttft_s, level.tpot_s), strict=True):
        yield of_one / value, 1.0


def _least_squares(factors: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The solution without negative parts: what would be negative is left out, and the rest solved again."""
    kept = list(range(factors.shape[1]))
    while True:
        solution = np.zeros(factors.shape[1])
        solution[kept] = np.linalg.lstsq(factors[:, kept], values, rcond=None)[0]
        negative = [column for column in kept if solution[column] < 0]
        if not negative:
            return solution
        kept.remove(min(negative, key=lambda column: solution[column]))
