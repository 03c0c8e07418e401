"""The trend of a soak: found where it is, not where neighbours merely resemble each other."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.stats.columns import Floats
from loadgen.stats.soak_trend import FEWEST, MOST_CELLS, soak_trend


def autoregressive(n: int, rho: float, rng: np.random.Generator) -> Floats:
    """Noise whose neighbours correlate by `rho`, from its long run."""
    shocks = rng.normal(size=n + 50)
    values = np.zeros(n + 50)
    for k in range(1, n + 50):
        values[k] = rho * values[k - 1] + shocks[k]
    return values[50:]


def p_values(n: int, rho: float, *, slope: float = 0.0, seeds: int = 200) -> Floats:
    hours = np.arange(n) / 60
    found = (
        soak_trend(hours, autoregressive(n, rho, np.random.default_rng(seed)) + slope * np.arange(n), confidence=0.95)
        for seed in range(seeds)
    )
    return np.array([one.p_value for one in found if one is not None])


@pytest.mark.parametrize(("n", "rho"), [(10, 0.0), (60, 0.0), (60, 0.6), (240, 0.6)])
def test_noise_is_no_trend_even_where_neighbours_resemble_each_other(n: int, rho: float) -> None:
    # 5 % are expected; of 200 seeds up to 9.5 % is chance.
    assert (p_values(n, rho) <= 0.05).mean() <= 0.095


def test_without_the_correction_resembling_neighbours_would_look_like_a_trend() -> None:
    found = [
        soak_trend(np.arange(60.0), autoregressive(60, 0.6, np.random.default_rng(seed)), confidence=0.95)
        for seed in range(50)
    ]
    assert np.median([one.inflation for one in found if one is not None]) > 2


@pytest.mark.parametrize(("n", "slope"), [(10, 1.0), (60, 0.1), (240, 0.02)])
def test_a_trend_that_outgrows_the_noise_is_found(n: int, slope: float) -> None:
    assert (p_values(n, 0.0, slope=slope) <= 0.05).mean() >= 0.85


def test_the_slope_is_the_change_an_hour_and_its_interval_holds_it() -> None:
    hours = np.arange(60) / 60
    held = 0
    for seed in range(100):
        found = soak_trend(hours, 7 * hours + np.random.default_rng(seed).normal(0, 0.5, 60), confidence=0.95)
        assert found is not None and abs(found.slope - 7) < 1.5
        held += found.low <= 7 <= found.high
    assert held >= 90


def test_a_few_wild_windows_do_not_move_the_slope() -> None:
    values = 100 + np.random.default_rng(1).normal(0, 1, 60)
    values[[50, 55, 58]] = 5000
    found = soak_trend(np.arange(60) / 60, values, confidence=0.95)
    assert found is not None and abs(found.slope) < 2 and found.p_value > 0.05


def test_a_constant_series_has_slope_zero_for_sure() -> None:
    found = soak_trend(np.arange(20.0), np.zeros(20), confidence=0.99)
    assert found is not None
    assert (found.slope, found.low, found.high, found.p_value) == (0, 0, 0, 1)


def test_too_few_cells_have_no_trend_and_very_many_are_joined() -> None:
    assert soak_trend(np.arange(FEWEST - 1.0), np.arange(FEWEST - 1.0), confidence=0.95) is None
    n = 10 * MOST_CELLS
    found = soak_trend(np.arange(n) / 60, np.arange(n) / 6, confidence=0.95)
    assert found is not None and found.slope == pytest.approx(10)
