"""The search for the highest load within the SLO: which load it asks for next, when it ends, and what it then says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from loadgen.search.answer import search_answers
from loadgen.search.search import EDGE_RUNS, INVALID_RUNS, MOST_RUNS, Search
from tests.public_sweeps import written_level

USERS = Search(users=True, first=1, least=1, most=1024)
RATES = Search(users=False, first=1, least=0.01, most=1000)
HELD, UNDECIDED, MISSED = (380, 400, 420), (470, 490, 520), (600, 650, 700)

Server = Callable[[float, int], Mapping[str, Any]]
"""What a load and the number of its run give: `ttft` (lower bound, value, upper bound), and further fields."""


def level(number: int, load: float, *, users: bool, ttft: tuple[float, float, float], **fields: Any) -> dict[str, Any]:
    low, value, high = ttft
    made = written_level(
        number,
        load,
        fields.pop("tok_s", 50 * load),
        value,
        10,
        slo={"ttft_p95": 500.0},
        intervals={"p95_ttft_ms": [low, high], "p95_ttft_from_schedule_ms": [low, high]},
    )
    if not users:
        made |= {"concurrency": None, "request_rate": load}
    return {**made, "interrupted": False, **fields}


def searched(search: Search, server: Server) -> list[dict[str, Any]]:
    """The levels of a whole search."""
    levels: list[dict[str, Any]] = []
    while (load := search.next(levels)) is not None:
        assert len(levels) < 100, [one["concurrency"] for one in levels]
        runs = sum(load in (one["concurrency"], one["request_rate"]) for one in levels)
        levels.append(level(len(levels), load, users=search.users, **server(load, runs)))
    return levels


def loads(levels: Sequence[Mapping[str, Any]]) -> list[float]:
    return [one["concurrency"] or one["request_rate"] for one in levels]


def up_to(most: float) -> Server:
    return lambda load, run: {"ttft": HELD if load <= most else MISSED}


def told(search: Search, levels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    (entry,) = search_answers(levels, search)
    return entry


def test_it_doubles_then_halves_the_ratio_and_runs_both_sides_of_the_edge_again() -> None:
    levels = searched(USERS, up_to(20))
    assert loads(levels) == [1, 2, 4, 8, 16, 32, 23, 19, 21, 20, 20, 21]
    entry = told(USERS, levels)
    assert (entry["end"], entry["interval"], entry["levels"]) == ("resolved", [20, 21], 12)
    assert "concurrency 20 holds, concurrency 21 misses the SLO, neighbouring numbers of users" in entry["text"]


@pytest.mark.parametrize("most", [1, 2, 3, 5, 17, 63, 64, 65, 700])
def test_any_number_of_users_is_found(most: int) -> None:
    search = Search(users=True, first=1, least=1, most=1024, precision=0.01, max_levels=40)
    entry = told(search, searched(search, up_to(most)))
    low, high = entry["interval"]
    assert low <= most < high and (high - low == 1 or high <= 1.011 * low)


@pytest.mark.parametrize("most", [0.034, 0.7, 1.0, 3.3, 47.0, 812.5])
def test_any_rate_is_found_to_the_precision_also_one_below_the_first(most: float) -> None:
    levels = searched(RATES, up_to(most))
    entry = told(RATES, levels)
    low, high = entry["interval"]
    assert low <= most < high <= 1.051 * low
    assert entry["end"] == "resolved" and "no more than 5% apart" in entry["text"]
    assert all(one == float(f"{one:.4g}") for one in loads(levels))


def test_it_says_that_the_limit_was_not_reached_where_the_highest_load_holds() -> None:
    search = Search(users=True, first=4, least=4, most=48)
    levels = searched(search, up_to(1000))
    assert loads(levels) == [4, 8, 16, 32, 48]
    assert told(search, levels)["end"] == "limit_not_reached"
    assert "raise load.search.max" in told(search, levels)["text"]


def test_it_stops_early_where_more_users_only_wait() -> None:
    levels = searched(USERS, lambda load, run: {"ttft": HELD, "tok_s": 50 * min(load, 8)})
    assert loads(levels) == [1, 2, 4, 8, 16, 32]
    assert told(USERS, levels)["end"] == "saturated"


def test_a_lowest_load_that_misses_is_run_twice_before_nothing_holds() -> None:
    levels = searched(USERS, up_to(0))
    assert loads(levels) == [1] * EDGE_RUNS
    entry = told(USERS, levels)
    assert entry["end"] == "nothing_holds" and "even concurrency 1 misses the SLO" in entry["text"]


def test_an_undecided_load_is_repeated_and_then_left_with_what_lies_beside_it() -> None:
    def server(load: float, run: int) -> Mapping[str, Any]:
        return {"ttft": HELD if load < 10 else MISSED if load > 11 else UNDECIDED}

    levels = searched(RATES, server)
    repeats = {load: loads(levels).count(load) for load in loads(levels)}
    assert max(repeats.values()) == MOST_RUNS
    entry = told(RATES, levels)
    assert entry["end"] == "undecided"
    assert "decides nothing after 3 runs" in entry["text"] and "measure longer" in entry["text"]
    low, high = entry["interval"]
    assert low < 10 <= 11 < high
    assert low > 10 / 1.06 and high < 11 * 1.06


def test_an_invalid_level_is_run_again_and_decides_nothing() -> None:
    def server(load: float, run: int) -> Mapping[str, Any]:
        return {"ttft": MISSED if load > 20 else HELD, "valid": not (load == 16 and run == 0)}

    levels = searched(USERS, server)
    assert loads(levels)[:7] == [1, 2, 4, 8, 16, 16, 32]
    assert told(USERS, levels)["interval"] == [20, 21]


def test_a_load_that_is_never_valid_is_left_alone_and_the_search_says_so() -> None:
    """The client gives out at 40 users: what the server could do beyond is not known."""

    def server(load: float, run: int) -> Mapping[str, Any]:
        return {"ttft": MISSED if load >= 40 else HELD, "valid": load < 40}

    levels = searched(USERS, server)
    assert max(loads(levels).count(load) for load in loads(levels)) == INVALID_RUNS
    entry = told(USERS, levels)
    assert entry["end"] == "invalid" and entry["interval"][0] in range(37, 40)
    assert entry["interval"][1] is None and "nobody knows how far it goes" in entry["text"]


def test_nothing_but_invalid_levels_is_no_answer() -> None:
    levels = searched(USERS, lambda load, run: {"ttft": HELD, "valid": False})
    assert loads(levels) == [1, 1]
    assert told(USERS, levels)["end"] == "invalid"


def test_a_curve_that_is_not_monotonic_is_looked_at_again_and_told() -> None:
    """At 4 users the server is slow, each time; the capacity is above."""

    def server(load: float, run: int) -> Mapping[str, Any]:
        return {"ttft": MISSED if load == 4 or load > 12 else HELD}

    levels = searched(Search(users=True, first=2, least=2, most=64), server)
    first_time = [level(n, load, users=True, ttft=HELD) for n, load in enumerate((8, 12))]
    search = Search(users=True, first=2, least=2, most=64)
    against = [*first_time, *(level(5 + n, load, users=True, **server(load, 0)) for n, load in enumerate((2, 4, 13)))]
    assert search.next(against) == 4
    assert levels, "a search that met it first ends below it"
    entry = told(search, [*against, *(level(20 + n, 4, users=True, ttft=MISSED) for n in range(2))])
    assert "The curve is not monotonic: concurrency 4 misses it in 3 runs" in entry["text"]


def test_a_load_at_which_the_server_has_two_states_is_no_answer_though_it_holds() -> None:
    def server(load: float, run: int) -> Mapping[str, Any]:
        return {**up_to(20)(load, run), "tok_s": (15 if load == 20 and run % 2 else 50) * load}

    levels = searched(USERS, server)
    (entry,) = search_answers(levels, USERS)
    assert entry["interval"][0] == 19
    assert entry["end"] == "undecided"


def test_it_ends_after_the_levels_that_it_may_take_and_says_what_it_did_not_resolve() -> None:
    search = Search(users=True, first=1, least=1, most=1024, max_levels=7)
    levels = searched(search, up_to(20))
    assert len(levels) == 7
    entry = told(search, levels)
    assert entry["end"] == "levels_used_up" and entry["interval"] == [16, 23] and "not resolved" in entry["text"]


def test_an_interrupted_level_counts_for_nothing_and_a_search_goes_on_from_any_point() -> None:
    whole = searched(USERS, up_to(20))
    for end in range(len(whole)):
        cut = {**whole[end], "interrupted": True, "valid": False}
        assert USERS.next([*whole[:end], cut]) == whole[end]["concurrency"]
    cut_off = told(USERS, whole[:5])
    assert cut_off["end"] is None and "the search was cut off" in cut_off["text"]
