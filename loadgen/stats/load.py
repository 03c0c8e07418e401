"""Takes the columns of a level's requests and a window, gives how much load there was and what came back; pure.

Everything here is counted or weighted inside [start, end); figures of the whole run, as peers report them, stand apart.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from loadgen.record import LevelPlan
from loadgen.stats.columns import MISSING, Columns, Flags, Floats, Ints

Window = tuple[int, int]


def within(instant_ns: Ints, window: Window) -> Flags:
    """Which instants lie in [start, end); missing ones do not."""
    start_ns, end_ns = window
    return (instant_ns >= start_ns) & (instant_ns < end_ns)


def in_flight(c: Columns, window: Window) -> tuple[float, int]:
    """(achieved concurrency: requests in flight, time-weighted over the window; most at any one instant)."""
    start_ns, end_ns = window
    begin = np.maximum(c.on_the_wire_ns, start_ns)
    end = np.minimum(c.finished_ns, end_ns)
    overlaps = end > begin
    begins, ends = np.sort(begin[overlaps]), np.sort(end[overlaps])
    # At one instant ends come before beginnings: a user's next request does not overlap its last one.
    ended_before = np.searchsorted(ends, begins, side="right")
    peak = int(np.max(np.arange(1, begins.size + 1) - ended_before, initial=0))
    return float((ends.sum() - begins.sum()) / (end_ns - start_ns)), peak


def token_rates(c: Columns, window: Window) -> dict[str, Any]:
    """Tokens by their arrival in the window; partial output of failed requests apart.

    Prompt tokens are as the server counted them, or as requested where a cut-off request told no usage. Those of an answer
    that came whole arrive with it, since nobody knows when its first token was there.
    """
    window_s = (window[1] - window[0]) / 1e9
    arrived = within(c.arrivals_ns, window)
    failed = c.failed[c.request]
    begun = within(np.where(c.first_token_ns != MISSING, c.first_token_ns, c.last_token_ns), window)
    prompt = np.where(c.input_tokens != MISSING, c.input_tokens, c.input_tokens_requested)
    known = begun & (prompt != MISSING)
    unknown = int(begun.sum() - known.sum())
    return {
        "output_throughput": float(c.tokens[arrived & ~failed].sum()) / window_s,
        "input_throughput": None if unknown and not known.any() else int(prompt[known].sum()) / window_s,
        "failed_output_tokens": float(c.tokens[arrived & failed].sum()),
        "input_tokens_unknown": unknown,
        "coalesced_events": int((c.coalesced & arrived & ~failed).sum()),
        "events": int((arrived & ~failed).sum()),
    }


def request_rates(c: Columns, served: Served, window: Window) -> dict[str, float | None]:
    """Requests per second: offered by the schedule (None in a closed loop), sent, completed ok, and served by their tokens."""
    window_s = (window[1] - window[0]) / 1e9
    open_loop = bool((c.scheduled_ns != MISSING).any())
    return {
        "offered_request_rate": int(within(c.scheduled_ns, window).sum()) / window_s if open_loop else None,
        "sent_request_rate": int(within(c.dispatched_ns, window).sum()) / window_s,
        "completed_request_rate": int((within(c.finished_ns, window) & c.ok).sum()) / window_s,
        "served_request_rate": float(served.share[within(served.instant_ns, window)].sum()) / window_s,
    }


class Served(NamedTuple):
    """Parts of requests, each served at an instant; all shape (k,)."""

    instant_ns: Ints
    share: Floats
    """Of its request; those of an ok request make 1."""
    request: Ints
    """Index of the request."""


def served_parts(c: Columns) -> Served:
    """Every event of a request that did not fail, with its share of the request's tokens; an ok request without events is there
    whole when it ends.

    Of a request that was cut off nobody knows N. Where all ok requests had as many tokens as they were asked for, so would it have
    had; else its share of a token is the mean of 1/N over the ok requests that had at least as many tokens as it, where there are
    any, and never less than 1 over what was asked for; where neither is known it is left out.
    """
    came = np.bincount(c.request, c.tokens, c.n).astype(np.float64)
    each = np.where(c.ok, 1 / np.maximum(came, 1e-9), _share_of_cut_off(c, came))
    event = np.flatnonzero(~c.failed[c.request] & (each[c.request] > 0))
    unseen = np.flatnonzero(c.ok & (came == 0))
    request = c.request[event].astype(np.int64)
    return Served(
        np.concatenate((c.arrivals_ns[event], c.finished_ns[unseen])),
        np.concatenate((c.tokens[event] * each[request], np.ones(unseen.size))),
        np.concatenate((request, unseen)),
    )


def _share_of_cut_off(c: Columns, came: Floats) -> Floats:
    """What a token of each request is of it, were it cut off after `came` tokens; 0 where nothing tells. Shape (n,)."""
    wanted = c.output_tokens_requested
    asked = np.where(wanted != MISSING, np.maximum(wanted, came), np.inf)
    lengths = np.sort(came[c.ok & (came > 0)])
    longer = np.searchsorted(lengths, came)
    sums = np.concatenate((np.cumsum((1 / lengths)[::-1])[::-1], [0.0]))
    expected = sums[longer] / np.maximum(lengths.size - longer, 1)
    at_least = 1 / np.maximum(asked, 1)
    kept = c.ok.any() and (np.round(came[c.ok]) == wanted[c.ok]).all()  # such as forced lengths
    return np.where(kept & (wanted != MISSING), at_least, np.maximum(expected, at_least))


def ended_after_change(plan: LevelPlan, c: Columns, begun: Flags) -> int | None:
    """Requests of the window that ended under another load than it began under; None where the load went on."""
    if plan.load_changed_ns is None:
        return None
    return int((begun & (c.finished_ns > plan.load_changed_ns)).sum())


def full_run(c: Columns, mine: Flags) -> dict[str, Any]:
    """Figures of the requests `mine`, shape (n,), as most other tools define them: all / (last token − first dispatch).

    Ramp-up and drain are inside, so rates are lower than the window's; for comparison with other tools only.
    """
    arrived = c.last_token_ns[mine & (c.last_token_ns != MISSING)]
    spent = int(np.max(arrived) - np.min(c.dispatched_ns[mine])) / 1e9 if arrived.size else None
    by_event = np.bincount(c.request, c.tokens, c.n)
    # N also where its events are not known; what arrived where N is not known.
    tokens = float(np.where(c.output_tokens != MISSING, c.output_tokens, by_event)[mine & ~c.failed].sum())
    ok = int((c.ok & mine).sum())
    return {
        "requests": int(mine.sum()),
        "ok_requests": ok,
        "failed_requests": int((c.failed & mine).sum()),
        "duration_s": spent,
        "output_tokens": tokens,
        "output_throughput": tokens / spent if spent else None,
        "request_throughput": ok / spent if spent else None,
    }
