"""What a server's /metrics would have said of a level's records, scraped as a run does; for tests without a server."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from loadgen.record import OK, RequestRecord
from loadgen.server_metrics.parse import read_metrics
from loadgen.server_metrics.sample import Buckets, ServerSample
from loadgen.virtual import ServerState

S = 1_000_000_000
BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, float("inf"))


def buckets(values_s: Sequence[float]) -> Buckets:
    """A histogram with vLLM's bounds of the time to first token."""
    counts = [0] * len(BOUNDS_S)
    for value in values_s:
        counts[bisect_left(BOUNDS_S, value)] += 1
    return Buckets(BOUNDS_S, tuple(map(float, accumulate(counts))), sum(values_s))


def sample(at_ns: int, *, took_ns: int = 2_000_000, **fields: Any) -> ServerSample:
    """One that is true at `at_ns`."""
    values = {"kind": "vllm", "started_s": 100.0, **fields}
    return ServerSample(at_ns - took_ns // 2, at_ns + took_ns // 2, **values)


def perfect_server(
    records: Sequence[RequestRecord],
    window: tuple[int, int],
    *,
    cap: int | None = None,
    kv_usage: float = 0.2,
    change: Callable[[ServerSample], ServerSample] = lambda one: one,
    before_first_token_ns: int = 0,
) -> list[ServerSample]:
    """Samples each second and at the window's ends of a server whose every token arrives at once.

    All but `cap` of the requests in flight wait. `before_first_token_ns` of each TTFT is spent before the server has the
    request.
    """
    instants_ns = sorted({*range(window[0], window[1], S), *window})
    begun = sorted((r.sent_ns or r.dispatched_ns) + before_first_token_ns for r in records)
    ended = sorted(r.finished_ns for r in records)
    firsts = [(r.first_token_ns, r) for r in records if r.first_token_ns is not None and r.sent_ns is not None]
    arrivals = sorted(int(at_ns) for r in records for at_ns in r.arrivals_ns)
    done = sorted(r.finished_ns for r in records if r.status == OK)
    made = []
    for at_ns in instants_ns:
        in_flight = bisect_right(begun, at_ns) - bisect_right(ended, at_ns)
        running = in_flight if cap is None else min(cap, in_flight)
        seen = [r for first_ns, r in firsts if first_ns < at_ns]
        ttft_s = [(r.first_token_ns - r.sent_ns - before_first_token_ns) / 1e9 for r in seen]  # type: ignore[operator]
        prompts = float(sum(r.input_tokens_requested or 0 for r in seen))
        one = sample(
            at_ns,
            gauges={"running": running, "waiting": in_flight - running, "kv_usage": kv_usage, "engines": 1.0},
            counters={
                "preemptions": 0.0,
                "prefix_queries": prompts,
                "prefix_hits": 0.0,
                "prompt_tokens": prompts,
                "generation_tokens": float(bisect_left(arrivals, at_ns)),
                "requests": float(bisect_left(done, at_ns)),
            },
            waiting_by_reason={"capacity": in_flight - running, "deferred": 0},
            requests_by_reason={"length": float(bisect_left(done, at_ns)), "stop": 0.0},
            histograms={"ttft": buckets(ttft_s)},
        )
        made.append(change(one))
    return made


def counting(one: ServerSample, **more: float) -> ServerSample:
    """The sample with counters that are higher by so much."""
    return replace(one, counters={**one.counters, **{k: one.counters[k] + v for k, v in more.items()}})


def showing(one: ServerSample, **gauges: float) -> ServerSample:
    """The sample with other gauges."""
    return replace(one, gauges={**one.gauges, **gauges})


def of_states(states: Sequence[ServerState], **fields: Any) -> list[ServerSample]:
    """What the simulator's engine would have shown in virtual time, read as a real page is."""
    return [
        ServerSample(
            state.at_ns,
            state.at_ns,
            **read_metrics("".join(f"{name} {value}\n" for name, value in state.values.items())),
            **fields,
        )
        for state in states
    ]
