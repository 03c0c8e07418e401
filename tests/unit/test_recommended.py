"""One recommended setting, what it costs to take another, the points that none beats, and the open-loop confirmation."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.stats.answers import answers
from loadgen.stats.confirmation import confirmations
from loadgen.stats.pareto import pareto
from loadgen.stats.recommended import recommended
from tests.public_sweeps import LEVELS_OFF_NEAR_512, PEAKS_NEAR_64, sweep, written_level

SLO = {"ttft_p95": 500.0}


def setting(
    first: int,
    seqs: Any,
    rates: dict[int, float],
    *,
    ttft_ms: float = 200,
    half: float = 1.0,
    slo: dict[str, float] | None = SLO,
    **fields: Any,
) -> list[dict[str, Any]]:
    """Levels {users: output tokens/s} of one setting; all but the last keep the SLO, the last misses it."""
    levels = []
    for n, (users, rate) in enumerate(rates.items()):
        first_ms = ttft_ms if n < len(rates) - 1 else 900.0
        intervals = {
            "p95_ttft_ms": [first_ms, first_ms],
            "output_throughput": [rate - half, rate + half],
            "served_request_rate": [(rate - half) / 512, (rate + half) / 512],
        }
        levels.append(
            written_level(
                first + n,
                users,
                rate,
                first_ms,
                10,
                slo=slo,
                intervals=intervals,
                server={"max_num_seqs": seqs},
                **fields,
            )
        )
    return levels


def test_the_setting_that_serves_most_within_the_slo_is_recommended_with_the_cost_of_the_others() -> None:
    limit = {"kind": "scheduler", "text": "Requests wait while all places are taken.", "evidence": {}}
    levels = [
        *setting(0, 8, {4: 200, 8: 400, 16: 410}, limit=limit),
        *setting(10, 16, {8: 400, 16: 700, 32: 720}),
        *setting(20, 32, {8: 380, 16: 600, 32: 650}),
    ]
    told = recommended(levels)
    assert told is not None
    assert (told["server"], told["level"], told["concurrency"]) == ({"max_num_seqs": 16}, 11, 16)
    assert told["text"] == (
        "max_num_seqs 16: 1.367 requests/s within the SLO at concurrency 16, the most of the settings measured. "
        "max_num_seqs 8: 42.9% fewer requests/s, limit: scheduler. max_num_seqs 32: 14.3% fewer requests/s."
    )
    assert [one["difference"] for one in told["by_server"]] == [
        pytest.approx(400 / 700 - 1),
        0,
        pytest.approx(600 / 700 - 1),
    ]
    assert [one["ceiling"] for one in told["by_server"]] == [410, 720, 650]


def test_settings_that_cannot_be_told_apart_go_to_the_smaller() -> None:
    levels = [
        *setting(0, 16, {8: 400, 16: 700, 32: 710}, half=20),
        *setting(10, 8, {8: 400, 16: 500, 32: 510}, half=20),
        *setting(20, 128, {8: 400, 16: 715, 32: 740}, half=20),
    ]
    told = recommended(levels)
    assert told is not None
    assert told["server"] == {"max_num_seqs": 16}
    assert (
        "max_num_seqs 128 (+2.1%) cannot be told from it (the 95 % intervals overlap), so the smallest was taken"
        in told["text"]
    )
    assert [one["tied"] for one in told["by_server"]] == [True, False, True]


def test_differences_beyond_the_intervals_are_no_tie() -> None:
    levels = [*setting(0, 16, {16: 700, 32: 710}), *setting(10, 32, {16: 750, 32: 760})]
    told = recommended(levels)
    assert told is not None
    assert told["server"] == {"max_num_seqs": 32}


def test_a_setting_without_an_interval_cannot_be_told_from_the_best() -> None:
    levels = [*setting(0, 16, {16: 700, 32: 710}), *setting(10, 32, {16: 750, 32: 760})]
    for level in levels[2:]:
        del level["intervals"]["served_request_rate"]
    told = recommended(levels)
    assert told is not None
    assert told["server"] == {"max_num_seqs": 16}


def test_without_an_slo_the_ceiling_decides() -> None:
    levels = [*setting(0, 8, {8: 400, 16: 405}, slo=None), *setting(10, 16, {8: 400, 16: 700}, slo=None)]
    told = recommended(levels)
    assert told is not None
    assert (told["server"], told["concurrency"]) == ({"max_num_seqs": 16}, 16)
    assert "700 output tokens/s at concurrency 16" in told["text"]


def test_an_slo_that_no_setting_keeps_recommends_none() -> None:
    told = recommended([*setting(0, 8, {8: 400}), *setting(10, 16, {8: 400})])
    assert told is not None
    assert (told["server"], told["level"]) == (None, None)
    assert told["text"] == "No setting is recommended: none keeps the SLO with its bound at any load."
    assert len(told["by_server"]) == 2


def test_a_setting_without_a_capacity_is_named_with_its_reason() -> None:
    told = recommended([*setting(0, 8, {8: 400}), *setting(10, 16, {8: 400, 16: 700})])
    assert told is not None
    assert told["server"] == {"max_num_seqs": 16}
    assert "max_num_seqs 8: no load keeps the SLO with its bound." in told["text"]


def test_nothing_is_recommended_where_nothing_was_swept() -> None:
    assert recommended(setting(0, 8, {8: 400, 16: 405})) is None
    assert recommended([]) is None


def test_words_are_settings_too() -> None:
    told = recommended([*setting(0, "fp8", {8: 700, 16: 710}), *setting(10, "bf16", {8: 400, 16: 405})])
    assert told is not None
    assert told["server"] == {"max_num_seqs": "fp8"}


def test_pareto_points_are_those_that_none_beats_in_both_speeds() -> None:
    told = pareto(sweep(LEVELS_OFF_NEAR_512))
    assert told is not None
    front = [point["concurrency"] for point in told["points"] if point["on_front"]]
    assert front == [1, 8, 16, 64, 128, 256, 1024]
    assert [point["concurrency"] for point in told["points"] if "knee" in point["marks"]] == [512]
    assert told["points"][0]["tokens_per_user"] == pytest.approx(1000 / 2.91)


def test_unstable_points_are_on_no_front() -> None:
    told = pareto(sweep(PEAKS_NEAR_64))
    assert told is not None
    assert max(point["concurrency"] for point in told["points"] if point["on_front"]) == 64
    assert len(told["points"]) == len(PEAKS_NEAR_64)


def closed_and_open(*, rate: float = 1.37, ttft_ms: float = 450, peak: int = 30, **fields: Any) -> list[dict[str, Any]]:
    users = setting(0, 16, {8: 400, 16: 700, 32: 720})
    bounds = {"p95_ttft_from_schedule_ms": [ttft_ms - 10, ttft_ms + 10]}
    arrivals = written_level(
        9,
        rate,
        690,
        ttft_ms,
        10,
        slo=SLO,
        open_loop=True,
        intervals=bounds,
        **{"peak_concurrency": peak, "achieved_concurrency": 14.0, "server": {"max_num_seqs": 16}, **fields},
    )
    return [*users, arrivals]


def test_a_capacity_that_arrivals_confirm_tells_both_figures_and_why_they_differ() -> None:
    (entry,) = confirmations(closed_and_open())
    assert entry["confirmed"] is True
    assert (entry["closed"]["level"], entry["open"]["level"]) == (1, 9)
    assert (entry["closed"]["ttft_p95"], entry["open"]["ttft_p95"]) == (200, 450)
    assert entry["text"].startswith("Confirmed: concurrency 16 serves 1.367 requests/s; offered 1.37 requests/s")
    assert "Arrivals come in bunches: up to 30 requests were in flight" in entry["text"]


def test_arrivals_that_miss_the_slo_or_pile_up_do_not_confirm() -> None:
    (missed,) = confirmations(closed_and_open(ttft_ms=800))
    assert missed["confirmed"] is False
    (piled,) = confirmations(closed_and_open(saturated=True))
    assert piled["confirmed"] is False
    assert "Requests pile up: users offer no more than the server completes" in piled["text"]
    (equal,) = confirmations(closed_and_open(ttft_ms=205))
    assert equal["text"].endswith("They agree within 10 %.")
    (faster,) = confirmations(closed_and_open(ttft_ms=100))
    assert "Users wait longer: there were always 16 requests in flight, of the arrivals 14 on average" in faster["text"]


def test_an_invalid_open_level_confirms_nothing() -> None:
    (entry,) = confirmations(closed_and_open(valid=False))
    assert entry["confirmed"] is None
    assert entry["text"].startswith("Not answered: the open level is invalid")


def test_another_rate_or_another_server_is_no_confirmation() -> None:
    assert confirmations(closed_and_open(rate=2.0)) == []
    assert confirmations(closed_and_open(server={"max_num_seqs": 8})) == []
    assert confirmations(setting(0, 16, {8: 400, 16: 700})) == []
    assert confirmations([one for one in closed_and_open() if one["concurrency"] is None]) == []


def test_an_open_level_beside_users_is_in_no_other_answer() -> None:
    told = answers(closed_and_open())
    assert [entry["concurrency"] for entry in told["capacity"]] == [16]
    assert told["highest_within_slo"]["concurrency"] == 16
    assert {point["level"] for point in told["pareto"]["points"]} == {0, 1, 2}


def test_open_level_that_was_measured_again_because_it_was_invalid_confirms() -> None:
    levels = closed_and_open(valid=False)
    again = {**levels[-1], "level": levels[-1]["level"] + 1, "valid": True, "reasons": []}
    (entry,) = confirmations([*levels, again])
    assert entry["open"]["level"] == again["level"]
    assert entry["confirmed"] is True
