"""Answers rest on valid levels only and never say more than was measured."""

from typing import Any

from loadgen.stats.answers import answers


def level(
    concurrency: int, ttft_ms: float | None, tokens: float, *, valid: bool = True, **server: Any
) -> dict[str, Any]:
    met = None if ttft_ms is None else ttft_ms <= 500
    return {
        "level": concurrency,
        "concurrency": concurrency,
        "request_rate": None,
        "open_loop": None,
        "server": server,
        "valid": valid,
        "output_throughput": tokens,
        "slo": {"ttft_p95": {"threshold": 500.0, "value": ttft_ms, "met": met}},
    }


def within_slo(*levels: dict[str, Any]) -> dict[str, Any]:
    found = answers(levels)["highest_within_slo"]
    assert isinstance(found, dict)
    return found


def test_boundary_between_two_levels_is_not_interpolated() -> None:
    answer = within_slo(level(16, 900, 300), level(8, 400, 200), level(4, 200, 100))
    assert answer["concurrency"] == 8
    assert answer["text"] == (
        "Concurrency 8: the highest measured valid level that meets the SLO; "
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
    assert answers([]) == {"highest_within_slo": None, "highest_output_throughput": None, "repeats": None}
