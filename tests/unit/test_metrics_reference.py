"""docs/prometheus.md lists what the code exports, and a worker needs no Prometheus library."""

import subprocess
import sys

from prometheus_client.core import Metric

from loadgen.metrics.collector import LiveMetrics
from loadgen.metrics.reference import PAGE, prometheus_page


def test_the_page_lists_the_metrics_as_the_code_has_them() -> None:
    assert PAGE.read_text(encoding="utf-8") == prometheus_page(), "run python -m loadgen.cli.reference --write"


def test_every_metric_is_on_the_page_by_the_name_that_prometheus_stores() -> None:
    families: list[Metric] = list(LiveMetrics(scenario="s", version="v").collect())
    assert len(families) > 20
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"| `{name}` | {family.type} |" in PAGE.read_text(encoding="utf-8")


def test_a_worker_imports_no_prometheus_client() -> None:
    program = "import locust, sys, loadgen.worker.process; print(*sys.modules, sep='\\n')"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "loadgen.metrics.live" in modules
    assert not [name for name in modules if name.partition(".")[0] == "prometheus_client"]
