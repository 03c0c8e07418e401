"""Nearest-rank percentiles, plain and weighted."""

import numpy as np
import pytest

from loadgen.stats.percentile import Samples, is_weak, nearest_rank, rank, weighted_nearest_rank


def test_percentile_is_a_measured_sample_and_never_interpolated() -> None:
    assert nearest_rank(np.array([40, 10, 30, 20]), (50, 75, 76, 95)) == [20, 30, 40, 40]


def test_no_samples_give_none_and_not_zero() -> None:
    assert nearest_rank(np.empty(0, np.int64), (50, 95)) == [None, None]
    assert weighted_nearest_rank(np.empty(0), np.empty(0), (50, 95)) == [None, None]
    assert Samples(np.empty(0)).mean_ns() is None
    assert Samples(np.empty(0), np.empty(0)).max_ns() is None


def test_rank_does_not_slip_by_a_binary_fraction() -> None:
    # 0.95 * 20 is 19 exactly; as a product of binary floats a neighbour of it would round up to 20.
    assert [rank(20, 95), rank(100, 99), rank(1000, 99.9), rank(7, 100), rank(1, 1)] == [19, 99, 999, 7, 1]


def test_percent_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="percent must lie in"):
        rank(10, 0)
    with pytest.raises(ValueError, match="percent must lie in"):
        rank(10, 101)


def test_percentile_with_fewer_than_five_samples_beyond_is_weak() -> None:
    assert is_weak(99, 95)
    assert not is_weak(100, 95)
    assert is_weak(499, 99)
    assert not is_weak(500, 99)


def test_whole_weights_are_repeated_samples() -> None:
    rng = np.random.default_rng(3)
    values, weights = rng.integers(0, 10**9, 500) / 7, rng.integers(0, 6, 500)
    percents = (1, 50, 90, 95, 99, 100)
    assert weighted_nearest_rank(values, weights, percents) == nearest_rank(np.repeat(values, weights), percents)


def test_fractional_weights_do_not_lose_a_sample_to_rounding() -> None:
    # Ten samples of weight 0.1 reach 0.5 of the whole at the fifth, although 0.1 added five times is not quite 0.5.
    values = np.arange(1.0, 11.0)
    assert weighted_nearest_rank(values, np.full(10, 0.1), (50, 100)) == [5.0, 10.0]


def test_negative_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        weighted_nearest_rank(np.array([-1.0, 2.0]), np.array([1.0, 1.0]), (50,))


def test_mean_of_weighted_samples_is_total_time_over_total_tokens() -> None:
    samples = Samples(np.array([15.0, 20.0]), np.array([4, 1]))
    assert (samples.n, samples.mean_ns(), samples.max_ns()) == (5, 16.0, 20.0)
