"""Takes records, where their events lie in their connections, and the captured segments; gives how well the stamps agree.

Pure. An event's packet is the segment with which the stream was complete up to the event's last byte. The difference is
the worker's stamp minus the packet's; both are of one clock, so only workers on the capturing host can be audited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.audit_trail import AuditTrail, HeardAnswer
from loadgen.record import RequestRecord
from loadgen.stats.percentile import nearest_rank
from loadgen.stats.segments import NOT_FOUND, Connections


def audit_figures(records: Sequence[RequestRecord], trail: AuditTrail) -> dict[str, Any]:
    """The `audit` of a level object: see docs/metrics.md. `records`: those whose events are compared."""
    connections = Connections(trail.segments)
    differences = [np.empty(0, np.int64)]
    coalesced = [np.empty(0, np.bool_)]
    last = [np.empty(0, np.bool_)]
    events = user_space = 0
    for record in records:
        events += len(record.arrivals_ns)
        if not record.kernel_stamps:
            user_space += len(record.arrivals_ns)
            continue
        stamps_ns = packet_stamps_ns(record, trail.answers.get((record.level, record.index)), connections)
        found = stamps_ns != NOT_FOUND
        differences.append((record.arrivals_ns - stamps_ns)[found])
        coalesced.append(record.coalesced[found])
        last.append(np.arange(1, len(found) + 1)[found] == len(found))
    difference_ns, merged, final = np.concatenate(differences), np.concatenate(coalesced), np.concatenate(last)
    return {
        "events": events,
        "user_space": user_space,
        "matched": len(difference_ns),
        "unmatched": events - user_space - len(difference_ns),
        "single": _spread(difference_ns[~merged & ~final]),
        # What ends the stream comes right behind the last token, and is often read with it.
        "last": _spread(difference_ns[~merged & final]),
        "coalesced": _spread(difference_ns[merged]),
        "ring_drops": trail.ring_drops,
        "refused_stamps": trail.refused_stamps,
        "beyond_limit": trail.beyond_limit,
    }


def packet_stamps_ns(record: RequestRecord, answer: HeardAnswer | None, connections: Connections) -> NDArray[np.int64]:
    """shape (events,): the packet's instant of each token-carrying event; `NOT_FOUND` where it was not captured."""
    nothing = np.full(len(record.arrivals_ns), NOT_FOUND, np.int64)
    if answer is None or len(answer.ends) != len(nothing) or record.response_started_ns is None:
        return nothing
    found = connections.arrivals(answer.port, answer.peer, record.response_started_ns)
    return nothing if found is None else found.of(answer.ends, record.response_started_ns)


def _spread(difference_ns: NDArray[np.int64]) -> dict[str, Any]:
    """Nearest-rank percentiles of how far the stamps differ, either way; and the mean, whose sign says which way."""
    ranked = nearest_rank(np.abs(difference_ns), (50, 99, 99.9, 100))
    names = ("p50_ms", "p99_ms", "p999_ms", "max_ms")
    return {
        "n": len(difference_ns),
        "mean_ms": float(difference_ns.mean()) / 1e6 if len(difference_ns) else None,
        **{name: None if value is None else value / 1e6 for name, value in zip(names, ranked, strict=True)},
    }
