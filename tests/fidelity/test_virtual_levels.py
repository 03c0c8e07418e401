"""Levels in virtual time: what the statistics say equals what the simulator's settings imply, worked out by hand here.

Users of one length that begin together stay together: they are prefilled in one step, decode in step, and begin again.
So every figure has a closed form. With m places and c users, P prompt and N output tokens:

    TTFT of those that get a place at once   a = overhead + P · min(c, m) · prefill time       (one step)
    a token afterwards                       d = overhead + decode base + min(c, m) · decode time
    one round                                S = a + (N − 1) · d, in which min(c, m) requests are served

Beyond m places the others wait for whole rounds: throughput stays at m · N / S, and E2E follows from Little's law.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.record import LevelPlan, RequestRecord
from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader, in_controllers_clock
from loadgen.spool import SpoolWriter, encode_records
from loadgen.stats.level import level_object
from loadgen.virtual import closed_loop
from server.simulator.settings import SimulatorSettings

MS = 1_000_000
# Two contrasting profiles: a figure that is scaled or shifted cannot pass both.
DECODE_BOUND = SimulatorSettings()
PREFILL_BOUND = SimulatorSettings(
    max_num_seqs=8,
    max_num_batched_tokens=16_384,
    step_overhead_ms=3,
    prefill_time_per_token_ms=0.05,
    decode_base_ms=4,
    decode_time_per_seq_ms=1.1,
)


@dataclass(frozen=True)
class Truth:
    """The closed form above; milliseconds."""

    settings: SimulatorSettings
    users: int
    input_tokens: int
    output_tokens: int

    @property
    def served(self) -> int:
        return min(self.users, self.settings.max_num_seqs)

    @property
    def prefill_ms(self) -> float:
        assert self.served * self.input_tokens <= self.settings.max_num_batched_tokens, "they fit into one step"
        return (
            self.settings.step_overhead_ms + self.served * self.input_tokens * self.settings.prefill_time_per_token_ms
        )

    @property
    def token_ms(self) -> float:
        s = self.settings
        return s.step_overhead_ms + s.decode_base_ms + self.served * s.decode_time_per_seq_ms

    @property
    def round_ms(self) -> float:
        return self.prefill_ms + (self.output_tokens - 1) * self.token_ms

    @property
    def request_rate(self) -> float:
        return 1000 * self.served / self.round_ms

    @property
    def e2e_ms(self) -> float:
        """Mean, by Little's law."""
        return 1000 * self.users / self.request_rate


PROFILES = {
    "decode-bound": (DECODE_BOUND, 128, 100),
    "prefill-bound": (PREFILL_BOUND, 1000, 40),
}


def measured(truth: Truth, *, rounds: int = 12) -> tuple[LevelPlan, list[RequestRecord]]:
    """A window of whole rounds, after two for the start and with two for the drain.

    Instants at which a round ends belong to the next one, so the window begins and ends a moment after them.
    """
    round_ns = round(truth.round_ms * MS)
    # Whole cycles: after c rounds (at most) every user has had its turn equally often.
    records = closed_loop(
        truth.settings,
        concurrency=truth.users,
        input_tokens=truth.input_tokens,
        output_tokens=truth.output_tokens,
        duration_ns=(rounds + 6) * round_ns,
        start_ns=0,
    )
    start_ns = 3 * round_ns + 1
    plan = LevelPlan(
        level=0,
        concurrency=truth.users,
        window_start_ns=start_ns,
        window_end_ns=start_ns + rounds * round_ns,
        drained_ns=(rounds + 6) * round_ns,
    )
    return plan, records


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("share", [1, 4, 16])
def test_up_to_max_num_seqs_every_figure_is_the_settings_arithmetic(profile: str, share: int) -> None:
    settings, input_tokens, output_tokens = PROFILES[profile]
    truth = Truth(settings, min(share, settings.max_num_seqs), input_tokens, output_tokens)
    plan, records = measured(truth)
    level = level_object(plan, records, [])
    # Steps are rounded to whole nanoseconds; nothing else may differ.
    exact = {"rel": 1e-6}
    assert level["output_throughput"] == pytest.approx(truth.request_rate * output_tokens, **exact)
    assert level["input_throughput"] == pytest.approx(truth.request_rate * input_tokens, **exact)
    assert level["completed_request_rate"] == pytest.approx(truth.request_rate, **exact)
    assert level["served_request_rate"] == pytest.approx(truth.request_rate, **exact)
    assert level["sent_request_rate"] == pytest.approx(truth.request_rate, **exact)
    assert level["achieved_concurrency"] == pytest.approx(truth.users, **exact)
    for percentile in ("p50", "p95", "max"):
        assert level[f"{percentile}_ttft_ms"] == pytest.approx(truth.prefill_ms, **exact)
        assert level[f"{percentile}_tpot_ms"] == pytest.approx(truth.token_ms, **exact)
        assert level[f"{percentile}_itl_ms"] == pytest.approx(truth.token_ms, **exact)
        assert level[f"{percentile}_e2el_ms"] == pytest.approx(truth.round_ms, **exact)
    assert level["n_ttft"] == 12 * truth.users
    assert level["n_itl"] == 12 * truth.users * (output_tokens - 1)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("crowding", [1.5, 2, 3])
def test_beyond_max_num_seqs_only_the_queue_grows(profile: str, crowding: float) -> None:
    settings, input_tokens, output_tokens = PROFILES[profile]
    truth = Truth(settings, round(crowding * settings.max_num_seqs), input_tokens, output_tokens)
    plan, records = measured(truth)
    level = level_object(plan, records, [])
    exact = {"rel": 1e-6}
    assert level["output_throughput"] == pytest.approx(truth.request_rate * output_tokens, **exact)
    assert level["request_throughput"] == pytest.approx(truth.request_rate, **exact)
    assert level["achieved_concurrency"] == pytest.approx(truth.users, **exact)
    assert level["p50_tpot_ms"] == level["p95_tpot_ms"] == pytest.approx(truth.token_ms, **exact)
    assert level["mean_e2el_ms"] == pytest.approx(truth.e2e_ms, **exact)
    # Who ends a round waits for the users before it in the queue: a whole number of rounds.
    waits = {0, 1} if crowding == 1.5 else {crowding - 1}
    assert {round((ms - truth.prefill_ms) / truth.round_ms, 6) for ms in ttfts_ms(plan, records)} == waits
    assert level["mean_ttft_ms"] == pytest.approx(truth.prefill_ms + (crowding - 1) * truth.round_ms, **exact)


def ttfts_ms(plan: LevelPlan, records: list[RequestRecord]) -> list[float]:
    return [
        (r.first_token_ns - r.sent_ns) / MS
        for r in records
        if r.status == "ok"
        and r.first_token_ns is not None
        and r.sent_ns is not None
        and plan.window_start_ns <= r.sent_ns < plan.window_end_ns
    ]


@pytest.mark.parametrize("users", [3, 11, 16, 40])
def test_spread_users_obey_littles_law_and_the_settings_bounds(users: int) -> None:
    records = closed_loop(
        DECODE_BOUND,
        concurrency=users,
        input_tokens=64,
        output_tokens=100,
        duration_ns=110_000 * MS,
        start_ns=0,
        ramp_ns=2_000 * MS,
    )
    plan = LevelPlan(
        level=0, concurrency=users, window_start_ns=15_000 * MS, window_end_ns=95_000 * MS, drained_ns=110_000 * MS
    )
    level = level_object(plan, records, [])
    truth = Truth(DECODE_BOUND, users, 64, 100)
    assert level["achieved_concurrency"] == pytest.approx(users, rel=1e-9)
    # A window cuts some requests at both ends: one generation in the window's length is at stake.
    assert level["request_throughput"] * level["mean_e2el_ms"] / 1000 == pytest.approx(users, rel=0.03)
    assert level["output_throughput"] == pytest.approx(100 * level["request_throughput"], rel=0.03)
    # Together or spread, the work is the same but for one overhead a prompt.
    alone = truth.served * 64 * DECODE_BOUND.prefill_time_per_token_ms + 99 * truth.token_ms
    most = truth.served * (64 * DECODE_BOUND.prefill_time_per_token_ms + DECODE_BOUND.step_overhead_ms)
    slowest, fastest = most + 99 * truth.token_ms, alone
    assert 100_000 * truth.served / slowest <= level["output_throughput"] <= 100_000 * truth.served / fastest
    assert level["p50_ttft_ms"] >= DECODE_BOUND.step_ns(prefill_tokens=64, decoding=0) / MS


def spooled(folder: RunFolder, plan: LevelPlan, records: list[RequestRecord], workers: int) -> None:
    """Writes the records as `workers` workers would, each by its own clock, in blocks of its own size."""
    offsets_ns = {worker: worker * 3_600_000 * MS for worker in range(workers)}
    for worker, offset_ns in offsets_ns.items():
        writer = SpoolWriter(folder.spool(worker))
        # The user is numbered on its worker, and seen by the worker's own clock.
        mine = [
            in_controllers_clock(replace(r, worker=worker, user=r.user // workers), -offset_ns)
            for r in records
            if r.user % workers == worker
        ]
        size = 7 + 10 * worker
        for begin in range(0, len(mine), size):
            writer.append(encode_records(mine[begin : begin + size]))
        writer.close()
    folder.note_level(replace(plan, workers=workers), offsets_ns)


def figures(level: dict[str, Any]) -> dict[str, Any]:
    """Everything that the number of workers must not change; floats to twelve digits: sums depend on their order."""

    def to_digits(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.12g}")
        if isinstance(value, dict):
            return {key: to_digits(one) for key, one in value.items()}
        return [to_digits(one) for one in value] if isinstance(value, list) else value

    return {key: to_digits(value) for key, value in level.items() if key not in ("workers", "warnings")}


@pytest.mark.parametrize("users", [4, 16, 24])
def test_one_two_or_three_workers_give_the_same_level(users: int, tmp_path: Path) -> None:
    plan, records = measured(Truth(DECODE_BOUND, users, 128, 100))
    slo = {"ttft_p95": 400.0, "tpot_p95": 15.0}
    expected = level_object(plan, records, [], slo=slo)
    assert expected["requests"]["ok"] > 40
    for workers in (1, 2, 3):
        folder = RunFolder.create(tmp_path / str(workers), scenario_yaml="", nonce="")
        spooled(folder, plan, records, workers)
        (data,) = RunReader(folder).all()
        level = level_object(data.plan, data.records, data.health, slo=slo)
        assert level["workers"] == workers
        assert figures(level) == figures(expected)


def test_the_order_of_the_records_does_not_matter() -> None:
    plan, records = measured(Truth(PREFILL_BOUND, 12, 1000, 40))
    expected = figures(level_object(plan, records, []))
    shuffled = list(records)
    for seed in range(5):
        random.Random(seed).shuffle(shuffled)
        assert figures(level_object(plan, shuffled, [])) == expected
