"""Takes the scrapes of a level's window, gives what the server did in it by its own account, beside ours; pure.

Figures of the server are never mixed with the client's: where the two are compared is `loadgen.stats.reconcile`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from loadgen.server_metrics.sample import GpuSample, ServerSample
from loadgen.stats.columns import Columns
from loadgen.stats.reconcile import min_scrape_ms, reconciliation
from loadgen.stats.server_latencies import latencies_between
from loadgen.stats.server_window import ServerWindow, server_window

_GPU_MEANS = ("utilisation", "power_w", "sm_clock_mhz", "memory_clock_mhz")
_GPU_PEAKS = ("memory_used_bytes", "power_w", "temperature_c")
_GPU_LIMITS = ("memory_total_bytes", "power_limit_w", "max_sm_clock_mhz")


def server_part(
    c: Columns, samples: Sequence[ServerSample], window: tuple[int, int], drained_ns: int | None
) -> dict[str, Any]:
    """{server_metrics, no_server_metrics} of a level: the figures, or None and why there are none."""
    scrapes, why_none = server_window(samples, window, drained_ns)
    if scrapes is None:
        return {"server_metrics": None, "no_server_metrics": why_none}
    return {"server_metrics": server_figures(c, scrapes), "no_server_metrics": None}


def server_figures(c: Columns, scrapes: ServerWindow) -> dict[str, Any]:
    """The figures of docs/metrics.md; None is "the server does not tell"."""
    samples = scrapes.samples
    times_s = [sample.at_ns / 1e9 for sample in samples]
    latencies = {} if scrapes.restarts else latencies_between(samples)
    hits, external = scrapes.rise("prefix_hits"), scrapes.rise("external_prefix_hits")
    queries = scrapes.rise("prefix_queries")
    ended = {} if scrapes.restarts else _rises(scrapes.first.requests_by_reason, scrapes.last.requests_by_reason)
    return {
        "kind": scrapes.last.kind,
        "samples": len(samples),
        "failed_scrapes": scrapes.failed,
        "span_s": times_s[-1] - times_s[0],
        "largest_gap_s": max(later - earlier for earlier, later in pairwise(times_s)),
        "min_scrape_ms": min_scrape_ms(scrapes),
        "restarts": scrapes.restarts,
        "engines": _whole(_peak(samples, "engines")),
        "mean_running": _mean(samples, "running"),
        "max_running": _whole(_peak(samples, "running")),
        "at_max_running_share": _share_at_peak(samples, "running"),
        "mean_waiting": _mean(samples, "waiting"),
        "max_waiting": _whole(_peak(samples, "waiting")),
        "waiting_share": _share_above_zero(samples, "waiting"),
        "waiting_by_reason": _mean_by_reason(samples),
        "mean_kv_usage": _mean(samples, "kv_usage"),
        "max_kv_usage": _peak(samples, "kv_usage"),
        "preemptions": _whole(scrapes.rise("preemptions")),
        "prefix_cache_queries": _whole(queries),
        "prefix_cache_hits": _whole(hits),
        "external_prefix_cache_hits": _whole(external),
        "prefix_cache_hit_share": (hits + (external or 0.0)) / queries if queries and hits is not None else None,
        "prompt_tokens": _whole(scrapes.rise("prompt_tokens")),
        "generation_tokens": _whole(scrapes.rise("generation_tokens")),
        "requests": {reason: round(count) for reason, count in ended.items()},
        "latencies": latencies,
        "reconciliation": None if scrapes.restarts else reconciliation(c, scrapes, latencies),
        "gpus": gpu_figures(samples),
    }


def gpu_figures(samples: Sequence[ServerSample]) -> list[dict[str, Any]]:
    """One object a GPU of the server's host, in order of its index; empty where there is none to be seen."""
    by_index: dict[int, list[GpuSample]] = {}
    for sample in samples:
        for gpu in sample.gpus:
            by_index.setdefault(gpu.index, []).append(gpu)
    return [_gpu(index, seen) for index, seen in sorted(by_index.items())]


def _gpu(index: int, seen: Sequence[GpuSample]) -> dict[str, Any]:
    reasons = Counter(reason for one in seen for reason in one.throttle)
    return {
        "index": index,
        "name": seen[-1].name,
        **{f"mean_{name}": _of(seen, name, np.mean) for name in _GPU_MEANS},
        **{f"max_{name}": _of(seen, name, np.max) for name in _GPU_PEAKS},
        **{name: _of(seen, name, np.max) for name in _GPU_LIMITS},
        "throttle": {reason: count / len(seen) for reason, count in sorted(reasons.items())},
    }


def _of(seen: Sequence[GpuSample], name: str, statistic: Any) -> float | None:
    values = [value for one in seen if (value := getattr(one, name)) is not None]
    return float(statistic(values)) if values else None


def _told(samples: Sequence[ServerSample], gauge: str) -> list[tuple[float, float]]:
    return [(one.at_ns / 1e9, one.gauges[gauge]) for one in samples if gauge in one.gauges]


def _mean(samples: Sequence[ServerSample], gauge: str) -> float | None:
    """Over time: scrapes at the window's ends are closer to their neighbours than the others."""
    told = _told(samples, gauge)
    if len(told) < 2:
        return None
    times_s, values = zip(*told, strict=True)
    return float(np.trapezoid(values, times_s) / (times_s[-1] - times_s[0]))


def _peak(samples: Sequence[ServerSample], gauge: str) -> float | None:
    return max((value for _, value in _told(samples, gauge)), default=None)


def _share_above_zero(samples: Sequence[ServerSample], gauge: str) -> float | None:
    told = _told(samples, gauge)
    return sum(value > 0 for _, value in told) / len(told) if told else None


def _share_at_peak(samples: Sequence[ServerSample], gauge: str) -> float | None:
    told = [value for _, value in _told(samples, gauge)]
    return sum(value == max(told) for value in told) / len(told) if told else None


def _mean_by_reason(samples: Sequence[ServerSample]) -> dict[str, float]:
    seen = [sample.waiting_by_reason for sample in samples if sample.waiting_by_reason]
    reasons = dict.fromkeys(reason for one in seen for reason in one)
    return {reason: float(np.mean([one.get(reason, 0.0) for one in seen])) for reason in reasons}


def _rises(first: Any, last: Any) -> dict[str, float]:
    return {reason: count - first.get(reason, 0.0) for reason, count in last.items()}


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
