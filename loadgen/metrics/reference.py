"""Gives docs/prometheus.md with its list of metrics as the code has them; the rest of the page is left as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from prometheus_client.core import Metric

from loadgen.metrics.collector import LiveMetrics
from loadgen.metrics.level_series import GAUGES, QUANTILES, SUMMARIES
from loadgen.metrics.server_series import SERVER_GAUGES
from loadgen.metrics.soak_series import SOAK_GAUGES
from loadgen.record import OK

PAGE = Path(__file__).resolve().parents[2] / "docs" / "prometheus.md"

_LEVEL = "loadgen_level_"
_BEGIN = "<!-- {} metrics, made by `python -m loadgen.cli.reference --write` -->\n"
_END = "<!-- end -->"


def prometheus_page() -> str:
    """docs/prometheus.md. Raises ValueError when its marks are gone."""
    text = PAGE.read_text(encoding="utf-8")
    families = list(_run_with_everything().collect())
    for mark, of_levels in (("live", False), ("level", True)):
        before, begin, rest = text.partition(_BEGIN.format(mark))
        _, end, after = rest.partition(_END)
        if not end:
            raise ValueError(f"{PAGE.name} has no place for the {mark} metrics")
        table = _table([family for family in families if family.name.startswith(_LEVEL) == of_levels])
        text = f"{before}{begin}\n{table}\n\n{end}{after}"
    return text


def _run_with_everything() -> LiveMetrics:
    """Every series there is, so that its labels can be read off."""
    level = {"concurrency": 1, "server": {"max_num_seqs": 1}, "level": 0, "requests": {OK: 1}, "valid": True}
    level |= dict.fromkeys(GAUGES, 1)
    level |= {"server_metrics": dict.fromkeys(SERVER_GAUGES, 1), "limit": {"kind": "none"}}
    for latency in SUMMARIES:
        level |= {f"n_{latency}": 1, f"mean_{latency}_ms": 1}
        level |= {f"{statistic}_{latency}_ms": 1 for statistic in QUANTILES.values()}
    metrics = LiveMetrics(scenario="s", version="v")
    metrics.set_model("m")
    metrics.set_soak(1, dict.fromkeys(SOAK_GAUGES, 1) | {"mark": None})
    metrics.add_level(level)
    metrics.add_level({**level, "concurrency": None, "request_rate": 1.0})
    return metrics


def _table(families: Sequence[Metric]) -> str:
    labels = [dict.fromkeys(label for sample in family.samples for label in sample.labels) for family in families]
    everywhere = [label for label in labels[0] if all(label in each for each in labels)]
    lines = [f"Each has the labels {_code(everywhere)}.", ""] if everywhere else []
    lines += ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family, own in zip(families, labels, strict=True):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        # `le` and `quantile` are how Prometheus writes the type down.
        shown = _code(label for label in own if label not in (*everywhere, "le", "quantile"))
        lines.append(f"| `{name}` | {family.type} | {shown} | {family.documentation} |")
    return "\n".join(lines)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
