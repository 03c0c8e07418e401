"""How often the stationarity of a level is judged wrongly: false alarms on 500 seeds, changes of 20 % that are missed.

Every seed is another level: 1 to 48 users on 16 places, in lockstep or spread, lengths fixed or drawn, some with a tail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from loadgen.record import LevelPlan, RequestRecord
from loadgen.stats.stationarity import LEAST_DRIFT, MOST_P_VALUE, stationarity
from loadgen.virtual import closed_loop
from server.simulator.settings import SimulatorSettings
from tests.virtual_load import drawn_load

SECOND = 1_000_000_000
# Slow steps make few tokens, and so fast tests, of a window of the usual length.
SETTINGS = SimulatorSettings(
    step_overhead_ms=40, prefill_time_per_token_ms=1, decode_base_ms=8, decode_time_per_seq_ms=2
)


@dataclass(frozen=True)
class Case:
    """One random level; times in seconds."""

    users: int
    input_tokens: int
    output_tokens: int
    variation: float
    """Coefficient of variation of the output length; 0 is a fixed length."""
    lockstep: bool
    generation_s: float
    window_s: float

    @property
    def begin_s(self) -> float:
        return 3 * self.generation_s + 1


def case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    users = int(rng.choice([1, 2, 4, 7, 12, 16, 24, 32, 48]))
    input_tokens, output_tokens = int(rng.choice([8, 32, 64])), int(rng.choice([16, 32, 64]))
    served = min(users, SETTINGS.max_num_seqs)
    step_ns = SETTINGS.step_ns(prefill_tokens=0, decoding=served)
    alone_s = (output_tokens * step_ns + served * SETTINGS.step_ns(prefill_tokens=input_tokens, decoding=0)) / 1e9
    generation_s = alone_s * users / served
    variation = float(rng.choice([0, 0, 0.3, 1.0]))
    # As `loadgen.stats.window` would choose: 200 completions, and three times the P95 of a lognormal length.
    window_s = max(15.0, 200 * generation_s / users, 3 * generation_s * (1 + 1.7 * variation))
    return Case(users, input_tokens, output_tokens, variation, bool(rng.integers(2)), generation_s, window_s)


def drawn(rng: np.random.Generator, mean: int, variation: float) -> Callable[[], int]:
    if not variation:
        return lambda: mean
    sigma = float(np.sqrt(np.log(1 + variation**2)))
    return lambda: max(2, int(rng.lognormal(np.log(mean) - sigma**2 / 2, sigma)))


def judged(seed: int, change: str = "none", size: float = 0.2) -> dict[str, Any]:
    """The verdict on level `seed`, where `change` says what changes by `size` over its window."""
    at = case(seed)
    rng = np.random.default_rng(seed)
    outputs, inputs = drawn(rng, at.output_tokens, at.variation), drawn(rng, at.input_tokens, min(at.variation, 0.3))
    start_ns, window_ns = round(at.begin_s * SECOND), round(at.window_s * SECOND)
    begins_ns = [0 if at.lockstep else round(at.generation_s * SECOND * u / at.users) for u in range(at.users)]

    def progress(now_ns: int) -> float:
        return min(1.0, max(0.0, (now_ns - start_ns) / window_ns))

    if change == "ramp":
        late = max(1, round(size * at.users))
        for k in range(late):
            begins_ns[-1 - k] = start_ns + round(window_ns * (k + 0.5) / late)
    records = drawn_load(
        SETTINGS,
        begin_ns=begins_ns,
        lengths=lambda: (inputs(), outputs()),
        end_ns=start_ns + window_ns + round((at.generation_s * (1 + 8 * at.variation) + 1) * SECOND),
        slowness=(lambda now_ns: 1 / (1 - size * progress(now_ns))) if change == "leak" else (lambda now_ns: 1.0),
    )
    return stationarity(plan(start_ns, window_ns, at.users), records)


def plan(start_ns: int, window_ns: int, users: int) -> LevelPlan:
    return LevelPlan(level=0, concurrency=users, window_start_ns=start_ns, window_end_ns=start_ns + window_ns)


def drifting(change: str, seeds: range) -> list[int]:
    """Those of `seeds` whose level is judged to drift."""
    return [seed for seed in seeds if judged(seed, change)["drifting"]]


def test_false_alarms_on_500_stationary_levels_stay_below_the_nominal_rate() -> None:
    alarms = drifting("none", range(500))
    assert len(alarms) <= 500 * MOST_P_VALUE, alarms


def test_a_server_that_slows_by_20_percent_is_found_in_95_of_100_levels() -> None:
    found = drifting("leak", range(100))
    assert len(found) >= 95, sorted(set(range(100)) - set(found))


def test_a_fifth_of_the_users_arriving_in_the_window_is_found_in_95_of_100_levels() -> None:
    found = drifting("ramp", range(100))
    assert len(found) >= 95, sorted(set(range(100)) - set(found))


@pytest.mark.parametrize("users", [1, 4, 16, 24, 32])
@pytest.mark.parametrize("ramp_s", [0, 1])
def test_the_noiseless_closed_loop_raises_no_alarm_wherever_its_window_lies(users: int, ramp_s: int) -> None:
    settings = SimulatorSettings()
    records = closed_loop(
        settings,
        concurrency=users,
        input_tokens=64,
        output_tokens=64,
        duration_ns=50 * SECOND,
        start_ns=0,
        ramp_ns=ramp_s * SECOND,
    )
    for begin_ms in range(8_000, 12_000, 400):
        for window_ms in (15_000, 23_700, 33_000):
            found = stationarity(plan(begin_ms * 1_000_000, window_ms * 1_000_000, users), records)
            assert found["judged"]
            assert not found["drifting"], (begin_ms, window_ms, found)


def with_slow_first_tokens(
    records: list[RequestRecord], start_ns: int, window_ns: int, size: float
) -> list[RequestRecord]:
    """TTFT grows by `size` over the window; decoding takes the time away, so nothing else changes."""
    changed = []
    for r in records:
        assert r.first_token_ns is not None and r.sent_ns is not None
        grown = size * min(1.0, max(0.0, (r.sent_ns - start_ns) / window_ns))
        first_ns = r.first_token_ns + round((r.first_token_ns - r.sent_ns) * grown)
        arrivals_ns = np.maximum(r.arrivals_ns, first_ns)
        changed.append(replace(r, first_token_ns=first_ns, first_visible_ns=first_ns, arrivals_ns=arrivals_ns))
    return changed


@pytest.mark.parametrize("users", [2, 4, 16, 48])
def test_a_ttft_that_alone_grows_by_20_percent_is_found(users: int) -> None:
    start_ns, window_ns = 20 * SECOND, 60 * SECOND
    rng = np.random.default_rng(users)
    records = drawn_load(
        SimulatorSettings(max_num_seqs=64),
        begin_ns=[0] * users,
        lengths=lambda: (int(rng.integers(30, 35)), int(rng.integers(90, 110))),
        end_ns=90 * SECOND,
    )
    assert not stationarity(plan(start_ns, window_ns, users), records)["drifting"]
    found = stationarity(plan(start_ns, window_ns, users), with_slow_first_tokens(records, start_ns, window_ns, 0.2))
    assert found["drifting"]
    assert found["figure"] == "ttft"
    assert found["drift_per_window"] == pytest.approx(0.2 / 1.1, abs=0.07)


def test_the_drift_is_told_as_the_change_over_the_whole_window() -> None:
    leaks = [judged(seed, "leak", size=0.4) for seed in range(40)]
    throughput = [leak["figures"]["output_throughput"]["drift_per_window"] for leak in leaks]
    # 40 % of what it was at the start is half of the mean.
    assert np.median(throughput) == pytest.approx(-0.5, abs=0.05)
    assert all(leak["drifting"] for leak in leaks)
    assert {leak["figure"] for leak in leaks} <= {"output_throughput", "tpot", "ttft"}


def test_a_change_below_the_least_drift_does_not_matter() -> None:
    steps = [judged(seed, "leak", size=LEAST_DRIFT / 3) for seed in range(60)]
    assert sum(step["drifting"] for step in steps) <= 2
