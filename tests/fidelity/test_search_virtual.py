"""The search in virtual time against the simulator's arithmetic: the capacity is found, and within the interval that is told."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from loadgen.search.answer import search_answers
from loadgen.search.search import Search
from loadgen.stats.capacity import capacities
from server.simulator.capacity import capacity, steady_state
from server.simulator.settings import SimulatorSettings
from tests.fidelity.test_capacity_virtual import SHAPE, of_arrivals, of_users, true_rate


def searched(search: Search, measure: Callable[[float, int], dict[str, Any]]) -> list[dict[str, Any]]:
    levels: list[dict[str, Any]] = []
    while (load := search.next(levels)) is not None:
        levels.append(measure(load, len(levels)))
    return levels


def found(levels: list[dict[str, Any]], truth: float) -> tuple[bool, bool]:
    """(whether the estimate is within 5 %, whether the interval holds the truth)."""
    (entry,) = capacities(levels)
    low, high = entry["interval"]
    near = entry["estimate"] is not None and math.isclose(entry["estimate"], truth, rel_tol=0.05)
    return near, (low or 0) <= truth <= (high or math.inf)


@pytest.mark.parametrize("users", [20])
def test_the_most_users_are_found_in_9_of_10_seeds(users: int) -> None:
    per_token_s = [steady_state(SimulatorSettings(max_num_seqs=64), SHAPE, users + more).tpot_s for more in (0, 1)]
    limit_ms = 500 * sum(one or 0.0 for one in per_token_s)
    truth = capacity(SimulatorSettings(max_num_seqs=64), SHAPE, tpot_s=limit_ms / 1000).slo
    assert truth is not None and truth.concurrency == users
    search = Search(users=True, first=8, least=1, most=1024)
    results = []
    for seed in range(10):
        settings = SimulatorSettings(max_num_seqs=64, step_noise=0.1, seed=seed)

        def measure(
            load: float, number: int, settings: SimulatorSettings = settings, seed: int = seed
        ) -> dict[str, Any]:
            # The limit lies in the middle between two numbers of users.
            return of_users(
                round(load), settings, slo={"tpot_p50": limit_ms}, number=number, phase=(7 * seed + number) % 20
            )

        levels = searched(search, measure)
        assert len(levels) <= 18
        results.append(found(levels, users + 0.5))
    assert sum(near for near, _ in results) >= 9, results
    assert sum(inside for _, inside in results) >= 9, results


def test_the_highest_rate_is_found_within_5_percent_and_within_its_interval_in_9_of_10_seeds() -> None:
    search = Search(users=False, first=10, least=0.01, most=1000)
    results = []
    for seed in range(10):

        def measure(load: float, number: int, seed: int = seed) -> dict[str, Any]:
            return of_arrivals(load, seed=seed, number=number, window_s=60)

        levels = searched(search, measure)
        assert len(levels) <= 18
        (entry,) = search_answers(levels, search)
        assert entry["end"] in ("resolved", "undecided")
        results.append(found(levels, true_rate()))
    assert sum(near for near, _ in results) >= 9, results
    assert sum(inside for _, inside in results) >= 9, results
