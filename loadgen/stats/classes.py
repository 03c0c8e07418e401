"""Takes the columns of a level's requests and the classes of its workload, gives the figures of each class; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.record import OK
from loadgen.stats.columns import MISSING, Columns, Flags, Floats
from loadgen.stats.latency_fields import latency_fields, weak_fields
from loadgen.stats.load import Served, Window, within
from loadgen.stats.percentile import Samples
from loadgen.stats.token_counts import token_counts

CLASS_LATENCIES = ("ttft", "ttft_from_schedule", "tpot", "e2el", "e2el_from_schedule")


@dataclass(frozen=True, slots=True)
class RequestKind:
    """What a level needs to know of one class: `RequestRecord.kind` is its index."""

    name: str
    share: float | None
    """How often it was to come up, between 0 and 1; None where nobody said."""
    prefix_tokens: int | None
    """Tokens at the beginning of each prompt that other requests have too; None where nobody said."""
    model: str | None = None
    """The model that it asks for; None where the workload has only one."""
    streamed: bool = True
    """Whether its answers are asked for as streams."""


def class_figures(
    c: Columns,
    begun: Flags,
    window: Window,
    statuses: Sequence[str],
    durations: Mapping[str, Floats],
    kinds: Sequence[RequestKind],
    served: Served,
) -> list[dict[str, Any]]:
    """One object a class; empty where there is only one.

    `begun` flags the requests of the window, `statuses` has one entry a request, and `durations` is what
    `loadgen.stats.latencies.per_request_ns` gives. Tokens count where they arrived, as in the level's own figures.
    """
    if len(kinds) < 2:
        return []
    window_s = (window[1] - window[0]) / 1e9
    arrived = within(c.arrivals_ns, window) & ~c.failed[c.request]
    completed = within(c.finished_ns, window) & c.ok
    inside = within(served.instant_ns, window)
    figures = []
    for number, kind in enumerate(kinds):
        mine = c.kind == number
        chosen = begun & mine
        samples = {name: Samples(durations[name][chosen & ~np.isnan(durations[name])]) for name in CLASS_LATENCIES}
        ends = Counter(statuses[i] for i in np.flatnonzero(chosen).tolist())
        figures.append(
            {
                "name": kind.name,
                "share": kind.share,
                "model": kind.model,
                "streamed": kind.streamed,
                "requests": {OK: ends.pop(OK, 0), **dict(sorted(ends.items()))},
                "request_throughput": int((completed & mine).sum()) / window_s,
                "served_request_rate": float(served.share[inside & mine[served.request]].sum()) / window_s,
                "output_throughput": float(c.tokens[arrived & mine[c.request]].sum()) / window_s,
                **latency_fields(samples, CLASS_LATENCIES),
                "weak_percentiles": weak_fields(samples, CLASS_LATENCIES),
                **token_counts(c, chosen),
            }
        )
    return figures


def intended_prefix_share(c: Columns, begun: Flags, kinds: Sequence[RequestKind]) -> float | None:
    """Share of the prompt tokens of the ok requests of the window that the server was given before at the same place: in
    other requests, or in the turn of the conversation before.

    So much a prefix cache could know, whole blocks aside. None without such a request, or where nobody said.
    """
    counted = c.ok & begun & (c.input_tokens != MISSING) & (c.kind < len(kinds))
    if not counted.any() or any(kind.prefix_tokens is None for kind in kinds):
        return None
    shared = np.array([kind.prefix_tokens for kind in kinds], np.int64)[c.kind[counted]]
    given, tokens = c.prefix_tokens[counted], c.input_tokens[counted]
    return float(np.minimum(np.where(given != MISSING, given, shared), tokens).sum() / tokens.sum())
