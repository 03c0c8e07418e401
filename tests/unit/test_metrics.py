"""Live metrics: sums of workers that never fall, exact series of finished levels, and what promtool thinks of both."""

import json
import shutil
import subprocess
import urllib.request
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.errors import LoadgenError
from loadgen.metrics.collector import LiveMetrics
from loadgen.metrics.endpoint import serve_metrics
from loadgen.metrics.live import EDGES_S, LiveHistograms, LiveLatencies
from loadgen.stats.level import level_object
from tests.level_records import closed_loop, normal, plan, request


def snapshot(ok: int, *, in_flight: int = 0, lag_ns: int | None = None, **more: Any) -> dict[str, Any]:
    histogram = LiveHistograms()
    histogram.observe_many(np.full(ok, 50_000_000))
    return {
        "requests": {"ok": ok},
        "output_tokens": 10 * ok,
        "input_tokens": 100 * ok,
        "in_flight": in_flight,
        "client": {"loop_lag_ns": lag_ns},
        "histograms": {"ttft": histogram.snapshot()},
        **more,
    }


def shown(metrics: LiveMetrics) -> dict[str, float]:
    """`name` or `name{label="value"}` → value, of everything but histogram buckets."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def live() -> LiveMetrics:
    return LiveMetrics(scenario="chat", version="1.2.3")


def test_workers_latest_snapshots_are_added_up() -> None:
    metrics = live()
    metrics.update_worker(0, snapshot(3))
    metrics.update_worker(0, snapshot(5, in_flight=2, lag_ns=1_000_000))
    metrics.update_worker(1, snapshot(7, in_flight=1, lag_ns=4_000_000, requests={"ok": 7, "http_503": 2}))
    found = shown(metrics)
    assert found['loadgen_requests_total{status="ok"}'] == 12
    assert found['loadgen_requests_total{status="http_503"}'] == 2
    assert (found["loadgen_output_tokens_total"], found["loadgen_input_tokens_total"]) == (120, 1200)
    assert found["loadgen_time_to_first_token_seconds_count"] == 12
    assert found["loadgen_time_to_first_token_seconds_sum"] == pytest.approx(0.6)
    assert (found["loadgen_requests_in_flight"], found["loadgen_workers"]) == (3, 2)
    assert found['loadgen_requests_total{status="timeout_between_tokens"}'] == 0, "there before its first failure"
    assert found["loadgen_client_loop_lag_seconds"] == 0.004
    assert (metrics.output_tokens(), metrics.failed(), metrics.in_flight()) == (120, 2, 3)


def test_each_figure_of_the_clients_is_the_worst_worker_s_and_absent_where_nobody_told_it() -> None:
    metrics = live()
    calm = {"hub_lag_ns": 1_000_000, "gc_pause_ns": 0, "coalesced_share": 0.5, "send_lag_ns": None}
    metrics.update_worker(0, snapshot(1, client=calm | {"resident_bytes": 10**8, "cpu_process": 0.25}))
    metrics.update_worker(1, snapshot(1, client=calm | {"hub_lag_ns": 30_000_000, "coalesced_share": None}))
    found = {name: value for name, value in shown(metrics).items() if name.startswith("loadgen_client_")}
    assert found == {
        "loadgen_client_hub_lag_seconds": 0.03,
        "loadgen_client_gc_pause_seconds": 0,
        "loadgen_client_coalesced_ratio": 0.5,
        "loadgen_client_process_cpu_ratio": 0.25,
        "loadgen_client_resident_memory_bytes": 10**8,
    }
    metrics.finished()
    assert not [name for name in shown(metrics) if name.startswith("loadgen_client_")]


def test_counters_stay_when_a_worker_vanishes_and_when_it_restarts() -> None:
    metrics = live()
    metrics.update_worker("a", snapshot(10, in_flight=4))
    metrics.remove_worker("a")
    found = shown(metrics)
    assert found['loadgen_requests_total{status="ok"}'] == 10
    assert (found["loadgen_requests_in_flight"], found["loadgen_workers"], found["loadgen_workers_lost"]) == (0, 0, 1)

    metrics.update_worker("a", snapshot(1))
    metrics.update_worker("a", snapshot(2))
    found = shown(metrics)
    assert found['loadgen_requests_total{status="ok"}'] == 12
    assert found["loadgen_time_to_first_token_seconds_count"] == 12
    assert found["loadgen_output_tokens_total"] == 120
    metrics.remove_worker("a")
    metrics.finished()
    assert shown(metrics)["loadgen_workers_lost"] == 0, "a worker that leaves when the run has ended is not lost"


def test_target_follows_the_level_and_nothing_is_in_flight_after_the_run() -> None:
    metrics = live()
    found = shown(metrics)
    assert not {"loadgen_target_concurrency", "loadgen_active_level", "loadgen_client_loop_lag_seconds"} & found.keys()
    metrics.set_target(2, 0)
    metrics.set_target(4, 1)
    metrics.update_worker(0, snapshot(1, in_flight=4))
    found = shown(metrics)
    assert (found["loadgen_target_concurrency"], found["loadgen_active_level"]) == (4, 1)
    metrics.finished()
    metrics.update_worker(0, snapshot(2, in_flight=4))  # it was under way
    found = shown(metrics)
    assert (found["loadgen_requests_in_flight"], found["loadgen_target_concurrency"]) == (0, 0)
    assert "loadgen_active_level" not in found
    assert found['loadgen_requests_total{status="ok"}'] == 2


def test_level_series_are_exact_and_stay() -> None:
    metrics = live()
    metrics.set_model("m")
    level = level_object(plan(level=3, server={"max_num_seqs": 8}), [normal(11, 100, 50, user=i) for i in range(4)], [])
    metrics.add_level(level)
    metrics.set_target(9, 4)
    found = shown(metrics)
    labels = 'concurrency="1",level="3",max_num_seqs="8",model="m",{}scenario="chat"'
    assert found["loadgen_level_ttft_seconds{" + labels.format('quantile="0.95",') + "}"] == 0.1
    assert found["loadgen_level_tpot_seconds{" + labels.format('quantile="0.5",') + "}"] == 0.05
    assert found["loadgen_level_itl_seconds_count{" + labels.format("") + "}"] == 40
    assert found["loadgen_level_itl_seconds_sum{" + labels.format("") + "}"] == pytest.approx(2.0)
    assert found["loadgen_level_output_tokens_per_second{" + labels.format("") + "}"] == 44.0
    assert found["loadgen_level_requests_per_second{" + labels.format("") + "}"] == 4.0
    assert found["loadgen_level_served_requests_per_second{" + labels.format("") + "}"] == 4.0
    assert found["loadgen_level_valid{" + labels.format("") + "}"] == 0
    assert found["loadgen_level_requests{" + labels.format("") + ',status="ok"}'] == 4
    assert found['loadgen_run_info{model="m",scenario="chat",version="1.2.3"}'] == 1


def test_level_without_a_figure_has_no_sample_of_it() -> None:
    metrics = live()
    metrics.add_level(level_object(plan(), [request(status="connect", finished_ms=1, sent_ns=None)], []))
    names = {name.partition("{")[0] for name in shown(metrics)}
    assert {name for name in names if name.startswith("loadgen_level_")} == {
        "loadgen_level_output_tokens_per_second",
        "loadgen_level_input_tokens_per_second",
        "loadgen_level_requests_per_second",
        "loadgen_level_served_requests_per_second",
        "loadgen_level_sent_requests_per_second",
        "loadgen_level_achieved_concurrency",
        "loadgen_level_window_seconds",
        "loadgen_level_requests",
        "loadgen_level_valid",
    }


def test_edges_reach_below_a_millisecond_and_above_ten_minutes() -> None:
    assert EDGES_S[0] < 0.001
    assert EDGES_S[-1] > 600
    assert list(EDGES_S) == sorted(set(EDGES_S))
    assert {0.2, 0.5, 1.0, 2.0, 5.0, 10.0} <= set(EDGES_S)  # where people put their SLOs


def test_value_on_an_edge_belongs_to_the_bucket_below_it() -> None:
    histogram = LiveHistograms()
    histogram.observe_many([round(edge * 1e9) for edge in EDGES_S])
    histogram.observe_many([10**13])
    assert histogram.snapshot()["counts"] == [1] * (len(EDGES_S) + 1)


def test_fractional_weights_are_rounded_in_the_running_total_and_never_fall() -> None:
    histogram = LiveHistograms()
    earlier = np.zeros(len(EDGES_S) + 1, np.int64)
    for i in range(50):
        histogram.observe_many(np.array([1_000_000, 700_000_000]) * (1 + i % 3), np.array([0.3, 1.5]))
        counts = histogram.snapshot()["counts"]
        assert json.loads(json.dumps(counts)) == counts
        reached = np.cumsum(counts)
        assert (reached >= earlier).all()
        earlier = reached
    assert earlier[-1] == 90


def test_live_latencies_use_the_level_object_s_definitions() -> None:
    records = [
        *closed_loop(2, 5),
        request(0, [200, 260, 340], event_tokens=[1, 3, 4], n=8),
        request(0, [1], status="short"),
    ]
    latencies = LiveLatencies()
    latencies.add([])
    for record in records:
        latencies.add([record])
    level = level_object(plan(-1000, 10_000), records, [])
    for name, histogram in latencies.snapshot().items():
        assert sum(histogram["counts"]) == level[f"n_{name}"], name
        assert histogram["sum_ns"] / 1e6 == pytest.approx(level[f"mean_{name}_ms"] * level[f"n_{name}"]), name


def test_endpoint_serves_the_registry_until_it_is_closed() -> None:
    metrics = live()
    server = serve_metrics(metrics.registry, "127.0.0.1", 0)
    try:
        metrics.update_worker(0, snapshot(6))
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            assert 'loadgen_requests_total{status="ok"} 6.0' in answer.read().decode()
        with pytest.raises(LoadgenError, match=f"cannot listen on 127.0.0.1:{server.port}") as refused:
            serve_metrics(metrics.registry, "127.0.0.1", server.port)
        assert refused.value.exit_code == 2
        assert "--metrics-port" in str(refused.value.hint)
    finally:
        server.close()
    again = serve_metrics(metrics.registry, "127.0.0.1", server.port)
    again.close()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("stage", ["before", "during", "after"])
def test_promtool_accepts_what_a_scrape_shows(stage: str) -> None:
    metrics = live()
    if stage != "before":
        metrics.set_model('a "quoted" \\ model')
        metrics.set_target(2, 0)
        metrics.update_worker(0, snapshot(5, in_flight=2, lag_ns=1))
    if stage == "after":
        metrics.add_level(level_object(plan(concurrency=2), closed_loop(2, 20), []))
        metrics.add_level(level_object(plan(level=1), [request(status="connect", finished_ms=1)], []))
        metrics.finished()
    text = generate_latest(metrics.registry)
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
