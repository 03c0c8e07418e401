"""What a prompt takes of a server is told by a lightly loaded level, and by none else."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.stats.prefill import prefill_cost
from tests.public_sweeps import written_level


def level(number: int, users: float, ttft_ms: float, rps: float, **fields: Any) -> dict[str, Any]:
    made = written_level(number, users, 64 * rps, ttft_ms, 10)
    return {
        **made,
        "valid": True,
        "achieved_concurrency": users,
        "served_request_rate": rps,
        "p50_ttft_ms": ttft_ms,
        "p50_tpot_ms": 10.0,
        **fields,
    }


def test_lightest_level_tells_the_prefill_and_not_the_token_after_it() -> None:
    cost = prefill_cost([level(0, 16, 106.7, 11), level(1, 1, 33.6, 1.5)])
    assert cost.ms == pytest.approx(23.6)
    assert cost.why_unknown is None


def test_sweep_without_a_light_level_tells_no_prefill_and_names_the_remedy() -> None:
    cost = prefill_cost([level(0, 16, 106.7, 11), level(1, 32, 137.2, 14)])
    assert cost.ms is None
    assert cost.why_unknown is not None and "no lightly loaded level" in cost.why_unknown
    assert "add concurrency 1" in cost.why_unknown
    invalid = prefill_cost([level(0, 1, 33.6, 1.5, valid=False), level(1, 32, 137.2, 14)])
    assert invalid.ms is None


def test_prefill_that_would_take_more_than_all_of_the_time_is_not_believed() -> None:
    cost = prefill_cost([level(0, 1, 110, 1.5), level(1, 32, 137.2, 14)])
    assert cost.ms is None
    assert cost.why_unknown is not None and "140% of the server's time" in cost.why_unknown


def test_levels_are_light_for_each_engine() -> None:
    engines = {"server_metrics": {"engines": 4}}
    assert prefill_cost([level(0, 4, 33.6, 6, **engines)]).ms == pytest.approx(23.6)
