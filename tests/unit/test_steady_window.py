"""How long a level is measured when the scenario does not say."""

import pytest

from loadgen.stats.window import window_length


@pytest.mark.parametrize(
    ("rate", "e2e_s", "window_s", "why"),
    [
        (100.0, 1.0, 15.0, "15 s is the least"),
        (5.0, 2.0, 40.0, "200 requests at 5 completed a second"),
        (50.0, 12.0, 36.0, "3 × 12 s, the P95 of E2E latency"),
        (6.9, 2.0, 29.0, "200 requests at 6.9 completed a second"),
    ],
)
def test_the_longest_need_decides_and_is_named(rate: float, e2e_s: float, window_s: float, why: str) -> None:
    length = window_length(rate, e2e_s)
    assert (length.window_s, length.reason, length.capped) == (window_s, why, False)


def test_a_need_above_the_cap_is_cut_and_said() -> None:
    length = window_length(0.5, 2.0)
    assert (length.window_s, length.capped) == (120.0, True)
    assert length.reason == "120 s is the most; 400 s were wanted for 200 requests at 0.5 completed a second"


@pytest.mark.parametrize(("rate", "e2e_s"), [(None, None), (0.0, None), (None, 3.0)])
def test_without_any_completed_request_the_window_is_the_longest(rate: float | None, e2e_s: float | None) -> None:
    length = window_length(rate, e2e_s, most_s=60)
    assert (length.window_s, length.capped) == (60, True)
    assert "no request has completed" in length.reason


def test_every_need_can_be_set() -> None:
    assert window_length(10.0, 1.0, completions=50, generations=4, least_s=1).window_s == 5.0
    assert window_length(10.0, 2.0, completions=50, generations=4, least_s=1).window_s == 8.0
    assert window_length(10.0, 2.0, completions=50, generations=4, least_s=9).window_s == 9.0
    assert window_length(10.0, 2.0, most_s=5).window_s == 5


def test_the_window_holds_what_it_was_made_for() -> None:
    for rate in (0.3, 1.7, 3.1, 7.0, 13.0):
        length = window_length(rate, 0.1, most_s=1e6)
        assert 200 <= length.window_s * rate < 200 + rate
