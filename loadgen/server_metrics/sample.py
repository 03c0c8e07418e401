"""One look at a server's own metrics: values under one set of names whatever the server, and when they were true; pure.

Counters and histograms are cumulative, as the server gives them; what a server does not tell is absent, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GAUGES = ("running", "waiting", "kv_usage", "engines", "resident_bytes")
"""Requests in the running batch; requests that wait; share of the KV cache that is used, 0…1, of the fullest engine;
engines (data-parallel replicas) behind this endpoint; memory of the server's process (of vLLM its front end)."""
COUNTERS = (
    "preemptions",
    "prefix_queries",
    "prefix_hits",
    "external_prefix_hits",
    "prompt_tokens",
    "generation_tokens",
    "requests",
)
"""Preemptions; prompt tokens looked up in the prefix cache; of these, tokens found in it; tokens found in a cache outside
of the server; prompt tokens; output tokens; requests that ended by themselves."""
HISTOGRAMS = ("ttft", "itl", "tpot", "e2el", "queue", "prefill", "decode")
"""Seconds. The first four as in docs/metrics.md, seen from the server; then the phases of a request."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """A Prometheus histogram as it stood at one instant."""

    bounds_s: tuple[float, ...]
    """shape (b,): upper bounds, rising; the last is infinite."""
    counts: tuple[float, ...]
    """shape (b,): observations at or below each bound."""
    sum_s: float


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU of this host; None where the driver does not tell."""

    index: int
    name: str
    utilisation: float | None = None
    """Share of the last sampling period in which any kernel ran, 0…1."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle: tuple[str, ...] = ()
    """Why the clocks are lower than they could be, by NVML's names (`sw_power_cap`, `hw_thermal_slowdown`, …)."""


@dataclass(frozen=True, slots=True)
class ServerSample:
    """What one scrape gave; true at some instant between `asked_ns` and `answered_ns` of the controller's clock."""

    asked_ns: int
    answered_ns: int
    error: str | None = None
    """Why there is no answer, in words; then the rest is empty."""
    kind: str = ""
    """Whose names the server uses: `vllm`, `sglang`, `llamacpp`."""
    started_s: float | None = None
    """`process_start_time_seconds`: another value is another process."""
    gauges: Mapping[str, float] = field(default_factory=dict)
    """By name of `GAUGES`; what is not told is not there."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """By name of `COUNTERS`."""
    waiting_by_reason: Mapping[str, float] = field(default_factory=dict)
    requests_by_reason: Mapping[str, float] = field(default_factory=dict)
    """Requests that ended by themselves, by finish reason; cumulative."""
    histograms: Mapping[str, Buckets] = field(default_factory=dict)
    """By name of `HISTOGRAMS`."""
    gpus: tuple[GpuSample, ...] = ()

    @property
    def at_ns(self) -> int:
        """The middle of the time in which it was true."""
        return (self.asked_ns + self.answered_ns) // 2

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values; the infinite bound is null."""
        return {
            "asked_ns": self.asked_ns,
            "answered_ns": self.answered_ns,
            **({"error": self.error} if self.error is not None else {}),
            **({"kind": self.kind} if self.kind else {}),
            **({"started_s": self.started_s} if self.started_s is not None else {}),
            **{
                name: dict(values)
                for name in ("gauges", "counters", "waiting_by_reason", "requests_by_reason")
                if (values := getattr(self, name))
            },
            **({"histograms": {k: _of_buckets(b) for k, b in self.histograms.items()}} if self.histograms else {}),
            **({"gpus": [_of_gpu(gpu) for gpu in self.gpus]} if self.gpus else {}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ServerSample:
        """What `to_dict` gave. Raises KeyError, TypeError or ValueError for something else."""
        rest = dict(values)
        histograms = {name: _to_buckets(one) for name, one in rest.pop("histograms", {}).items()}
        gpus = tuple(GpuSample(**{**one, "throttle": tuple(one["throttle"])}) for one in rest.pop("gpus", []))
        return cls(**rest, histograms=histograms, gpus=gpus)


def _of_buckets(one: Buckets) -> dict[str, Any]:
    return {"le": [*one.bounds_s[:-1], None], "counts": list(one.counts), "sum_s": one.sum_s}


def _to_buckets(one: Mapping[str, Any]) -> Buckets:
    bounds_s = tuple(float("inf") if bound is None else float(bound) for bound in one["le"])
    return Buckets(bounds_s, tuple(map(float, one["counts"])), float(one["sum_s"]))


def _of_gpu(gpu: GpuSample) -> dict[str, Any]:
    return {name: value for name in GpuSample.__slots__ if (value := getattr(gpu, name)) is not None}
