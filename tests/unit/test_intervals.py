"""Intervals of a level's figures: they hold the truth, say nothing where samples do not, and cost little."""

from __future__ import annotations

import time
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from loadgen.record import RequestRecord
from loadgen.stats.intervals import percentile_intervals
from loadgen.stats.latency_fields import PERCENTILES
from loadgen.stats.level import level_object
from tests.level_records import MS, closed_loop, normal, plan, request
from tests.unit.test_long_run import autoregressive

SEEDS = 200


@pytest.mark.parametrize(("n", "memory"), [(200, 0.0), (200, 0.5), (1000, 0.5), (1000, 0.8), (1000, 0.9)])
def test_nominal_95_percent_hold_the_true_percentile_in_at_least_90_percent_of_the_seeds(n: int, memory: float) -> None:
    true = [NormalDist().inv_cdf(percent / 100) for percent in PERCENTILES]
    held = dict.fromkeys(PERCENTILES[:3], 0)
    for series in autoregressive(n, memory, seed=8):
        for percent, value, (low, high) in zip(PERCENTILES[:3], true, percentile_intervals(series), strict=False):
            # A bound that the samples cannot carry bounds nothing, so it does not exclude the truth either.
            held[percent] += (low is None or low <= value) and (high is None or value <= high)
    assert min(held.values()) >= 0.90 * SEEDS, held


def test_a_percentile_beyond_the_samples_is_extrapolated_or_has_no_upper_bound() -> None:
    values = np.random.default_rng(1).exponential(size=60)
    bounds = dict(zip(PERCENTILES, percentile_intervals(values), strict=True))
    assert None not in bounds[50]
    # Three samples lie beyond P95: the bound is at least the largest. Beyond P99 there is not even one.
    assert bounds[95][1] is not None
    assert bounds[95][1] >= values.max()
    assert bounds[99][1] is None
    assert percentile_intervals(np.array([1.0, 2.0])) == []


def noisy_level(n: int = 400, *, slo: dict[str, float] | None = None, failures: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    records: list[RequestRecord] = [
        normal(20, float(first), float(gap), sent_ms=1000 * 50 * i / n, index=i, input_tokens=10)
        for i, (first, gap) in enumerate(zip(rng.gamma(4, 50, n), rng.gamma(40, 0.5, n), strict=True))
    ]
    records += [request(100.0 * i, status="http_503", finished_ms=100.0 * i + 1) for i in range(failures)]
    return level_object(plan(0, 50_000), records, [], slo=slo)


def test_every_interval_holds_its_own_figure_and_is_of_a_field_that_there_is() -> None:
    level = noisy_level(slo={"ttft_p95": 400.0, "error_rate": 0.1}, failures=20)
    assert {"p50_ttft_ms", "p95_tpot_ms", "p95_itl_ms", "p90_e2el_ms", "error_rate", "request_goodput"} <= set(
        level["intervals"]
    )
    for field, (low, high) in level["intervals"].items():
        assert low <= level[field] <= high, field
    assert level["intervals"]["request_throughput"] == level["intervals"]["completed_request_rate"]


def test_more_requests_give_narrower_intervals() -> None:
    def width(level: dict[str, Any]) -> float:
        low, high = level["intervals"]["p50_ttft_ms"]
        return float(high - low)

    assert width(noisy_level(4000)) < 0.6 * width(noisy_level(400))


def test_an_slo_holds_misses_or_is_not_decided() -> None:
    p95 = noisy_level(4000, slo={"ttft_p95": 1.0})["slo"]["ttft_p95"]
    high = p95["interval"][1]
    assert p95["holds"] is False
    assert noisy_level(4000, slo={"ttft_p95": high})["slo"]["ttft_p95"]["holds"] is True
    about = noisy_level(4000, slo={"ttft_p95": (p95["value"] + high) / 2})["slo"]["ttft_p95"]
    assert (about["met"], about["holds"]) == (True, None)
    few = noisy_level(30, slo={"ttft_p99": 10_000.0})["slo"]["ttft_p99"]
    assert few["interval"][1] is None
    assert few["holds"] is None


def test_an_error_rate_holds_without_a_failure_and_else_with_its_bound() -> None:
    def holds(failures: int, limit: float) -> bool | None:
        found: bool | None = noisy_level(400, slo={"error_rate": limit}, failures=failures)["slo"]["error_rate"][
            "holds"
        ]
        return found

    assert holds(0, 0.001) is True
    assert holds(4, 0.011) is None
    assert holds(4, 0.05) is True
    assert holds(100, 0.05) is False


def test_requests_in_step_have_exact_intervals_and_no_request_has_none() -> None:
    level = level_object(plan(0, 5000, concurrency=4), closed_loop(4, 60), [])
    assert level["intervals"]["p50_ttft_ms"] == [50.0, 50.0]
    assert level["intervals"]["p50_tpot_ms"] == [10.0, 10.0]
    nothing = level_object(plan(), [], [])
    assert {name for name in nothing["intervals"] if name.endswith("_ms")} == set()


def test_requests_that_end_at_once_have_a_rate_but_no_interval_of_it() -> None:
    level = level_object(plan(0, 900), [request(100 + 20 * k, [100 + 20 * k]) for k in range(40)], [])
    assert level["served_request_rate"] == pytest.approx(40 / 0.9)
    assert level["intervals"].get("served_request_rate") is None


def test_a_level_of_a_hundred_thousand_requests_gets_its_intervals_in_about_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from loadgen.stats import level as module

    spent: list[float] = []
    real = module.level_intervals

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.process_time()
        found = real(*args, **kwargs)
        spent.append(time.process_time() - began)
        return found

    monkeypatch.setattr(module, "level_intervals", timed)
    rng = np.random.default_rng(1)
    tokens, n = 5, 100_000
    gaps = rng.gamma(40, 0.25 * MS, (n, tokens)).astype(np.int64)
    arrivals = np.cumsum(gaps, axis=1) + (np.arange(n) * MS)[:, None]
    records = [
        RequestRecord(
            level=0,
            index=i,
            user=0,
            worker=0,
            status="ok",
            dispatched_ns=i * MS,
            finished_ns=int(row[-1]),
            sent_ns=i * MS,
            first_token_ns=int(row[0]),
            first_visible_ns=int(row[0]),
            last_token_ns=int(row[-1]),
            output_tokens=tokens,
            output_tokens_source="usage",
            arrivals_ns=row,
        )
        for i, row in enumerate(arrivals)
    ]
    level = level_object(plan(0, n), records, [])
    assert level["n_ttft"] == n
    assert len(level["intervals"]) > 15
    # On an idle core a third of it; processor time, so that other processes do not count.
    assert spent[0] < 3.0
