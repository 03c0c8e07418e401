"""The error of a mean over correlated data: coverage of the truth over many seeds, and what blocks are for."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.stats.long_run import (
    autocorrelation,
    block_length,
    mean_error,
    share_interval,
    t_quantile,
)

SEEDS = 200


def autoregressive(n: int, memory: float, seed: int, *, series: int = SEEDS) -> np.ndarray:
    """`series` stationary AR(1) series of mean 0 and variance 1, shape (series, n)."""
    rng = np.random.default_rng(seed)
    shocks = rng.standard_normal((series, n)) * np.sqrt(1 - memory**2)
    made = np.empty((series, n))
    made[:, 0] = rng.standard_normal(series)
    for i in range(1, n):
        made[:, i] = memory * made[:, i - 1] + shocks[:, i]
    return made


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8, 0.9])
@pytest.mark.parametrize("n", [200, 1000])
def test_nominal_95_percent_hold_the_true_mean_in_at_least_90_percent_of_the_seeds(n: int, memory: float) -> None:
    held = sum(abs(one.mean()) <= mean_error(one).half_width for one in autoregressive(n, memory, seed=n))
    assert held >= 0.90 * SEEDS


def test_an_interval_for_independent_data_would_not_hold() -> None:
    """Otherwise the tests above could not fail."""
    series = autoregressive(200, 0.9, seed=1)
    held = sum(abs(one.mean()) <= 1.96 * one.std() / np.sqrt(one.size) for one in series)
    assert held < 0.6 * SEEDS


def test_intervals_of_independent_data_are_hardly_wider_than_they_need_be() -> None:
    widths = [mean_error(one).half_width for one in autoregressive(1000, 0.0, seed=2, series=50)]
    assert np.median(widths) == pytest.approx(1.96 / np.sqrt(1000), rel=0.15)


def test_what_repeats_itself_has_a_narrow_interval() -> None:
    wave = np.tile([0.0] * 5 + [1.0] * 5, 40)
    independent = 1.96 * wave.std() / np.sqrt(wave.size)
    assert mean_error(wave).half_width < independent


def test_blocks_grow_with_memory_and_are_single_without() -> None:
    lengths = {
        m: np.median([block_length(one) for one in autoregressive(1000, m, seed=3, series=40)]) for m in (0, 0.9)
    }
    assert lengths[0] <= 4
    assert lengths[0.9] > 20


def test_a_series_of_a_hundred_thousand_is_joined_and_still_right() -> None:
    long = autoregressive(100_000, 0.5, seed=4, series=1)[0]
    error = mean_error(long)
    true = np.sqrt((1 + 0.5) / (1 - 0.5) / long.size)
    assert error.standard_error == pytest.approx(true, rel=0.25)


def test_a_constant_has_no_error_and_two_entries_say_nothing() -> None:
    assert mean_error(np.full(100, 7.5)).half_width == 0
    assert autocorrelation(np.full(10, 3.0)) is None
    assert mean_error(np.array([1.0, 2.0])) is None
    assert mean_error(np.empty(0)) is None


def test_the_same_series_gives_the_same_error() -> None:
    series = autoregressive(500, 0.7, seed=5, series=1)[0]
    assert mean_error(series) == mean_error(series.copy())


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (1e9, 1.960)]
)
def test_t_quantiles_are_those_of_the_tables(freedom: float, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, rel=0.04)


def test_share_interval_of_nothing_in_a_hundred_reaches_to_the_rule_of_three() -> None:
    low, high = share_interval(0.0, 100)
    assert low == 0
    assert 0.03 < high < 0.04
    assert share_interval(0.5, 100) == pytest.approx((0.404, 0.596), abs=0.001)
