"""What vLLM's /metrics would say of an engine: takes its steps and the instants around them, gives names and values.

The clock is the caller's, real or virtual. Cheap per step: histograms take several samples at a time, and a step observes
its inter-token latency once for all its sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from server.simulator.engine import Engine, Request, Step
from server.simulator.histogram import Histogram
from server.simulator.settings import SimulatorSettings

# Bucket bounds of vLLM 0.32 (vllm/v1/metrics/buckets.py), in seconds and in tokens.
# fmt: off
LATENCY_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
LATENESS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1, 10)
# fmt: on
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
_NS = 1e-9


class Series(NamedTuple):
    """One series: what Prometheus calls a counter has its name without `_total`."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    documentation: str
    labels: Mapping[str, str]
    """Beside the model's name and the engine's number."""
    value: float | Histogram


def request_token_bounds(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10 … up to the longest sequence, as vLLM makes them."""
    bounds: list[int] = []
    scale = 1
    while True:
        for digit in (1, 2, 5):
            if digit * scale > max_model_len:
                return tuple(bounds)
            bounds.append(digit * scale)
        scale *= 10


class EngineMetrics:
    """What one engine has done so far. A driver tells it of every step, in order.

    Gauges say, as in vLLM, how the last step left things: without the requests that ended with it, and without those that
    came while it was on.
    """

    def __init__(self, settings: SimulatorSettings, engine: Engine) -> None:
        self._settings = settings
        self._engine = engine
        self._running = 0
        self._waiting = self._left_waiting = 0
        self._kv_usage = 0.0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generation_tokens = 0
        self._ends = dict.fromkeys(FINISH_REASONS, 0)
        self._last_step_ns: int | None = None
        self._ttft = Histogram(TTFT_S)
        self._itl = Histogram(ITL_S)
        self._tpot = Histogram(ITL_S)
        self._e2e = Histogram(LATENCY_S)
        self._queue = Histogram(LATENCY_S)
        self._prefill = Histogram(LATENCY_S)
        self._decode = Histogram(LATENCY_S)
        self._inference = Histogram(LATENCY_S)
        self._iteration_tokens = Histogram(ITERATION_TOKENS)
        self._preempted = Histogram(PREEMPTIONS)
        tokens = request_token_bounds(settings.max_model_len)
        self._of_prompts = Histogram(tokens)
        self._of_replies = Histogram(tokens)
        self._computed = Histogram(tokens)
        self._lateness = Histogram(LATENESS_S)

    def began(self, step: Step, start_ns: int) -> None:
        """A step begins at `start_ns`."""
        self._left_waiting = self._engine.waiting
        for request in step.admitted:
            if request.admitted_ns is None:
                # A late driver begins a step, by its schedule, before a request of that step had come in.
                request.admitted_ns = max(start_ns, request.arrived_ns)
        for request in step.preempted:
            # It had a token in every step until now.
            request.last_ns = self._last_step_ns or start_ns

    def ended(self, step: Step, now_ns: int, finished: Sequence[tuple[Request, str]], *, planned_ns: int) -> None:
        """The step is over and its tokens are out; `finished`: the requests that it ended, and why they did."""
        if step.decoding and self._last_step_ns is not None:
            self._itl.observe((now_ns - self._last_step_ns) * _NS, step.decoding)
        self._last_step_ns = now_ns
        tokens = len(step.emissions)
        if self._settings.num_speculative_tokens:
            tokens = sum(of_one for _, of_one, _ in step.emissions)
        computed = 0
        for request, _, _ in step.emissions[step.decoding :]:
            if request.first_ns is None:
                request.first_ns = now_ns
                self._ttft.observe((now_ns - request.arrived_ns) * _NS)
                self._prompt_tokens += request.prompt_tokens
                self._cached_tokens += request.cached_tokens
                computed += request.prompt_tokens - request.cached_tokens
            else:
                self._itl.observe((now_ns - request.last_ns) * _NS)
        if tokens:
            self._generation_tokens += tokens
            self._iteration_tokens.observe(computed + tokens)
        for request, reason in finished:
            self._finished(request, reason, now_ns)
        self._lateness.observe(max(0, now_ns - planned_ns) * _NS)
        self._waiting = self._left_waiting
        self._look()

    def idle(self) -> None:
        """No step is under way."""
        self._waiting = 0
        self._look()

    def _look(self) -> None:
        self._engine.release_ended()
        self._running = self._engine.running
        self._kv_usage = self._engine.kv_usage

    def aborted(self) -> None:
        """A request lost its client."""
        self._ends["abort"] += 1

    def _finished(self, request: Request, reason: str, now_ns: int) -> None:
        assert request.first_ns is not None and request.admitted_ns is not None
        self._ends[reason] += 1
        self._e2e.observe((now_ns - request.arrived_ns) * _NS)
        self._queue.observe((request.admitted_ns - request.arrived_ns) * _NS)
        self._prefill.observe((request.first_ns - request.admitted_ns) * _NS)
        self._decode.observe((now_ns - request.first_ns) * _NS)
        self._inference.observe((now_ns - request.admitted_ns) * _NS)
        # vLLM observes 0 for a reply of one token.
        self._tpot.observe((now_ns - request.first_ns) * _NS / max(1, request.output_tokens - 1))
        self._preempted.observe(request.preemptions)
        self._of_prompts.observe(request.prompt_tokens)
        self._of_replies.observe(request.output_tokens)
        self._computed.observe(request.prompt_tokens - request.cached_tokens)

    def series(self) -> Iterator[Series]:
        """Everything, in the order of the page."""
        counts = self._engine.counts
        waiting = self._waiting
        of_engine = "Number of requests in model execution batches."
        yield Series("gauge", "vllm:num_requests_running", of_engine, {}, self._running)
        yield Series("gauge", "vllm:num_requests_waiting", "Number of requests waiting to be processed.", {}, waiting)
        for reason, number in (("capacity", waiting), ("deferred", 0)):
            text = "Number of waiting requests by reason."
            yield Series("gauge", "vllm:num_requests_waiting_by_reason", text, {"reason": reason}, number)
        of_cache = "KV-cache usage. 1 means 100 percent usage."
        yield Series("gauge", "vllm:kv_cache_usage_perc", of_cache, {}, self._kv_usage)
        for name, text, value in (
            ("num_preemptions", "Cumulative number of preemption from the engine.", counts.preemptions),
            ("prefix_cache_queries", "Prefix cache queries, in number of queried tokens.", counts.prefix_queries),
            ("prefix_cache_hits", "Prefix cache hits, in number of cached tokens.", counts.prefix_hits),
            ("prompt_tokens", "Number of prefill tokens processed.", self._prompt_tokens),
            ("prompt_tokens_cached", "Number of cached prompt tokens.", self._cached_tokens),
            ("generation_tokens", "Number of generation tokens processed.", self._generation_tokens),
        ):
            yield Series("counter", f"vllm:{name}", text, {}, value)
        for source, value in (
            ("local_compute", self._prompt_tokens - self._cached_tokens),
            ("local_cache_hit", self._cached_tokens),
        ):
            text = "Number of prompt tokens by source."
            yield Series("counter", "vllm:prompt_tokens_by_source", text, {"source": source}, value)
        for reason, value in self._ends.items():
            text = "Count of successfully processed requests."
            yield Series("counter", "vllm:request_success", text, {"finished_reason": reason}, value)
        yield from self._speculative()
        for name, text, histogram in (
            ("vllm:time_to_first_token_seconds", "Time to first token.", self._ttft),
            ("vllm:inter_token_latency_seconds", "Inter-token latency.", self._itl),
            ("vllm:request_time_per_output_token_seconds", "Time per output token, per request.", self._tpot),
            ("vllm:e2e_request_latency_seconds", "End-to-end request latency.", self._e2e),
            ("vllm:request_queue_time_seconds", "Time in the waiting queue.", self._queue),
            ("vllm:request_prefill_time_seconds", "Time from leaving the queue to the first token.", self._prefill),
            ("vllm:request_decode_time_seconds", "Time from the first token to the last.", self._decode),
            ("vllm:request_inference_time_seconds", "Time from leaving the queue to the end.", self._inference),
            ("vllm:iteration_tokens_total", "Number of tokens per engine step.", self._iteration_tokens),
            ("vllm:request_num_preemptions", "How often a request was preempted.", self._preempted),
            ("vllm:request_prompt_tokens", "Number of prefill tokens processed.", self._of_prompts),
            ("vllm:request_generation_tokens", "Number of generation tokens processed.", self._of_replies),
            ("vllm:request_prefill_kv_computed_tokens", "Prompt tokens that were computed.", self._computed),
            ("simulator:step_lateness_seconds", "How late the simulator itself ended its steps.", self._lateness),
        ):
            yield Series("histogram", name, text, {}, histogram)

    def _speculative(self) -> Iterator[Series]:
        if not self._settings.num_speculative_tokens:
            return
        counts = self._engine.counts
        for name, text, value in (
            ("drafts", "Number of spec decoding drafts.", counts.drafts),
            ("draft_tokens", "Number of draft tokens.", counts.draft_tokens),
            ("accepted_tokens", "Number of accepted tokens.", sum(counts.accepted_at)),
        ):
            yield Series("counter", f"vllm:spec_decode_num_{name}", text, {}, value)
        for position, value in enumerate(counts.accepted_at):
            text = "Accepted tokens per draft position."
            labels = {"position": str(position)}
            yield Series("counter", "vllm:spec_decode_num_accepted_tokens_per_pos", text, labels, value)

    def values(self) -> dict[str, float]:
        """Every sample by its name as on the page, labels in braces but for the model's name and the engine's number.

        `vllm:num_requests_running`, `vllm:request_success_total{finished_reason="length"}`,
        `vllm:time_to_first_token_seconds_bucket{le="0.1"}`, `…_sum`, `…_count`.
        """
        found: dict[str, float] = {}
        for kind, name, _, labels, value in self.series():
            inner = ",".join(f'{label}="{text}"' for label, text in labels.items())
            braces = f"{{{inner}}}" if inner else ""
            if isinstance(value, Histogram):
                found |= {f'{name}_bucket{{le="{bound}"}}': count for bound, count in value.buckets()}
                found[f"{name}_sum"] = value.sum
                found[f"{name}_count"] = float(value.count)
            else:
                found[f"{name}{'_total' if kind == 'counter' else ''}{braces}"] = float(value)
        return found
