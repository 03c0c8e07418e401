"""Answers rest on valid levels only and never say more than was measured."""

from typing import Any

from loadgen.stats.answers import TITLES, answer_lines, answers
from tests.public_sweeps import PEAKS_NEAR_64, sweep, written_level


def level(
    concurrency: int, ttft_ms: float | None, tokens: float, *, valid: bool = True, **server: Any
) -> dict[str, Any]:
    slo = {"ttft_p95": 500.0}
    return written_level(concurrency, concurrency, tokens, ttft_ms, 10.0, slo=slo, valid=valid, server=server)


def within_slo(*levels: dict[str, Any]) -> dict[str, Any]:
    found = answers(levels)["highest_within_slo"]
    assert isinstance(found, dict)
    return found


def test_boundary_between_two_levels_is_not_interpolated() -> None:
    answer = within_slo(level(16, 900, 300), level(8, 400, 200), level(4, 200, 100))
    assert answer["concurrency"] == 8
    assert answer["text"] == (
        "Concurrency 8: the highest measured valid level whose values meet the SLO; "
        "not resolved between 8 and 16, where ttft_p95 is 900 ms. SLO: ttft_p95 ≤ 500 ms."
    )


def test_slo_that_every_level_meets_was_not_reached() -> None:
    answer = within_slo(level(4, 200, 100), level(8, 400, 200))
    assert answer["concurrency"] == 8
    assert "the limit was not reached: no level above 8 was measured" in answer["text"]


def test_slo_that_no_level_meets_has_no_concurrency() -> None:
    answer = within_slo(level(4, 700, 100), level(8, None, 0))
    assert answer["concurrency"] is None
    assert answer["text"].startswith("The SLO is met at no valid level; the lowest, concurrency 4: ttft_p95 is 700 ms.")
    assert "not measured" in within_slo(level(8, None, 0))["text"]


def test_invalid_level_is_no_answer_and_no_boundary() -> None:
    answer = within_slo(level(4, 200, 100), level(8, 300, 900, valid=False))
    assert answer["concurrency"] == 4
    assert "not resolved between 4 and 8, because the level at 8 is invalid" in answer["text"]
    assert "not answered: no level is valid" in within_slo(level(4, 200, 100, valid=False))["text"]


def test_lower_level_that_misses_the_slo_is_mentioned() -> None:
    assert (
        "(though concurrency 4 misses it: ttft_p95 is 600 ms)" in within_slo(level(4, 600, 1), level(8, 400, 2))["text"]
    )


def test_each_server_setting_has_its_own_answer_and_the_best_comes_first() -> None:
    answer = within_slo(
        level(8, 400, 200, max_num_seqs=8),
        level(16, 900, 250, max_num_seqs=8),
        level(8, 300, 210, max_num_seqs=16),
        level(16, 450, 400, max_num_seqs=16),
    )
    assert (answer["concurrency"], answer["server"]) == (16, {"max_num_seqs": 16})
    assert answer["text"].startswith("Concurrency 16, max_num_seqs 16: the highest")
    assert [one["concurrency"] for one in answer["by_server"]] == [8, 16]


def test_highest_throughput_is_that_of_valid_levels_and_says_what_was_left_out() -> None:
    found = answers([level(4, 1, 100.0), level(8, 1, 999.0, valid=False)])["highest_output_throughput"]
    assert (found["level"], found["value"]) == (4, 100.0)
    assert found["text"] == "100.0 output tokens/s at concurrency 4; 1 of 2 levels are invalid and were left out."
    rising = answers([level(4, 1, 1000.0), level(8, 1, 1999.0)])["highest_output_throughput"]
    assert rising["text"].startswith("1,999.0 output tokens/s at concurrency 8; it is the highest level measured")


def test_without_an_slo_or_a_valid_level_there_is_no_answer() -> None:
    without = {**level(4, 1, 100.0), "slo": None}
    assert answers([without])["highest_within_slo"] is None
    assert answers([level(4, 1, 1.0, valid=False)])["highest_output_throughput"] is None
    assert not any(answers([]).values())


def test_unstable_levels_are_no_highest_one() -> None:
    told = answers(sweep(PEAKS_NEAR_64, slo={"ttft_p95": 500.0}))
    assert told["highest_within_slo"]["concurrency"] == 128
    assert told["highest_output_throughput"]["concurrency"] == 64


def test_throughput_that_has_stopped_rising_is_not_said_to_be_perhaps_more() -> None:
    told = answers([level(4, 1, 1000.0), level(8, 1, 1999.0), level(16, 1, 2000.0)])
    assert told["highest_output_throughput"]["text"] == "2,000.0 output tokens/s at concurrency 16."


def test_answers_are_told_in_one_order_and_none_twice() -> None:
    told = answers([level(4, 200, 400), level(8, 400, 790), level(16, 900, 800)])
    titles = [title for title, _ in answer_lines(told)]
    assert titles == [TITLES[name] for name in ("capacity", "highest_output_throughput", "knee")]
    undecided = [{**level(4, 200, 400), "slo": {"ttft_p95": {**SURE, "holds": None}}}]
    assert [title for title, _ in answer_lines(answers(undecided))][:2] == [
        TITLES[name] for name in ("capacity", "highest_within_slo")
    ]


SURE = {"threshold": 500.0, "value": 200.0, "met": True, "interval": [100.0, 600.0], "holds": True}
