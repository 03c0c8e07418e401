"""Gives docs/prometheus.md with its list of metrics as the code has them; the rest of the page is left as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import Metric

from loadgen.metrics.collector import LiveMetrics
from loadgen.metrics.level_series import GAUGES, QUANTILES, SUMMARIES
from loadgen.record import OK

PAGE = Path(__file__).resolve().parents[2] / "docs" / "prometheus.md"

_LEVEL = "loadgen_level_"
_MARKED = "(<!-- {} metrics, made by `python -m loadgen.cli.reference --write` -->\n).*?(<!-- end -->)"


def prometheus_page() -> str:
    """docs/prometheus.md. Raises ValueError when its marks are gone."""
    text = PAGE.read_text(encoding="utf-8")
    families = list(_run_with_everything().collect())
    for mark, of_levels in (("live", False), ("level", True)):
        table = _table(family for family in families if family.name.startswith(_LEVEL) == of_levels)
        text, found = re.subn(
            _MARKED.format(mark), lambda match, table=table: f"{match[1]}\n{table}\n{match[2]}", text, flags=re.DOTALL
        )
        if found != 1:
            raise ValueError(f"{PAGE.name} has {found} lists marked as {mark} metrics")
    return text


def _run_with_everything() -> LiveMetrics:
    """Every series there is, so that its labels can be read off."""
    level = {"concurrency": 1, "server": {"max_num_seqs": 1}, "level": 0, "requests": {OK: 1}, "valid": True}
    level |= dict.fromkeys(GAUGES, 1)
    for latency in SUMMARIES:
        level |= {f"n_{latency}": 1, f"mean_{latency}_ms": 1}
        level |= {f"{statistic}_{latency}_ms": 1 for statistic in QUANTILES.values()}
    metrics = LiveMetrics(scenario="s", version="v")
    metrics.set_model("m")
    metrics.add_level(level)
    return metrics


def _table(families: Iterable[Metric]) -> str:
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels)
        # `le` and `quantile` are how Prometheus writes the type down.
        named = ", ".join(f"`{label}`" for label in labels if label not in ("le", "quantile"))
        rows.append(f"| `{name}` | {family.type} | {named} | {family.documentation} |")
    return "\n".join(rows) + "\n"
