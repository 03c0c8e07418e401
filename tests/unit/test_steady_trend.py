"""The trend test: exact against every order of a small series, blind to what repeats, and a slope that outliers keep."""

from itertools import permutations, product

import numpy as np
import pytest

from loadgen.stats.trend import MOST_CYCLES, layout, least_p_value, seasonal_kendall


def s_of(column: tuple[int, ...]) -> int:
    return sum(int(np.sign(b - a)) for i, a in enumerate(column) for b in column[i + 1 :])


@pytest.mark.parametrize(("cycles", "seasons"), [(2, 1), (3, 1), (5, 1), (3, 2), (3, 3), (4, 2)])
def test_the_p_value_is_the_share_of_all_orders_that_trend_as_much(cycles: int, seasons: int) -> None:
    orders = list(permutations(range(cycles)))
    every_s = [abs(sum(map(s_of, columns))) for columns in product(orders, repeat=seasons)]
    rng = np.random.default_rng(cycles * 10 + seasons)
    for _ in range(5):
        cells = rng.normal(size=(cycles, seasons))
        s = abs(sum(s_of(tuple(column)) for column in cells.T.tolist()))
        assert seasonal_kendall(cells).p_value == pytest.approx(np.mean([other >= s for other in every_s]))


def test_the_least_p_value_is_that_of_a_series_that_only_rises() -> None:
    rising = np.arange(12.0).reshape(3, 4)
    assert seasonal_kendall(rising).p_value == pytest.approx(least_p_value(3, 4)) == pytest.approx(2 / 6**4)


def test_a_swing_that_repeats_every_cycle_is_no_trend() -> None:
    swing = np.tile([0.0, 100.0, 40.0, 0.0], (5, 1))
    trend = seasonal_kendall(swing)
    assert (trend.slope, trend.p_value) == (0.0, pytest.approx(1.0))
    rising = seasonal_kendall(swing + np.arange(5)[:, None])
    assert rising.slope == 1.0
    assert rising.p_value < 1e-6


def test_one_wild_cycle_does_not_move_the_slope() -> None:
    cells = np.arange(11.0)[:, None] * 3
    cells[4] = 1e9
    assert seasonal_kendall(cells).slope == 3.0


def test_a_falling_series_falls_as_clearly_as_a_rising_one_rises() -> None:
    cells = np.random.default_rng(1).normal(size=(8, 2)) + np.arange(8)[:, None]
    up, down = seasonal_kendall(cells), seasonal_kendall(-cells)
    assert (down.slope, down.p_value) == (-up.slope, up.p_value)


def test_one_cycle_has_no_trend() -> None:
    with pytest.raises(ValueError, match=r"two cycles.*\(1, 4\)"):
        seasonal_kendall(np.zeros((1, 4)))


@pytest.mark.parametrize("generations", [2.0, 2.99, 3.0, 5.7, 7.99, 13.2, 20.0, 20.5, 39.0, 41.7, 500.3])
def test_a_stretch_is_cut_into_whole_generations_that_fit_into_it(generations: float) -> None:
    cut = layout(generations)
    assert cut is not None
    cycles, seasons, share = cut
    assert 2 <= cycles <= MOST_CYCLES
    assert cycles * share <= 1 + 1e-12
    assert cycles * share > 1 / 2
    in_a_cycle = share * generations
    assert in_a_cycle == pytest.approx(round(in_a_cycle), rel=0.02)
    assert cycles < 3 or least_p_value(cycles, seasons) < 0.0025


def test_less_than_two_generations_cannot_be_cut() -> None:
    assert layout(1.9) is None
    assert layout(0.0) is None
