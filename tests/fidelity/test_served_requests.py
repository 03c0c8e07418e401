"""Requests a second by the share of their tokens in the window: as sure as it says, and surer than counting whole ones."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from loadgen.measured_run import read_run
from tests.virtual_run import VirtualRun


def levels(spread: float, seeds: int, folder: Path) -> list[dict[str, object]]:
    runs = (VirtualRun(concurrency=(8,), window_s=20, warmup_s=5, spread=spread, seed=seed) for seed in range(seeds))
    return [read_run(run.write(folder / str(number))).levels[0] for number, run in enumerate(runs)]


@pytest.mark.parametrize("spread", [0.3, 0.8])
def test_the_interval_holds_the_long_runs_rate_as_often_as_it_says(spread: float, tmp_path: Path) -> None:
    measured = levels(spread, 24, tmp_path)
    truth = statistics.fmean(level["completed_request_rate"] for level in measured)
    held = sum(low <= truth <= high for low, high in (level["intervals"]["served_request_rate"] for level in measured))
    assert held >= 21, "of 24 intervals of 95 %"
    assert statistics.fmean(level["served_request_rate"] for level in measured) == pytest.approx(truth, rel=0.01)


def test_users_in_step_make_whole_requests_a_poor_count_of_the_rate(tmp_path: Path) -> None:
    (level,) = levels(0.0, 1, tmp_path)
    width = {
        name: (level["intervals"][name][1] - level["intervals"][name][0]) / level[name]
        for name in ("completed_request_rate", "served_request_rate")
    }
    assert width["served_request_rate"] < width["completed_request_rate"] / 2
