"""Repeats of a sweep: median and spread of each level, and what an answer rests on when the repeats disagree."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.stats.answers import answers
from loadgen.stats.repeats import FIGURES, repeats
from tests.public_sweeps import written_level


def level(number: int, concurrency: int, tok_s: float, ttft_ms: float = 100.0, **changes: Any) -> dict[str, Any]:
    figures = dict.fromkeys(FIGURES, 1.0) | {"output_throughput": tok_s, "p95_ttft_ms": ttft_ms}
    base = written_level(number, concurrency, tok_s, ttft_ms, 10.0, slo={"ttft_p95": 200.0})
    return base | figures | changes


def test_a_sweep_run_once_has_no_repeats() -> None:
    assert repeats([level(0, 1, 10), level(1, 2, 20)]) is None


def test_median_and_spread_come_from_the_valid_runs() -> None:
    told = repeats([level(0, 4, 100), level(1, 4, 104), level(2, 4, 110), level(3, 4, 900, valid=False)])
    assert told is not None
    (group,) = told["groups"]
    assert (group["runs"], group["valid_runs"]) == (4, 3)
    figure = group["figures"]["output_throughput"]
    assert figure["median"] == 104
    assert figure["spread"] == pytest.approx(10 / 104)
    assert group["unstable"] == []


def test_a_spread_above_a_fifth_is_flagged_by_name() -> None:
    told = repeats([level(0, 4, 100, 100), level(1, 4, 101, 130)])
    assert told is not None
    assert told["groups"][0]["unstable"] == ["p95_ttft_ms"]
    assert "UNSTABLE: p95_ttft_ms" in told["text"]


def test_what_was_not_measured_has_no_spread_and_no_zero() -> None:
    told = repeats([level(0, 4, 100, p50_tpot_ms=None), level(1, 4, 100, p50_tpot_ms=None)])
    assert told is not None
    assert told["groups"][0]["figures"]["p50_tpot_ms"] == {"values": [], "median": None, "spread": None}


def test_one_missed_repeat_means_that_the_level_does_not_meet_the_slo() -> None:
    found = answers([level(0, 1, 10), level(1, 2, 20), level(2, 1, 10), level(3, 2, 20, ttft_ms=250)])
    assert found["highest_within_slo"]["concurrency"] == 1
    found = answers([level(0, 1, 10), level(1, 2, 20), level(2, 1, 10), level(3, 2, 20, ttft_ms=250, valid=False)])
    assert found["highest_within_slo"]["concurrency"] == 2
