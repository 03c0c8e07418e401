"""Takes the columns of a level's requests, gives every duration of docs/metrics.md; never looks at a failed request.

Durations of a request belong to the window in which the request was sent (open loop: scheduled); a gap between tokens
belongs to the window in which it ends, so gaps of a request that began before the window count too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadgen.stats.columns import MISSING, Columns, Flags, Floats, Ints
from loadgen.stats.percentile import Samples

PER_REQUEST = ("ttft", "ttft_from_schedule", "ttfo", "tpot", "e2el", "e2el_from_schedule")
PER_GAP = ("itl", "chunk_gap")
FROM_SCHEDULE = {"ttft": "ttft_from_schedule", "e2el": "e2el_from_schedule"}
"""What stands at the head in an open loop, and what its limits are for: latency as an arriving user feels it."""
LATENCIES = ("ttft", "ttft_from_schedule", "ttfo", "itl", "chunk_gap", "tpot", "e2el", "e2el_from_schedule")


def _between(earlier_ns: Ints, later_ns: Ints, ok: Flags) -> Floats:
    measured = ok & (earlier_ns != MISSING) & (later_ns != MISSING)
    # The subtraction is of whole nanoseconds; only the difference, well below 2**53, becomes a float.
    return np.where(measured, np.where(measured, later_ns, 0) - np.where(measured, earlier_ns, 0), np.nan)


def _tpot_ns(c: Columns) -> Floats:
    """(last_token − first_token) / (N − f) per request; f is 1 unless the first event is known to carry more.

    Absent for N ≤ f, and where first and last token came in one arrival: that bounds the time, it does not measure it.
    """
    decode_ns = _between(c.first_token_ns, c.last_token_ns, c.ok)
    after_first = np.where(c.output_tokens != MISSING, c.output_tokens - c.first_event_tokens, 0)
    measured = (after_first > 0) & (decode_ns > 0)
    return np.where(measured, decode_ns / np.where(measured, after_first, 1), np.nan)


def per_request_ns(c: Columns) -> dict[str, Floats]:
    """For each of `PER_REQUEST` one duration a request, shape (n,); NaN where it is absent or the request is not ok."""
    return {
        "ttft": _between(c.sent_ns, c.first_token_ns, c.ok),
        "ttft_from_schedule": _between(c.scheduled_ns, c.first_token_ns, c.ok),
        "ttfo": _between(c.sent_ns, c.first_visible_ns, c.ok),
        "tpot": _tpot_ns(c),
        "e2el": _between(c.sent_ns, c.last_token_ns, c.ok),
        "e2el_from_schedule": _between(c.scheduled_ns, c.last_token_ns, c.ok),
    }


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """Gaps between consecutive token-carrying events of the ok requests; arrays have one entry an event, shape (m,).

    The entry belongs to the event that ends the gap, so no array need be copied; `ends_gap` says which entries count.
    """

    request: NDArray[np.int32]
    """Index of the request."""
    end_ns: Ints
    gap_ns: Ints
    tokens: Floats
    """k, tokens that the event brought."""
    coalesced: Flags
    """Whether the gap is 0, because its two events were read together: that was not measured."""
    ends_gap: Flags
    """Whether the event ends a gap of an ok request: not the first of its request."""

    def chunk_samples(self, chosen: Flags) -> Samples:
        """The chosen gaps as they are."""
        return Samples(self.gap_ns[chosen])

    def token_samples(self, chosen: Flags) -> Samples:
        """The chosen gaps per token: a gap g that brings k tokens is k samples of g / k."""
        gap_ns, tokens = self.gap_ns[chosen], self.tokens[chosen]
        if bool((tokens == 1).all()):
            return Samples(gap_ns)
        if bool((tokens == np.floor(tokens)).all()):
            return Samples(gap_ns / tokens, tokens.astype(np.int64))
        return Samples(gap_ns / tokens, tokens)


def _gaps(c: Columns, request: NDArray[np.int32], end_ns: Ints, tokens: Floats) -> Gaps:
    gap_ns = np.diff(end_ns, prepend=end_ns[:1])
    ends_gap = c.ok[request]
    ends_gap[:1] = False
    ends_gap[1:] &= request[1:] == request[:-1]
    return Gaps(request, end_ns, gap_ns, tokens, gap_ns == 0, ends_gap)


def chunk_gaps(c: Columns) -> Gaps:
    """Gaps between all consecutive events; coalesced ones, of zero length, are among them."""
    return _gaps(c, c.request, c.arrivals_ns, c.tokens)


def longest_gap_ns(c: Columns) -> Floats:
    """The longest gap between two events of each ok request, shape (n,): a stall in its stream, which TPOT spreads over all its
    tokens. NaN without a gap."""
    every = chunk_gaps(c)
    longest = np.full(c.n, -np.inf)
    np.maximum.at(longest, every.request[every.ends_gap], every.gap_ns[every.ends_gap])
    return np.where(np.isinf(longest), np.nan, longest)


def itl_gaps(c: Columns, every: Gaps) -> Gaps:
    """The gaps that enter ITL, of `every` gap: they bring tokens, N is known, and they are not coalesced. What came before
    events that were read together is a gap like any other: a stall that ends in a burst is a stall.

    Where the server's count did not move at an event (k = 0), its time belongs to the next event that brought tokens.
    """
    if (c.counts_given[c.request] & (c.tokens <= 0)).any():
        moved = c.tokens > 0
        every = _gaps(c, c.request[moved], c.arrivals_ns[moved], c.tokens[moved])
    counted = (c.output_tokens != MISSING) | c.counts_given
    enters = every.ends_gap & counted[every.request] & ~every.coalesced & (every.tokens > 0)
    return replace(every, ends_gap=enters)
