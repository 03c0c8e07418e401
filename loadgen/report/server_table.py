"""Takes level objects, gives what people read of the server's own metrics and of what limits each level; computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from loadgen.report.figures import ABSENT, Level, level_cells, number, where_text
from loadgen.report.level_columns import level_headings, table_of_levels
from loadgen.stats.asked import asked_number, asked_of
from loadgen.stats.settings import by_kind, swept_settings

_GIB = 1 << 30
_MUCH_OUTSIDE_MS = 20.0
_MUCH_OUTSIDE = 0.1
KIND_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}
LIMIT_NAMES = {
    "scheduler": "scheduler",
    "kv_cache": "KV cache",
    "compute": "compute",
    "prefill": "prefill",
    "client": "the load generator",
    "gateway": "network or gateway",
    "none": "none",
    "unknown": "not known",
}
HEADINGS = (
    "run-\nning",
    "wait-\ning",
    "KV used\nmost",
    "pre-\nempted",
    "cache hits\n(meant)",
    "TTFT\nmean ms",
    "of it at\nserver",
    "\nlimit",
)


def server_rows(levels: Sequence[Level]) -> list[list[str]]:
    """One row a level, if any of them has server metrics: swept settings, run, load, then as `HEADINGS`."""
    if not any(level["server_metrics"] for level in levels):
        return []
    return [[*level_cells(level, levels), *_cells(level, level["server_metrics"] or {})] for level in levels]


def _cells(level: Level, server: Mapping[str, Any]) -> list[str]:
    found = (server.get("reconciliation") or {}).get("ttft", {})
    hits, meant = server.get("prefix_cache_hit_share"), level["intended_prefix_share"]
    return [
        number(server.get("mean_running")),
        number(server.get("mean_waiting")),
        _percent(server.get("max_kv_usage")),
        number(server.get("preemptions")),
        _percent(hits) + (f" ({_percent(meant)})" if hits is not None and meant is not None else ""),
        number(found.get("client_ms")),
        number(found.get("server_ms")),
        limit_word(level),
    ]


def _percent(share: float | None) -> str:
    return ABSENT if share is None else f"{share * 100:.0f}%"


def limit_word(level: Level) -> str:
    """The kind of a level's limit, `–` where it has none or nobody knows."""
    kind = (level["limit"] or {}).get("kind")
    return ABSENT if kind in (None, "none", "unknown") else kind.replace("_", " ")


def server_headings(levels: Sequence[Level]) -> list[str]:
    """What the cells of a row are, each in one line."""
    headings = [*level_headings(levels), *HEADINGS]
    return [heading.replace("-\n", "").replace("\n", " ").strip() for heading in headings]


def server_table(levels: Sequence[Level]) -> Table | None:
    """The rows as the terminal shows them; None where there are no metrics."""
    rows = server_rows(levels)
    if not rows:
        return None
    made = table_of_levels(levels)
    for heading in HEADINGS:
        made.add_column(heading, justify="left" if heading.endswith("limit") else "right", no_wrap=True)
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def limit_lines(levels: Sequence[Level]) -> list[str]:
    """One sentence for each kind of limit that any level has, with the evidence of the highest such level."""
    swept = swept_settings(levels)
    by_limit: dict[str, list[Level]] = {}
    for level in levels:
        if level["limit"] is not None and level["limit"]["kind"] != "none":
            by_limit.setdefault(level["limit"]["kind"], []).append(level)
    lines = []
    for kind, found in by_limit.items():
        last = found[-1]
        where = asked_of(last) if len(by_kind(found)) > 1 else asked_number(last)
        at = f"(at {where}) " if len(found) > 1 else ""
        lines.append(
            f"limit at {where_text(found, swept)}: {LIMIT_NAMES[kind]}: {at}{last['limit']['text'].rstrip('.')}."
        )
    return lines


def outside_lines(levels: Sequence[Level]) -> list[str]:
    """One sentence on the level with the most time between client and server, where that is worth a look."""
    told = []
    for level in levels:
        found = (level["server_metrics"] or {}).get("reconciliation") or {}
        ttft = found.get("ttft", {})
        outside_ms = -(ttft.get("difference_ms") or 0.0)
        if outside_ms > max(_MUCH_OUTSIDE_MS, _MUCH_OUTSIDE * (ttft.get("client_ms") or 0.0)):
            told.append((outside_ms, level, found["text"]))
    if not told:
        return []
    _, worst, text = max(told, key=lambda one: one[0])
    return [f"client and server at {where_text([worst], swept_settings(levels))}: {text}."]


def gpu_lines(levels: Sequence[Level]) -> list[str]:
    """One sentence for each GPU, of the level with the highest throughput among those that have any."""
    seen = [level for level in levels if (level["server_metrics"] or {}).get("gpus")]
    if not seen:
        return []
    best = max(seen, key=lambda level: level["output_throughput"])
    return [f"at {where_text([best], swept_settings(levels))}: {_gpu(gpu)}." for gpu in best["server_metrics"]["gpus"]]


def _gpu(gpu: Mapping[str, Any]) -> str:
    def of(value: float | None, most: float | None, unit: str, scale: float = 1.0) -> str | None:
        if value is None:
            return None
        return f"{value / scale:.0f}{'' if most is None else f' of {most / scale:.0f}'} {unit}"

    busy = None if gpu["mean_utilisation"] is None else f"{gpu['mean_utilisation'] * 100:.0f} % of the time busy"
    told = [
        busy,
        of(gpu["max_memory_used_bytes"], gpu["memory_total_bytes"], "GiB", _GIB),
        of(gpu["mean_power_w"], gpu["power_limit_w"], "W"),
        of(gpu["mean_sm_clock_mhz"], gpu["max_sm_clock_mhz"], "MHz"),
        of(gpu["max_temperature_c"], None, "°C"),
    ]
    slowed = ", ".join(f"{reason} {share * 100:.0f} %" for reason, share in gpu["throttle"].items())
    text = f"GPU {gpu['index']} ({gpu['name']}) {', '.join(one for one in told if one is not None)}"
    return f"{text}; its clocks were held down: {slowed} of the samples" if slowed else text


def source_text(metrics: Mapping[str, Any] | None) -> str | None:
    """For the run's conditions, of what its provenance says: `vLLM's`, or `none: the target has no /metrics`."""
    if metrics is None:
        return None
    if metrics.get("problem"):
        return f"none: {metrics['problem']}"
    kind = metrics.get("kind")
    return None if kind is None else f"{KIND_NAMES.get(kind, kind)}'s"
