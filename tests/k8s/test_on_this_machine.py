"""The containers' command lines, run to their end on this machine, with Prometheus beside them as the manifests have it."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.busy_machine import measured
from tests.fleet.test_prometheus import ended_at_last
from tests.fleet.test_run import free_port
from tests.k8s.dashboard import queries
from tests.k8s.on_this_machine import LOOPBACK, Here
from tests.k8s.rendered import Resource, needs_kubectl, one, overlay, pod, pods, rendered, selected
from tests.prometheus_process import Prometheus, get, running_prometheus, until

# A whole fleet of processes at once, and a Prometheus that samples them.
pytestmark = [needs_kubectl, pytest.mark.alone, pytest.mark.timeout(240)]

SHORT = {
    "LOADGEN_LOAD_CONCURRENCY": "2,4",
    "LOADGEN_LOAD_WARMUP": "1s",
    "LOADGEN_LOAD_DURATION": "4s",
    "LOADGEN_WORKLOAD_INPUT_TOKENS": "64",
    "LOADGEN_WORKLOAD_OUTPUT_TOKENS": "16",
}


def fleet(here: Here, resources: list[Resource], **env: str) -> subprocess.CompletedProcess[str]:
    """Controller and workers, from their start to their end."""
    workers = one(resources, "Job", "loadgen-worker")["spec"]["completions"]
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(here.running("loadgen-worker", env)) for _ in range(workers)]
        controller = stack.enter_context(here.running("loadgen-controller", {**SHORT, **env}))
        told, _ = controller.communicate(timeout=120)
        assert "run folder: " in told, told  # else the workers would await it for minutes
        assert [worker.wait(30) for worker in started] == [0] * workers
    return subprocess.CompletedProcess(controller.args, controller.returncode, told, told)


def answers(url: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException), urllib.request.urlopen(url, timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def test_a_fleet_measures_an_endpoint_with_the_key_of_the_secret(tmp_path: Path) -> None:
    of_server, resources = overlay("sim"), overlay("existing-endpoint")
    simulator = Here(of_server, tmp_path)
    url = f"http://{LOOPBACK}:{simulator.ports[8000]}"
    here = Here(resources, tmp_path, further={"https://llm.example.com": url})
    with simulator.running("llm", {"SIM_API_KEY": "sk-of-the-secret"}):
        until(lambda: answers(f"{url}/health"), within_s=30)
        ended = fleet(here, resources, OPENAI_API_KEY="sk-of-the-secret")
        assert measured(ended), ended.stdout
    (folder,) = (here.runs / "kubernetes-endpoint").iterdir()
    levels = json.loads((folder / "summary.json").read_text())["levels"]
    assert [level["requests"].keys() for level in levels] == [{"ok"}, {"ok"}]
    assert len(list((folder / "records").glob("*.spool"))) == 3
    shown = Here(rendered("results"), tmp_path)
    (results,) = pods(rendered("results"))
    port = free_port()
    shown._word = lambda word, each, to=shown._word: str(port) if word == "8080" else to(word, each)  # type: ignore[method-assign,misc]
    with shown.running(results):
        until(lambda: answers(f"http://{LOOPBACK}:{port}/kubernetes-endpoint/{folder.name}/report.html"), within_s=15)


@contextlib.contextmanager
def operated_prometheus(resources: list[Resource], here: Here, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus as the operator makes it of the overlay's PodMonitors and rules, but ten times as quick."""
    jobs, rules = [], []
    for each in resources:
        name, spec = each["metadata"]["name"], each.get("spec", {})
        if each["kind"] == "PrometheusRule":
            rules.append(spec)
        if each["kind"] != "PodMonitor":
            continue
        (scraped,) = selected(resources, spec["selector"]["matchLabels"])
        (end,) = spec["podMetricsEndpoints"]
        assert end["interval"] == "5s"
        labels = {"namespace": each["metadata"]["namespace"], "pod": scraped.owner}
        target = f"{LOOPBACK}:{here.ports[scraped.ports[end['port']]]}"
        jobs.append(
            {
                "job_name": f"{labels['namespace']}/{name}",
                "metrics_path": end["path"],
                "static_configs": [{"targets": [target], "labels": labels}],
            }
        )
    (folder / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [group for rule in rules for group in rule["groups"]]})
    )
    config = {"global": {"scrape_interval": "500ms"}, "rule_files": ["rules.yaml"], "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with running_prometheus(folder) as found:
        yield found


def over_time(stored: Prometheus, query: str, start: float, end: float) -> list[Any]:
    told = get(f"{stored.url}/api/v1/query_range", query=query, start=str(start), end=str(end), step="1")
    return [point for series in json.loads(told)["data"]["result"] for point in series["values"] if point[1] != "NaN"]


@pytest.mark.skipif(not shutil.which("prometheus"), reason="Prometheus is not installed")
def test_every_query_of_dashboard_and_rules_has_data_after_real_runs(tmp_path: Path) -> None:
    resources = overlay("sim")
    here = Here(resources, tmp_path)
    simulator = pod(resources, "llm")
    api = f"http://{LOOPBACK}:{here.ports[simulator.ports['api']]}"
    with here.running("llm"), operated_prometheus(resources, here, tmp_path) as stored:
        for probe in ("startupProbe", "readinessProbe"):
            path = simulator.container[probe]["httpGet"]["path"]
            until(lambda path=path: answers(f"{api}{path}"), within_s=30)
        start = wall()
        assert measured(ended := fleet(here, resources)), ended.stdout
        assert "comes every 0.5 s" in ended.stdout  # by what Prometheus says of itself
        (folder,) = (here.runs / "kubernetes").iterdir()
        levels = json.loads((folder / "summary.json").read_text())["levels"]
        # A server that the run starts is swept; a schedule has figures that users have not; a soak's windows come 15 s after
        # their end.
        metrics = str(here.ports[9646])
        quick = ["--metrics-port", metrics, "--warmup", "1s", "--duration", "3s", "--workers", "1"]
        quick += ["--input-tokens", "64", "--output-tokens", "16", "--slo", "ttft_p95<2s"]
        for number, further in enumerate(
            (
                ["--sweep", "max_num_seqs=2,4", "--concurrency", "2,6"],
                ["--request-rate", "8", "--arrival-pattern", "constant", "--duration", "20s", "--soak-window", "1s"],
            )
        ):
            command = [sys.executable, "-m", "loadgen", "run", "-o", str(tmp_path / f"out{number}"), *quick, *further]
            run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            with ended_at_last(run):
                told, _ = run.communicate(timeout=90)
            assert measured(subprocess.CompletedProcess(command, run.returncode, told, told)), told
        end = wall()
        empty = []
        for query in queries():
            promql = query.filled(rate_interval="4s", shown="10m")
            found = stored.now(promql, end) if query.at_once else over_time(stored, promql, start, end)
            if not found and "server_memory" not in query.promql:  # the simulator does not tell its own
                empty.append(f"{query.row}: {query.panel}: {promql}")
        assert empty == []
        for recorded in ("loadgen:output_tokens:rate1m", "loadgen:ttft_seconds:p95_1m"):
            assert over_time(stored, recorded, start, end), recorded
        told = json.loads(get(f"{stored.url}/api/v1/rules"))["data"]["groups"]
        assert [rule["health"] for group in told for rule in group["rules"]] == ["ok"] * 9
        by_load = next(query for query in queries() if query.panel.startswith("P95 time to first token, by conc"))
        shown = {
            (labels["setting"], labels["concurrency"]): value
            for labels, value in stored.now(by_load.filled(rate_interval="4s", shown="10m"), end)
        }
        assert shown.keys() == {
            *(("kubernetes ", users) for users in "24"),
            *((f"unnamed {sequences}", users) for sequences in "24" for users in "26"),
        }
        assert [shown["kubernetes ", str(level["concurrency"])] for level in levels] == [
            level["p95_ttft_ms"] / 1e3 for level in levels
        ]


def wall() -> float:
    """Prometheus labels its samples with the wall clock."""
    return float(time.clock_gettime(time.CLOCK_REALTIME))
