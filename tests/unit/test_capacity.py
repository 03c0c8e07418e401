"""SLO capacity: what holds with its bound, what does not, and what was not resolved."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.stats.answers import answers, verdict
from loadgen.stats.capacity import capacities, find_capacity, ladder
from tests.public_sweeps import PEAKS_NEAR_64, sweep, written_level

SLO = {"ttft_p95": 500.0}


def level(
    number: int, load: float, ttft: tuple[float, float, float], *, tok_s: float = 0, **fields: Any
) -> dict[str, Any]:
    """A level whose TTFT P95 is (lower bound, value, upper bound)."""
    low, value, high = ttft
    return written_level(
        number,
        load,
        tok_s or 50 * load,
        value,
        10,
        slo=SLO,
        intervals={"p95_ttft_ms": [low, high], "p95_ttft_from_schedule_ms": [low, high]},
        **fields,
    )


HELD, UNDECIDED, MISSED = (380, 400, 420), (470, 490, 520), (600, 650, 700)


def capacity(*levels: dict[str, Any]) -> dict[str, Any]:
    (entry,) = capacities(levels)
    return entry


def test_capacity_is_the_highest_load_that_holds_with_its_bound_not_by_its_value() -> None:
    entry = capacity(level(0, 8, HELD), level(1, 12, UNDECIDED), level(2, 16, MISSED))
    assert (entry["concurrency"], entry["level"], entry["interval"]) == (8, 0, [8, 16])
    assert entry["resolved"] is False
    assert entry["text"] == (
        "Concurrency 8 keeps every SLO with its 95 % bound (ttft_p95 400 ms, upper bound 420 ms) at 0.7812 requests/s and 400 output "
        "tokens/s; not resolved between 8 and 16, probably near 12.2 (an estimate); concurrency 16 misses it (ttft_p95 650 ms, lower "
        "bound 600 ms); concurrency 12 decides nothing (ttft_p95 490 ms of 500 ms, 95 % interval 470 ms to 520 ms): measure longer."
    )


def test_neighbouring_users_or_rates_within_5_percent_resolve_it() -> None:
    users = capacity(level(0, 8, HELD), level(1, 9, MISSED))
    assert (users["resolved"], users["interval"]) == (True, [8, 9])
    assert "concurrency 9 misses it" in users["text"]
    rates = [level(n, rate, bounds, open_loop=True) for n, (rate, bounds) in enumerate([(4.0, HELD), (4.2, MISSED)])]
    entry = capacity(*rates)
    assert (entry["resolved"], entry["request_rate"], entry["concurrency"]) == (True, 4.0, None)
    assert capacity(level(0, 8, HELD), level(1, 16, MISSED))["resolved"] is False


def test_a_limit_that_was_not_reached_says_so() -> None:
    entry = capacity(level(0, 4, HELD), level(1, 8, HELD))
    assert (entry["concurrency"], entry["interval"], entry["resolved"]) == (8, [8, None], False)
    assert entry["text"].endswith("the limit was not reached: no load above 8 was measured.")


def test_an_slo_that_nobody_meets_has_no_capacity_and_a_reason() -> None:
    entry = capacity(level(0, 1, MISSED), level(1, 2, MISSED))
    assert (entry["level"], entry["concurrency"], entry["served_request_rate"]) == (None, None, None)
    assert entry["interval"] == [None, 1]
    assert entry["text"] == (
        "No load keeps the SLO with its 95 % bound: the lowest, concurrency 1, misses it (ttft_p95 650 ms, lower bound 600 ms)."
    )
    undecided = capacity(level(0, 1, UNDECIDED))
    assert "(ttft_p95 490 ms of 500 ms, 95 % interval 470 ms to 520 ms)" in undecided["text"]


def test_a_load_that_is_not_shown_to_break_the_slo_is_undecided_and_how_much_longer_is_told() -> None:
    one = level(0, 1, HELD) | {"window_s": 10.0, "n_ttft": 20}
    one["slo"]["ttft_p95"] |= {"interval": [380, None], "holds": None}
    # Five beyond P95 take 100 requests, and 10 s brought 20.
    assert capacity(one)["text"] == (
        "Undecided: of the lowest load, concurrency 1, the 95 % bounds tell nothing yet (ttft_p95 400 ms of 500 ms, too few "
        "samples for an upper bound): about 40 s more needed (load.duration)."
    )
    above = capacity(one, level(1, 2, MISSED))["text"]
    assert above.startswith("Undecided: ") and "concurrency 2 misses it (ttft_p95 650 ms" in above


def test_a_saturated_open_level_misses_whatever_its_latency() -> None:
    entry = capacity(level(0, 2.0, HELD, open_loop=True), level(1, 4.0, HELD, open_loop=True, saturated=True))
    assert entry["interval"] == [2.0, 4.0]
    assert "requests pile up (saturated)" in entry["text"]


def test_an_invalid_level_decides_nothing_and_an_answer_that_rests_on_it_is_exit_code_3() -> None:
    levels = [level(0, 4, HELD), level(1, 8, HELD, valid=False), level(2, 16, MISSED)]
    entry = capacity(*levels)
    assert (entry["concurrency"], entry["interval"]) == (4, [4, 16])
    assert "concurrency 8 is invalid" in entry["text"]
    told = verdict(levels)
    assert told["exit_code"] == 3
    assert told["rests_on_invalid"] == (
        "The capacity, concurrency 4, rests on an invalid level: concurrency 8 should say whether more is possible."
    )


@pytest.mark.parametrize("spoilt", [0, 3])
def test_an_invalid_level_elsewhere_does_not_change_the_exit_code(spoilt: int) -> None:
    bounds = [(2, HELD), (4, HELD), (8, MISSED), (16, MISSED)]
    levels = [level(n, load, one, valid=n != spoilt) for n, (load, one) in enumerate(bounds)]
    assert capacity(*levels)["interval"] == [4, 8]
    assert verdict(levels) == {"valid_levels": 3, "invalid_levels": 1, "rests_on_invalid": None, "exit_code": 0}


def test_a_level_that_was_run_again_with_a_valid_result_rests_on_nothing_invalid() -> None:
    levels = [level(0, 4, HELD), level(1, 8, MISSED, valid=False), level(2, 8, MISSED)]
    assert capacity(*levels)["interval"] == [4, 8]
    assert verdict(levels)["exit_code"] == 0


def test_all_levels_invalid_or_all_requests_failed() -> None:
    invalid = [level(0, 4, HELD, valid=False), level(1, 8, HELD, valid=False)]
    assert capacity(*invalid)["text"] == "Not answered: no level is valid."
    assert verdict(invalid)["exit_code"] == 3
    failed = [level(0, 4, HELD, valid=False, requests={"ok": 0, "http_503": 10})]
    assert verdict(failed)["exit_code"] == 1
    assert not any(answers([]).values())


def test_the_bistable_table_has_its_capacity_below_the_first_miss() -> None:
    entry = capacity(*sweep(PEAKS_NEAR_64, slo={"ttft_p95": 500.0, "tpot_p95": 20.0}))
    assert (entry["concurrency"], entry["interval"], entry["resolved"]) == (128, [128, 256], False)
    assert "The curve is not monotonic: concurrency 512 holds, which was not counted" in entry["text"]


def test_one_low_miss_among_many_that_hold_is_told_and_does_not_sink_the_capacity() -> None:
    bounds = [(1, MISSED), (2, HELD), (4, HELD), (8, HELD), (9, MISSED)]
    entry = capacity(*[level(n, load, one) for n, (load, one) in enumerate(bounds)])
    assert (entry["concurrency"], entry["resolved"]) == (8, False)
    assert "concurrency 1 misses it" in entry["text"]


def test_repeats_together_decide_what_one_alone_does_not() -> None:
    unsure = (440, 480, 505)
    assert [rung.state for rung in ladder([level(0, 8, unsure)])] == ["undecided"]
    again = [level(n, 8, unsure) for n in range(2)]
    assert [rung.state for rung in ladder(again)] == ["held"]
    # … unless they differ by more than their windows' wobble tells.
    apart = [level(n, 8, (value - 5, value, value + 5)) for n, value in enumerate((300, 480, 600))]
    assert [rung.state for rung in ladder(apart)] == ["undecided"]


def test_each_setting_has_an_entry_with_what_plans_need() -> None:
    levels = [
        level(
            n,
            load,
            one,
            server={"max_num_seqs": seqs},
            limit={"kind": "scheduler", "text": "It is full.", "evidence": {}},
        )
        for n, (seqs, load, one) in enumerate([(8, 8, HELD), (8, 16, MISSED), (16, 8, HELD), (16, 16, HELD)])
    ]
    first, second = capacities(levels)
    assert (first["server"], first["concurrency"]) == ({"max_num_seqs": 8}, 8)
    assert (second["server"], second["concurrency"]) == ({"max_num_seqs": 16}, 16)
    assert second["limit"]["kind"] == "scheduler"
    assert second["served_request_rate"] == 50 * 16 / 512


def test_without_an_slo_there_is_no_capacity() -> None:
    assert capacities([written_level(0, 4, 100, 50, 10)]) == []


def test_ties_between_two_cuts_go_to_the_lower() -> None:
    found = find_capacity(ladder([level(n, 2**n, one) for n, one in enumerate([HELD, MISSED, HELD, MISSED])]))
    assert found.best is not None
    assert found.best.load == 1


def test_load_that_every_repeat_misses_is_missed_however_far_the_repeats_are_apart() -> None:
    runs = [
        level(1, 16, (510, 530, 550), run=0),
        level(2, 16, (900, 950, 990), run=1),
        level(3, 16, (2000, 2100, 2200), run=2),
    ]
    entry = capacity(level(0, 8, HELD), *runs)
    assert (entry["concurrency"], entry["interval"]) == (8, [8, 16])


def test_two_repeats_that_contradict_each_other_for_certain_hold_nothing() -> None:
    entry = capacity(level(0, 8, HELD), level(1, 16, (190, 200, 210), run=0), level(2, 16, (580, 600, 620), run=1))
    assert entry["concurrency"] == 8, "one of two runs at 16 certainly misses the limit"
    assert not entry["resolved"]


def test_no_capacity_rests_on_a_load_at_which_the_server_has_more_than_one_state() -> None:
    rates = {8: 400, 16: 800, 32: 300, 64: 820, 128: 310}
    levels = [level(n, users, HELD, tok_s=rate) for n, (users, rate) in enumerate(rates.items())]
    entry = capacity(*levels, level(5, 256, MISSED, tok_s=300))
    assert (entry["concurrency"], entry["resolved"]) == (16, False)
    assert "concurrency 32 decides nothing (the server has more than one state there (unstable))" in entry["text"]
    assert answers(levels)["highest_within_slo"]["concurrency"] == 16
