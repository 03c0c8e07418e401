"""A real Prometheus scrapes real runs: what it stores is what the run measured, with the configuration and queries of docs/prometheus.md."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from loadgen.run_folder import RunFolder
from loadgen.spool import read_records
from tests.fleet.test_run import free_port
from tests.prometheus_process import Prometheus, get, running_prometheus, until

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = pytest.mark.alone

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "prometheus.md").read_text()
COUNTERS = [
    "loadgen_output_tokens_total",
    "loadgen_input_tokens_total",
    "loadgen_requests_total",
    *(f"loadgen_time_to_first_token_seconds_{part}" for part in ("bucket", "count", "sum")),
    *(f"loadgen_inter_token_latency_seconds_{part}" for part in ("bucket", "count", "sum")),
    *(f"loadgen_request_time_per_output_token_seconds_{part}" for part in ("bucket", "count", "sum")),
    *(f"loadgen_e2e_request_latency_seconds_{part}" for part in ("bucket", "count", "sum")),
]


def blocks_of_the_page(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)


@contextlib.contextmanager
def prometheus(folder: Path, target_port: int) -> Iterator[Prometheus]:
    """A Prometheus with the page's own configuration, but for the interval and the port."""
    (config,) = blocks_of_the_page("yaml")
    assert "5s" in config and "9646" in config
    (folder / "prometheus.yml").write_text(config.replace("5s", "500ms").replace("9646", str(target_port)))
    with running_prometheus(folder) as found:
        yield found


def promtool_says(text: bytes) -> tuple[int, bytes]:
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    return checked.returncode, checked.stdout + checked.stderr


def start_run(folder: Path, port: int, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "loadgen", "run", "-o", str(folder), "--metrics-port", str(port), *options]
    command += ["--input-tokens", "64", "--output-tokens", "32", "--workers", "2"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def ended_at_last(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.skipif(
    not shutil.which("prometheus") or not shutil.which("promtool"), reason="Prometheus is not installed"
)
def test_prometheus_stores_what_the_run_measured(tmp_path: Path) -> None:
    port, out = free_port(), tmp_path / "out"
    exact_ttft, exact_throughput, live_throughput, live_ttft, _by_rate = blocks_of_the_page("promql")
    with prometheus(tmp_path, port) as stored:
        run = start_run(out, port, "--concurrency", "1,2,4", "--warmup", "2s", "--duration", "5s")
        with ended_at_last(run):
            until(lambda: stored.now('loadgen_level_valid{level="1"}'), within_s=30)
            assert promtool_says(get(f"http://127.0.0.1:{port}/metrics")) == (0, b"")
            _, stderr = run.communicate(timeout=40)
        exited = time.monotonic()
        assert run.returncode == 0, stderr
        assert re.search(
            r"^/metrics stays up for 1 s, since the scraper at 127\.0\.0\.1 comes every 0\.5 s;", stderr, re.M
        )
        until(lambda: not stored.now("loadgen_run_info"), within_s=5)
        assert time.monotonic() - exited < 5
        assert not stored.now('{__name__=~"loadgen_.+"}')
        assert promtool_says((out / "metrics.prom").read_bytes()) == (0, b"")
        levels = json.loads((out / "summary.json").read_text())["levels"]

        def by_concurrency(query: str) -> dict[int, float]:
            return {int(labels["concurrency"]): value for labels, value in stored.now(query)}

        assert by_concurrency(exact_ttft) == {one["concurrency"]: one["p95_ttft_ms"] / 1e3 for one in levels}
        assert by_concurrency(exact_throughput) == {one["concurrency"]: one["output_throughput"] for one in levels}

        for name in COUNTERS:
            series = stored.samples(name)
            assert series, f"{name} is not there"
            for samples in series:
                values = [value for _, value in samples]
                assert values == sorted(values), f"{name} went down"
        (tokens,) = stored.samples("loadgen_output_tokens_total")
        (in_flight,) = stored.samples("loadgen_requests_in_flight")
        assert (max(in_flight, key=lambda sample: sample[1])[1], in_flight[-1][1]) == (4, 0)
        records = [record for path in (out / "records").glob("*.spool") for record in read_records(path)]
        counted = sum(len(one.arrivals_ns) if one.output_tokens is None else one.output_tokens for one in records)
        assert tokens[-1][1] == counted

        window_end_ns = {entry.plan.level: entry.plan.window_end_ns for entry in RunFolder.open(out).plans()}
        for level in levels:
            end = wall_instant(window_end_ns[level["level"]])
            ((_, number),) = stored.now("loadgen_active_level", at=end)
            assert number == level["level"]
            # Each worker reports once a second, so the last of its tokens are not there yet.
            ((_, rate),) = stored.now(live_throughput.replace("20s", "5s"), at=end)
            assert level["output_throughput"] / 1.5 < rate < 1.5 * level["output_throughput"]
            ((_, ttft_s),) = stored.now(live_ttft, at=end)
            assert levels[0]["p50_ttft_ms"] / 1.3 < ttft_s * 1e3 < 1.3 * max(one["max_ttft_ms"] for one in levels)


def wall_instant(monotonic_ns: int) -> float:
    """Prometheus labels its samples with the wall clock."""
    return datetime.now(UTC).timestamp() - (time.monotonic_ns() - monotonic_ns) / 1e9


def test_a_lost_worker_leaves_the_count_and_a_second_signal_ends_the_wait(tmp_path: Path) -> None:
    port = free_port()

    def scraped(name: str) -> float | None:
        found = re.search(rf"^{name} (.*)$", get(f"http://127.0.0.1:{port}/metrics").decode(), re.MULTILINE)
        return float(found[1]) if found else None

    options = ["--concurrency", "2", "--warmup", "0s", "--duration", "60s", "--linger", "60s"]
    run = start_run(tmp_path / "out", port, *options)
    with ended_at_last(run):
        until(lambda: scraped("loadgen_requests_in_flight") == 2, within_s=30)
        assert scraped("loadgen_workers") == 2
        told = ("loop_lag_seconds", "hub_lag_seconds", "loop_cpu_ratio", "process_cpu_ratio")
        until(lambda: all((scraped(f"loadgen_client_{name}") or 0) > 0 for name in told), within_s=10)
        assert (scraped("loadgen_client_resident_memory_bytes") or 0) > 10e6
        assert scraped("loadgen_client_send_lag_seconds") is None  # a closed loop has no schedule
        workers = [child for child in psutil.Process(run.pid).children() if "worker" in child.cmdline()]
        tokens = scraped("loadgen_output_tokens_total")
        workers[0].kill()
        until(lambda: scraped("loadgen_workers") == 1, within_s=10)
        assert (scraped("loadgen_output_tokens_total") or 0) >= (tokens or 0) > 0
        run.terminate()
        assert run.stderr is not None
        until(lambda: "/metrics stays up for 60 s, since metrics.linger" in run.stderr.readline(), within_s=20)
        assert scraped("loadgen_requests_in_flight") == 0
        run.terminate()
        assert run.wait(10) == 130
