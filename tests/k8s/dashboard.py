"""The dashboard of k8s/monitoring as queries that a Prometheus can be asked: its variables filled in; for tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.k8s.rendered import K8S

DASHBOARD: dict[str, Any] = json.loads((K8S / "monitoring/dashboard.json").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel."""

    row: str
    panel: str
    promql: str
    at_once: bool
    """Asked for one instant; else for every step of the time that the dashboard shows."""

    def filled(self, *, rate_interval: str, shown: str) -> str:
        """With the variables set to All, and Grafana's own to these."""
        text = self.promql.replace("$__rate_interval", rate_interval).replace("$__range", shown)
        for variable in DASHBOARD["templating"]["list"]:
            text = text.replace(f"${variable['name']}", ".*")
        assert "$" not in text, f"{self.panel}: a variable is not filled in: {text}"
        return text


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every panel with the title of its row."""
    row = ""
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            row = panel["title"].partition(":")[0]
        else:
            yield row, panel


def queries() -> list[Query]:
    found = [
        Query(row, panel["title"], target["expr"], target.get("instant", False))
        for row, panel in panels()
        for target in panel["targets"]
    ]
    return found + [
        Query("annotations", each["name"], each["expr"], False) for each in DASHBOARD["annotations"]["list"]
    ]
