"""The simulator's /metrics under vLLM's names: takes counts and instants, gives Prometheus text; cheap per step.

Histograms are lists of counts filled by bisection, several samples at a time: a step observes its inter-token latency
once for all its sequences.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from server.simulator.answer import Answer

# Bucket bounds of vLLM 0.32 (vllm/v1/metrics/buckets.py), in seconds.
# fmt: off
_LATENCY_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)
_ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
# fmt: on
_LATENESS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1, 10)
_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
_NS = 1e-9


class Histogram:
    """Counts per bucket and the sum, in seconds."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, value_s: float, samples: int = 1) -> None:
        """Count `samples` equal values; a value on a bound belongs below it (`le`)."""
        self._counts[bisect_left(self._bounds_s, value_s)] += samples
        self._sum_s += value_s * samples

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, samples at or below it), as Prometheus wants them."""
        bounds = [*(str(float(bound)) for bound in self._bounds_s), "+Inf"]
        return list(zip(bounds, (float(n) for n in accumulate(self._counts)), strict=True))

    @property
    def sum_s(self) -> float:
        """Sum of all values."""
        return self._sum_s


class Metrics(Collector):
    """What one simulator has done so far; `state` gives running and waiting requests and the cache usage."""

    def __init__(self, model: str, state: Callable[[], tuple[int, int, float]]) -> None:
        self._labels = {"model_name": model, "engine": "0"}
        self._state = state
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._ends = dict.fromkeys(_FINISH_REASONS, 0)
        self._last_step_ns: int | None = None
        self._ttft = Histogram(_TTFT_S)
        self._itl = Histogram(_ITL_S)
        self._tpot = Histogram(_ITL_S)
        self._e2e = Histogram(_LATENCY_S)
        self._queue = Histogram(_LATENCY_S)
        self._prefill = Histogram(_LATENCY_S)
        self._decode = Histogram(_LATENCY_S)
        self._lateness = Histogram(_LATENESS_S)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def step(self, *, tokens: int, decoding: int, now_ns: int, planned_ns: int) -> None:
        """A step has ended: `tokens` given to clients, `decoding` sequences in it that had a token before."""
        self._generation_tokens += tokens
        if decoding and self._last_step_ns is not None:
            self._itl.observe((now_ns - self._last_step_ns) * _NS, decoding)
        self._last_step_ns = now_ns
        self._lateness.observe(max(0, now_ns - planned_ns) * _NS)

    def first_token(self, answer: Answer) -> None:
        """A request got its first token."""
        self._prompt_tokens += answer.request.prompt_tokens
        self._ttft.observe((answer.token_ns[0] - answer.received_ns) * _NS)

    def finished(self, answer: Answer) -> None:
        """A request got its last token."""
        first_ns, last_ns, n = answer.token_ns[0], answer.token_ns[-1], len(answer.token_ns)
        # A late driver begins a step, by its schedule, before a request of that step had come in.
        admitted_ns = max(answer.admitted_ns or 0, answer.received_ns)
        self._ends[answer.reply.finish_reason] += 1
        self._e2e.observe((last_ns - answer.received_ns) * _NS)
        self._queue.observe((admitted_ns - answer.received_ns) * _NS)
        self._prefill.observe((first_ns - admitted_ns) * _NS)
        self._decode.observe((last_ns - first_ns) * _NS)
        if n > 1:
            self._tpot.observe((last_ns - first_ns) * _NS / (n - 1))

    def aborted(self) -> None:
        """A request lost its client."""
        self._ends["abort"] += 1

    def exposition(self) -> bytes:
        """The text of /metrics."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All families, for prometheus-client."""
        running, waiting, kv_usage = self._state()
        yield self._gauge("vllm:num_requests_running", "Number of requests in model execution batches.", running)
        yield self._gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", kv_usage)
        yield self._counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", 0)
        yield self._counter("vllm:prefix_cache_queries", "Prefix cache queries, in number of queried tokens.", 0)
        yield self._counter("vllm:prefix_cache_hits", "Prefix cache hits, in number of cached tokens.", 0)
        yield self._counter("vllm:prompt_tokens", "Number of prefill tokens processed.", self._prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Number of generation tokens processed.", self._generation_tokens)
        ends = CounterMetricFamily(
            "vllm:request_success",
            "Count of successfully processed requests.",
            labels=[*self._labels, "finished_reason"],
        )
        for reason, count in self._ends.items():
            ends.add_metric([*self._labels.values(), reason], count)
        yield ends
        for name, documentation, histogram in (
            ("vllm:time_to_first_token_seconds", "Time to first token.", self._ttft),
            ("vllm:inter_token_latency_seconds", "Inter-token latency.", self._itl),
            ("vllm:request_time_per_output_token_seconds", "Time per output token, per request.", self._tpot),
            ("vllm:e2e_request_latency_seconds", "End-to-end request latency.", self._e2e),
            ("vllm:request_queue_time_seconds", "Time in the waiting queue.", self._queue),
            ("vllm:request_prefill_time_seconds", "Time from leaving the queue to the first token.", self._prefill),
            ("vllm:request_decode_time_seconds", "Time from the first token to the last.", self._decode),
            ("simulator:step_lateness_seconds", "How late the simulator itself ended its steps.", self._lateness),
        ):
            family = HistogramMetricFamily(name, documentation, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), histogram.buckets(), histogram.sum_s)
            yield family

    def _gauge(self, name: str, documentation: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, documentation: str, value: float) -> Metric:
        family = CounterMetricFamily(name, documentation, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family
