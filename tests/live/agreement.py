"""One figure twice: what the sweep says, and what vLLM's own counters give for the same stretch of time.

Takes a `Sweep`, gives pairs; never judges them (test_vllm.py does). Only sums and counts are used, which are exact,
except for medians: of those vLLM keeps no more than the bucket.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.record import RequestRecord
from tests.live.scrape import Scrape, median_bucket, value_at
from tests.live.sweep import CONCURRENCY, PROBE_OUTPUT_TOKENS, Sweep


@dataclass(frozen=True, slots=True)
class Pair:
    """`ours` and `vllm` in the same unit."""

    ours: float
    vllm: float

    @property
    def apart(self) -> float:
        """Relative difference: 0.01 when ours is 1 % above vLLM's."""
        return self.ours / self.vllm - 1


def delivered_tokens(record: RequestRecord) -> int:
    """Tokens that reached the client, also of a request that it abandoned: vLLM sends one event a token."""
    return int(_tokens_of_events(record).sum())


def tokens_arrived(sweep: Sweep, until_ns: Sequence[int]) -> list[int]:
    """How many tokens of all requests had arrived before each of some instants."""
    came_ns = np.concatenate([np.repeat(r.arrivals_ns, _tokens_of_events(r)) for r in sweep.records])
    return [int(n) for n in np.searchsorted(np.sort(came_ns), until_ns)]


def _tokens_of_events(record: RequestRecord) -> NDArray[np.int32]:
    if record.event_tokens is not None:
        return record.event_tokens
    return np.ones(len(record.arrivals_ns), np.int32)


def output_throughput(sweep: Sweep, level: int) -> Pair:
    """Tokens per second; vLLM's is the slope of its counter over the level's window."""
    plan = sweep.plans[level]
    start, end = (
        value_at(sweep.vllm_samples, instant_ns, "vllm:generation_tokens_total")
        for instant_ns in (plan.window_start_ns, plan.window_end_ns)
    )
    slope = (end - start) / ((plan.window_end_ns - plan.window_start_ns) / 1e9)
    return Pair(sweep.summary[level]["output_throughput"], slope)


def mean_itl_ms(sweep: Sweep, level: int) -> Pair:
    """Milliseconds a token; vLLM's is over the scrapes that enclose the window."""
    mean_s = _mean_between(*_enclosing(sweep, level), "vllm:inter_token_latency_seconds")
    return Pair(sweep.summary[level]["mean_itl_ms"], mean_s * 1e3)


def mean_ttft_ms(sweep: Sweep) -> Pair | None:
    """Over all levels, warm-up and drain included: both means are of the same requests, between two scrapes at which
    both sides had seen the same number of first tokens. So neither the probe nor the last, abandoned requests matter.
    None when there are no two such scrapes: a request is missing, or there twice.

    vLLM's begins when its handler has the request and ends when the token reaches its front end, before it is written
    to the socket: ours must be a little longer.
    """
    histogram = "vllm:time_to_first_token_seconds"
    ours_ns = [
        (r.first_token_ns, r.first_token_ns - r.sent_ns)
        for r in sweep.records
        if r.first_token_ns is not None and r.sent_ns is not None
    ]
    probes_and_earlier = sweep.before.value(f"{histogram}_count") + 1
    in_step = [
        s
        for s in sweep.vllm_samples
        if sweep.plans[0].window_start_ns <= s.at_ns <= sweep.plans[-1].window_end_ns
        and s.value(f"{histogram}_count") - probes_and_earlier == sum(at_ns < s.at_ns for at_ns, _ in ours_ns)
    ]
    if len(in_step) < 2:
        return None
    first, last = in_step[0], in_step[-1]
    mean_ns = statistics.mean(ttft_ns for at_ns, ttft_ns in ours_ns if first.at_ns <= at_ns < last.at_ns)
    return Pair(mean_ns / 1e6, _mean_between(first, last, histogram) * 1e3)


def around_median_ms(sweep: Sweep, level: int, histogram: str) -> tuple[float, float]:
    """Lower and upper edge of three of vLLM's buckets: the one that holds its median in the window, and its neighbours."""
    bucket, edges_s = median_bucket(*_enclosing(sweep, level), histogram)
    low_s = edges_s[bucket - 2] if bucket >= 2 else 0.0
    return low_s * 1e3, edges_s[min(bucket + 1, len(edges_s) - 1)] * 1e3


def _enclosing(sweep: Sweep, level: int) -> tuple[Scrape, Scrape]:
    plan = sweep.plans[level]
    before = [s for s in (sweep.before, *sweep.vllm_samples) if s.answered_ns <= plan.window_start_ns]
    after = [s for s in (*sweep.vllm_samples, sweep.after) if s.asked_ns >= plan.window_end_ns]
    return before[-1], after[0]


def _mean_between(before: Scrape, after: Scrape, histogram: str) -> float:
    count = after.value(f"{histogram}_count") - before.value(f"{histogram}_count")
    return (after.value(f"{histogram}_sum") - before.value(f"{histogram}_sum")) / count


def table(sweep: Sweep) -> list[str]:
    """Lines for the terminal: every pair of the run."""
    lines = ["concurrency   output tok/s: ours / vLLM         mean ITL ms: ours / vLLM"]
    for level, concurrency in enumerate(CONCURRENCY):
        rate, itl = output_throughput(sweep, level), mean_itl_ms(sweep, level)
        lines.append(
            f"{concurrency:11d}   {rate.ours:9.2f} / {rate.vllm:.2f} ({rate.apart:+.2%})"
            f"      {itl.ours:9.2f} / {itl.vllm:.2f} ({itl.apart:+.2%})"
        )
    ttft = mean_ttft_ms(sweep)
    delivered, generated = sum(map(delivered_tokens, sweep.records)), sweep.rise("vllm:generation_tokens_total")
    ended = sweep.rise("vllm:request_generation_tokens_count")
    return [
        *lines,
        f"mean TTFT ms: {ttft.ours:.1f} / {ttft.vllm:.1f}" if ttft else "mean TTFT ms: the two saw different requests",
        f"requests: {len(sweep.finished)} ok and one probe / {ended:.0f} finished; {len(sweep.unfinished)} abandoned",
        f"tokens: {delivered} delivered and {PROBE_OUTPUT_TOKENS} of the probe / {generated:.0f} generated",
    ]
