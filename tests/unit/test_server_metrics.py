"""A level's server metrics: rises over the window, ranges of quantiles, what a server lacks, restarts and replicas."""

import csv
import io
from dataclasses import replace
from typing import Any

import pytest

from loadgen.metrics.level_series import textfile
from loadgen.report.summary import csv_text
from loadgen.server_metrics.sample import Buckets, GpuSample, ServerSample
from loadgen.stats.classes import RequestKind
from loadgen.stats.level import level_object
from loadgen.stats.limit import with_limits
from loadgen.stats.server_latencies import between
from tests.level_records import closed_loop, health, plan
from tests.server_samples import S, buckets, perfect_server, sample

WINDOW = (0, 4 * S)
RECORDS = closed_loop(4, 60, tokens=5, first_ms=50, gap_ms=10)
PLAN = plan(0, 4000, concurrency=4)


def level(samples: list[ServerSample], **fields: Any) -> dict[str, Any]:
    return level_object(plan(0, 4000, concurrency=4, **fields), RECORDS, [health()], server=samples)


def rules(one: dict[str, Any]) -> list[str]:
    return [found["rule"] for found in (*one["reasons"], *one["warnings"])]


def test_figures_are_rises_over_the_window_and_means_over_its_time() -> None:
    server = level(perfect_server(RECORDS, WINDOW, cap=3, kv_usage=0.4))["server_metrics"]
    assert (server["kind"], server["samples"], server["failed_scrapes"], server["restarts"]) == ("vllm", 5, 0, 0)
    assert (server["span_s"], server["largest_gap_s"]) == (4.0, 1.0)
    assert (server["mean_running"], server["max_running"], server["engines"]) == (3.0, 3, 1)
    assert (server["mean_waiting"], server["waiting_share"]) == (1.0, 1.0)
    assert server["waiting_by_reason"] == {"capacity": 1.0, "deferred": 0.0}
    assert (server["mean_kv_usage"], server["max_kv_usage"]) == (pytest.approx(0.4), 0.4)
    assert server["generation_tokens"] == pytest.approx(4 * 4 * 5 / 0.09, rel=0.02)
    assert (server["preemptions"], server["prefix_cache_hit_share"]) == (0, 0.0)
    assert server["latencies"]["ttft"]["mean_ms"] == pytest.approx(50.0)
    assert server["latencies"]["ttft"]["p50_low_ms"] == 40.0
    assert server["latencies"]["ttft"]["p50_high_ms"] == 60.0


def test_gauges_are_weighted_by_time_not_by_scrape() -> None:
    samples = [
        sample(at_ms * 1_000_000, gauges={"running": running, "waiting": 0.0})
        for at_ms, running in ((0, 0.0), (100, 0.0), (200, 0.0), (4000, 8.0))
    ]
    assert level(samples)["server_metrics"]["mean_running"] == pytest.approx(8 / 2 * 3.8 / 4.0)


def test_a_quantile_is_the_bucket_that_holds_its_rank_and_the_mean_is_exact() -> None:
    first = buckets([0.03] * 100)
    last = buckets([0.03] * 100 + [0.03] * 94 + [0.2] * 5 + [20.0])
    found = between(first, last)
    assert (found["n"], found["mean_ms"]) == (100, pytest.approx((94 * 0.03 + 5 * 0.2 + 20) * 10))
    assert (found["p50_low_ms"], found["p50_high_ms"]) == (20, 40)
    assert (found["p95_low_ms"], found["p95_high_ms"]) == (100, 250)
    assert (found["p99_low_ms"], found["p99_high_ms"]) == (100, 250)
    beyond = between(first, buckets([0.03] * 100 + [20.0]))
    assert (beyond["p50_low_ms"], beyond["p50_high_ms"]) == (10_000, None)


def test_nothing_observed_is_not_zero() -> None:
    same = Buckets((1.0, float("inf")), (3.0, 3.0), 2.0)
    assert between(same, same) == {"n": 0, "mean_ms": None} | {
        f"p{p}_{end}_ms": None for p in (50, 95, 99) for end in ("low", "high")
    }


def test_what_a_server_does_not_tell_is_none_and_fires_no_rule() -> None:
    samples = [sample(at_s * S, kind="llamacpp", started_s=None, gauges={"running": 4.0}) for at_s in range(5)]
    one = level(samples)
    server = one["server_metrics"]
    assert server["mean_running"] == 4.0
    for name in (
        "mean_waiting",
        "max_kv_usage",
        "preemptions",
        "prefix_cache_hit_share",
        "generation_tokens",
        "engines",
    ):
        assert server[name] is None, name
    assert (server["requests"], server["latencies"], server["gpus"]) == ({}, {}, [])
    assert server["reconciliation"]["other_traffic_share"] is None
    assert one["valid"] and rules(one) == rules(level([]))


def test_a_target_without_metrics_is_stated_and_no_error() -> None:
    one = level([ServerSample(0, 1, "the target has no /metrics (it answered 404)")])
    assert one["server_metrics"] is None
    assert one["no_server_metrics"] == "the target has no /metrics (it answered 404)"
    assert level([])["no_server_metrics"] == "the server's metrics were not sampled"
    assert rules(one) == rules(level([]))


def test_scrapes_that_cover_too_little_of_the_window_are_not_stretched_over_it() -> None:
    one = level(perfect_server(RECORDS, WINDOW)[:2])
    assert (one["server_metrics"], one["no_server_metrics"]) == (None, "too few samples of the server's metrics")


def test_a_scrape_that_failed_is_counted_and_the_others_are_used() -> None:
    samples = perfect_server(RECORDS, WINDOW)
    samples[2] = ServerSample(2 * S, 2 * S + 1, "the target's /metrics did not answer (TimeoutError)")
    server = level(samples)["server_metrics"]
    assert (server["samples"], server["failed_scrapes"], server["largest_gap_s"]) == (4, 1, 2.0)
    assert server["generation_tokens"] == level(perfect_server(RECORDS, WINDOW))["server_metrics"]["generation_tokens"]


@pytest.mark.parametrize("told", [True, False], ids=["by its process", "by its counters"])
def test_a_restart_makes_the_level_invalid_and_no_figure_reaches_across_it(told: bool) -> None:
    samples = perfect_server(RECORDS, WINDOW)
    for i in (3, 4):
        low = replace(samples[i], counters=dict.fromkeys(samples[i].counters, float(i)), histograms={})
        samples[i] = replace(low, started_s=200.0) if told else replace(low, started_s=None)
    one = level(samples)
    assert [reason["rule"] for reason in one["reasons"]] == ["server_restarted"]
    assert "once" in one["reasons"][0]["evidence"]
    server = one["server_metrics"]
    assert (server["restarts"], server["generation_tokens"], server["reconciliation"]) == (1, None, None)
    assert server["mean_running"] is not None


def test_a_restart_in_the_drain_counts_too_since_requests_end_there() -> None:
    after = sample(int(4.5 * S), started_s=200.0)
    assert "server_restarted" in rules(level([*perfect_server(RECORDS, WINDOW), after], drained_ns=5 * S))
    assert "server_restarted" not in rules(level([*perfect_server(RECORDS, WINDOW), after], drained_ns=int(4.2 * S)))


def test_replicas_that_answer_in_turn_are_no_restart() -> None:
    samples = [replace(one, started_s=100.0 + i % 2) for i, one in enumerate(perfect_server(RECORDS, WINDOW))]
    one = level(samples)
    assert one["no_server_metrics"] == "several servers answer in turn at the address of the metrics"
    assert "server_restarted" not in rules(one)


def test_hits_beyond_what_was_meant_are_a_warning_and_meant_ones_are_not() -> None:
    def cached(share: float) -> list[ServerSample]:
        return [
            replace(one, counters={**one.counters, "prefix_hits": share * one.counters["prefix_queries"]})
            for one in perfect_server(RECORDS, WINDOW)
        ]

    def judged(share: float, shared_tokens: int) -> list[str]:
        kinds = [RequestKind("all", 1.0, shared_tokens)]
        return rules(level_object(PLAN, RECORDS, [health()], server=cached(share), kinds=kinds))

    assert "prefix_cache_did_the_work" in judged(0.6, 0)
    assert "prefix_cache_did_the_work" not in judged(0.6, 60)
    assert "prefix_cache_did_the_work" not in judged(0.05, 0)
    assert level(cached(0.6))["server_metrics"]["prefix_cache_hit_share"] == pytest.approx(0.6)


def test_tokens_that_another_cache_supplied_count_as_hits() -> None:
    samples = [
        replace(one, counters={**one.counters, "external_prefix_hits": one.counters["prefix_queries"] / 2})
        for one in perfect_server(RECORDS, WINDOW)
    ]
    assert level(samples)["server_metrics"]["prefix_cache_hit_share"] == pytest.approx(0.5)


def test_gpus_are_summed_up_and_throttling_is_a_share_of_the_samples() -> None:
    samples = perfect_server(RECORDS, WINDOW)
    samples = [
        replace(
            one,
            gpus=(
                GpuSample(0, "H100", 0.5 + 0.1 * i, 60 << 30, 80 << 30, 500.0 + i, 700.0, 60 + i, 1400, 1980, 2619)
                if i != 3
                else GpuSample(0, "H100", throttle=("sw_power_cap",)),
            ),
        )
        for i, one in enumerate(samples)
    ]
    (gpu,) = level(samples)["server_metrics"]["gpus"]
    assert (gpu["index"], gpu["name"], gpu["memory_total_bytes"], gpu["power_limit_w"]) == (0, "H100", 80 << 30, 700.0)
    assert gpu["mean_utilisation"] == pytest.approx((0.5 + 0.6 + 0.7 + 0.9) / 4)
    assert (gpu["max_power_w"], gpu["max_temperature_c"]) == (504.0, 64.0)
    assert gpu["throttle"] == {"sw_power_cap": 0.2}


def test_series_and_columns_have_the_servers_figures_and_the_limit() -> None:
    (one,) = with_limits([level(perfect_server(RECORDS, WINDOW, cap=3, kv_usage=0.4), server={"max_num_seqs": 3})])
    text = textfile([one], "s", None).decode()
    labels = 'concurrency="4",level="0",max_num_seqs="3",model="",scenario="s"'
    assert f"loadgen_level_server_running_requests{{{labels}}} 3.0" in text
    assert f"loadgen_level_server_waiting_requests{{{labels}}} 1.0" in text
    assert f"loadgen_level_server_kv_cache_usage_ratio{{{labels}}} 0.4" in text
    assert 'loadgen_level_limit{concurrency="4",kind="scheduler",level="0"' in text
    bare = level([])
    without = textfile([bare], "s", None).decode()
    assert "loadgen_level_server_running_requests{" not in without and "loadgen_level_limit{" not in without
    first, second = csv.DictReader(io.StringIO(csv_text([one, bare])))
    assert (first["server_metrics.mean_running"], first["limit.kind"]) == ("3.0", "scheduler")
    assert first["server_metrics.latencies.ttft.p50_high_ms"] == "60.0"
    assert (second["server_metrics.mean_running"], second["limit.kind"]) == ("", "")
    assert second["no_server_metrics"] == "the server's metrics were not sampled"
