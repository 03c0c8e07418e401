"""Rules and dashboard of k8s/monitoring: promtool takes the rules, they do what they say, and each series in both is one that there is."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from loadgen import record
from loadgen.cli.reference import ROOT
from loadgen.stats.client_rules import MOST_LOOP_CPU, STALL_MS
from tests.k8s.dashboard import DASHBOARD, panels, queries
from tests.k8s.rendered import K8S, needs_kubectl, one, rendered

RULES = yaml.safe_load((K8S / "monitoring/rules.yaml").read_text(encoding="utf-8"))["spec"]
EVERY_RULE = [rule for group in RULES["groups"] for rule in group["rules"]]
EXPRESSIONS = [*(rule["expr"] for rule in EVERY_RULE), *(query.promql for query in queries())]
RECORDED = {rule["record"] for rule in EVERY_RULE if "record" in rule}
# Compared with the code by its own test.
PAGE = (ROOT / "docs/prometheus.md").read_text(encoding="utf-8")
SERVERS = (ROOT / "loadgen/server_metrics/parse.py").read_text(encoding="utf-8")
# What Prometheus itself, or the Prometheus Operator, adds to every series.
ADDED_LABELS = {"namespace", "job", "pod", "le", "quantile"}


def promtool(*words: str, folder: Path) -> None:
    told = subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_the_rules_do_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(RULES))
    tests = ROOT / "tests/samples/k8s/rules.test.yaml"
    shutil.copy(tests, tmp_path)
    promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yaml", folder=tmp_path)
    promtool("test", "rules", tests.name, folder=tmp_path)
    alerts = {rule["alert"] for rule in EVERY_RULE if "alert" in rule}
    assert alerts == set(re.findall(r'alertname="(\w+)"', tests.read_text(encoding="utf-8")))


def metrics_of_the_page() -> dict[str, set[str]]:
    """Each name → its labels; a histogram's and a summary's series too."""
    found: dict[str, set[str]] = {}
    everywhere = set(re.findall(r"`(\w+)`", re.search(r"^Each has the labels (.*)$", PAGE, re.M)[1]))  # type: ignore[index]
    for name, kind, labels in re.findall(r"^\| `(loadgen_\w+)` \| (\w+) \| ([^|]*) \|", PAGE, re.M):
        own = set(re.findall(r"`(\w+)`", labels)) | (everywhere if name.startswith("loadgen_level_") else set())
        parts = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}.get(kind, ("",))
        found |= {name + part: own for part in parts}
    return found


def test_every_series_of_rules_and_dashboard_is_there_with_these_labels() -> None:
    known, named = metrics_of_the_page(), set()
    assert len(known) > 50
    for expression in EXPRESSIONS:
        for name, _, selector in re.findall(r"\b((loadgen|vllm)[\w:]+)(?:\{([^}]*)\})?", expression):
            named.add(name)
            labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", selector)) - ADDED_LABELS
            if name.startswith("vllm:"):
                assert re.sub("_bucket$", "", name) in SERVERS, name
            elif name not in RECORDED:
                assert labels <= known[name], f"{name}: {labels - known[name]}"
        groups = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
        series = [known[name] for name in named if name in known and name in expression]
        assert groups <= set().union(ADDED_LABELS, *series), expression
    live = {name for name in known if not name.startswith("loadgen_level_")} - {"loadgen_run_info"}
    assert {name for name in live if name.startswith("loadgen_soak_")}
    shown = {name for name in named if "_bucket" in name or name in live}
    missing = {name for name in live if not name.endswith(("_sum", "_count"))} - shown
    assert missing == set(), "the dashboard should show every live series"


def test_limits_of_alerts_are_those_of_the_verdict() -> None:
    limits = {rule["alert"]: rule["expr"] for rule in EVERY_RULE if "alert" in rule}
    assert limits["LoadgenClientBusy"].endswith(f"> {MOST_LOOP_CPU:g}")
    assert limits["LoadgenClientStalled"].endswith(f"> {STALL_MS / 1e3:g}")
    statuses = [value for name, value in vars(record).items() if name.isupper() and isinstance(value, str)]
    no_failure = {status for status in statuses if not record.is_failure(status)}
    assert "timeout_connect" in statuses
    for expression in EXPRESSIONS:
        for matched in re.findall(r'status!~"([^"]*)"', expression):
            assert set(matched.split("|")) == no_failure


def test_the_dashboard_has_its_five_rows_and_whole_panels() -> None:
    assert list(dict.fromkeys(row for row, _ in panels())) == ["Live", "Levels", "Client health", "Server", "Soak"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for _, panel in panels():
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}" and panel["targets"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
    places = [
        (panel["gridPos"]["y"] + down, panel["gridPos"]["x"] + right)
        for panel in DASHBOARD["panels"]
        for down in range(panel["gridPos"]["h"])
        for right in range(panel["gridPos"]["w"])
    ]
    assert len(set(places)) == len(places), "two panels lie upon each other"


def test_levels_are_shown_by_concurrency_and_by_max_num_seqs() -> None:
    charts = {panel["title"]: panel for row, panel in panels() if row == "Levels" and panel["type"] == "barchart"}
    wanted = ["P50 time to first token", "P95 time to first token", "Output throughput"]
    for begin in wanted:
        (chart,) = (chart for title, chart in charts.items() if title == f"{begin}, by concurrency and max_num_seqs")
        assert "by (scenario, max_num_seqs, concurrency)" in chart["targets"][0]["expr"]
    for chart in charts.values():
        matrix = chart["transformations"][-1]["options"]
        assert chart["options"]["xField"] == f"{matrix['rowField']}\\{matrix['columnField']}"
        query = chart["targets"][0]["expr"]
        assert matrix["rowField"] in re.findall(r"by \(([^)]*)\)", query)[0].split(", ")
        assert f'"{matrix["columnField"]}", " ", "scenario", "max_num_seqs")' in query


def test_a_soaks_figure_holds_until_the_next_window_and_is_not_drawn_over_one_without_it() -> None:
    shown = [panel for row, panel in panels() if row == "Soak"]
    assert len(shown) == 9
    for panel in shown:
        drawn = panel["fieldConfig"]["defaults"]["custom"]
        assert drawn["lineInterpolation"] == "stepAfter"
        assert not drawn.get("spanNulls", False)
        assert all(target["expr"].startswith("max(loadgen_soak_window") for target in panel["targets"])


@needs_kubectl
def test_grafana_finds_the_dashboard_in_its_config_map() -> None:
    made = one(rendered("overlays/sim"), "ConfigMap", "loadgen-dashboard")
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert made["data"]["loadgen.json"] == (K8S / "monitoring/dashboard.json").read_text(encoding="utf-8")
