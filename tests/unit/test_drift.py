"""A sweep whose first level is repeated at its end tells whether anything but the load changed meanwhile."""

from __future__ import annotations

from typing import Any

from loadgen.stats.answers import answers
from loadgen.stats.drift import drifts
from tests.public_sweeps import written_level


def level(number: int, users: int, ttft: float, **fields: Any) -> dict[str, Any]:
    bounds = {"p95_ttft_ms": [0.97 * ttft, 1.03 * ttft]}
    made = written_level(number, users, 50 * users, ttft, 10, slo={"ttft_p95": 500.0}, intervals=bounds)
    return {**made, "run": 0, "interrupted": False, **fields}


def test_a_change_beyond_both_intervals_is_drift_and_is_said_with_its_numbers() -> None:
    levels = [level(0, 4, 100), level(1, 8, 120), level(2, 4, 130)]
    (entry,) = drifts(levels)
    assert (entry["first"], entry["last"], entry["drifted"]) == (0, 2, ["p95_ttft_ms"])
    assert "DRIFT between first and last: concurrency 4 gave TTFT P95 100 → 130 (+30.0%)" in entry["text"]
    assert answers(levels)["drift"] == [entry]


def test_a_change_within_the_intervals_or_below_5_percent_is_none() -> None:
    (within,) = drifts([level(0, 4, 100), level(1, 8, 120), level(2, 4, 106)])
    assert within["drifted"] == [] and within["text"].startswith("None: concurrency 4")
    narrow = {"intervals": {"p95_ttft_ms": [99.9, 100.1]}}
    (small,) = drifts([level(0, 4, 100, **narrow), level(1, 8, 120), level(2, 4, 104)])
    assert small["drifted"] == []


def test_other_sweeps_and_an_invalid_end_say_nothing() -> None:
    assert drifts([level(0, 4, 100), level(1, 8, 120)]) == []
    assert drifts([level(0, 4, 100), level(1, 4, 120)]) == []
    repeated = [level(0, 4, 100), level(1, 8, 120), level(2, 4, 130, run=1), level(3, 8, 130, run=1)]
    assert drifts(repeated) == []
    (entry,) = drifts([level(0, 4, 100), level(1, 8, 120), level(2, 4, 130, valid=False)])
    assert entry["drifted"] == [] and entry["text"].startswith("Not known")


def test_each_setting_has_its_own() -> None:
    levels = [
        level(3 * n + k, users, 100 * (1 + n * k), server={"max_num_seqs": 2 + 2 * n})
        for n in range(2)
        for k, users in enumerate((4, 8, 4))
    ]
    first, second = drifts(levels)
    assert (first["drifted"], second["drifted"]) == ([], ["p95_ttft_ms"])
    assert "max_num_seqs 4" in second["text"]
