"""Takes the text of a `/metrics` page, gives its values under our names; knows vLLM's, SGLang's and llama.cpp's; pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from loadgen.server_metrics.sample import COUNTERS, GAUGES, HISTOGRAMS, Buckets

# Of each value the names that servers give it, the first one that is there counts: vLLM's of today, then those of older
# versions (0.6 to 0.10: `gpu_…`, and `time_per_output_token_seconds` for what is the inter-token latency), then SGLang's
# and llama.cpp's.
_NAMES: dict[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"),
    "kv_usage": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:kv_cache_usage_ratio",
    ),
    "resident_bytes": ("process_resident_memory_bytes",),
    "preemptions": ("vllm:num_preemptions_total",),
    # SGLang looks every prompt token up, and has no counter of its own for that.
    "prefix_queries": (
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries_total",
        "sglang:prompt_tokens_total",
    ),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "external_prefix_hits": ("vllm:external_prefix_cache_hits_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "llamacpp:prompt_tokens_total"),
    "generation_tokens": (
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
        "llamacpp:tokens_predicted_total",
    ),
    "requests": ("vllm:request_success_total", "sglang:num_requests_total"),
    "ttft": ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    "itl": (
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "sglang:inter_token_latency_seconds",
        "sglang:time_per_output_token_seconds",
    ),
    "tpot": ("vllm:request_time_per_output_token_seconds",),
    "e2el": ("vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds"),
    "queue": ("vllm:request_queue_time_seconds", "sglang:queue_time_seconds"),
    "prefill": ("vllm:request_prefill_time_seconds",),
    "decode": ("vllm:request_decode_time_seconds",),
}
_STARTED = "process_start_time_seconds"
_WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
_KINDS = ("vllm", "sglang", "llamacpp")
_WANTED = tuple({name for names in _NAMES.values() for name in names} | {_STARTED, _WAITING_BY_REASON})

Samples = dict[str, list[tuple[dict[str, str], float]]]


def read_metrics(text: str) -> dict[str, Any]:
    """The fields of a `ServerSample` that a page gives; `kind` is empty where none of the servers' names are there.

    Several series of one name (data-parallel engines, LoRA adapters) are added up, of the cache usage the largest is
    taken. Raises ValueError where the text is not Prometheus's.
    """
    samples = _samples(text)
    found = {name: series for name in _NAMES if (series := _first(samples, name)) is not None}
    gauges = {name: _value(name, found[name]) for name in GAUGES if name in found}
    if "running" in found:
        gauges["engines"] = float(len({labels.get("engine", "") for labels, _ in found["running"]}))
    started = samples.get(_STARTED)
    return {
        "kind": next((kind for kind in _KINDS if any(name.startswith(f"{kind}:") for name in samples)), ""),
        "started_s": started[0][1] if started else None,
        "gauges": gauges,
        "counters": {name: _value(name, found[name]) for name in COUNTERS if name in found},
        "waiting_by_reason": _by(samples.get(_WAITING_BY_REASON, ()), "reason"),
        "requests_by_reason": _by(found.get("requests", ()), "finished_reason"),
        "histograms": {name: made for name in HISTOGRAMS if (made := _histogram(samples, name)) is not None},
    }


def _samples(text: str) -> Samples:
    # A page of vLLM's has a thousand lines, and we want a fifth of them: the parser is slow, comparing beginnings is not.
    lines = [line for line in text.splitlines() if line.startswith(_WANTED)]
    if not lines and not text.lstrip().startswith("#"):
        raise ValueError("the answer is not Prometheus text")
    samples: Samples = defaultdict(list)
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if not math.isnan(sample.value):
                samples[sample.name].append((sample.labels, sample.value))
    return samples


def _first(samples: Samples, name: str) -> list[tuple[dict[str, str], float]] | None:
    return next((samples[theirs] for theirs in _NAMES[name] if theirs in samples), None)


def _value(name: str, series: Iterable[tuple[dict[str, str], float]]) -> float:
    values = [value for _, value in series]
    return max(values) if name == "kv_usage" else sum(values)


def _by(series: Iterable[tuple[dict[str, str], float]], label: str) -> dict[str, float]:
    values: dict[str, float] = defaultdict(float)
    for labels, value in series:
        if label in labels:
            values[labels[label]] += value
    return dict(values)


def _histogram(samples: Samples, name: str) -> Buckets | None:
    theirs = next((theirs for theirs in _NAMES[name] if f"{theirs}_bucket" in samples), None)
    if theirs is None:
        return None
    counts: dict[float, float] = defaultdict(float)
    for labels, count in samples[f"{theirs}_bucket"]:
        counts[float(labels["le"])] += count
    bounds_s = sorted(counts)
    if bounds_s[-1] != math.inf:
        return None
    total_s = sum(value for _, value in samples.get(f"{theirs}_sum", ()))
    return Buckets(tuple(bounds_s), tuple(counts[bound] for bound in bounds_s), total_s)
