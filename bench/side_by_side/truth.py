"""Takes a metronome's log and what a tool said of its requests, gives both as percentiles of the same requests.

Pure: no clock, no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.side_by_side.measured import Floats, Ints, Measured, ToolError
from bench.side_by_side.rungs import OUTPUT_TOKENS, Rung
from server.metronome.truth import COMPLETE, HELD_BACK, STREAMED, Truth

PERCENTILES = (50, 95, 99)
_SLACK_NS = 2_000_000
"""A tool that notes the wall clock is converted with one offset: a request may seem to arrive before it began."""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """The benchmark's requests as the server answered them, in order of arrival; a tool's probes are not among them."""

    arrived_ns: Ints
    """shape (requests,)"""
    sends_ns: Ints
    """shape (requests, OUTPUT_TOKENS)"""
    held_back: int
    """Of these, answers that the client was too slow to take."""

    @property
    def ttft_ms(self) -> Floats:
        return np.asarray((self.sends_ns[:, 0] - self.arrived_ns) / 1e6)

    def only(self, chosen: Ints) -> Served:
        """Some of them, by position."""
        return Served(self.arrived_ns[chosen], self.sends_ns[chosen], self.held_back)


def served(log: Truth) -> Served:
    """The complete streams of the benchmark's length."""
    wanted = log.has(COMPLETE) & log.has(STREAMED) & (log.tokens == OUTPUT_TOKENS)
    wanted &= np.diff(log.starts) == OUTPUT_TOKENS
    chosen = np.flatnonzero(wanted)
    chosen = chosen[np.argsort(log.arrived_ns[chosen], kind="stable")]
    rows = log.starts[:-1][chosen][:, None] + np.arange(OUTPUT_TOKENS)[None, :]
    return Served(log.arrived_ns[chosen], log.sends_ns[rows], int((log.has(HELD_BACK)[chosen]).sum()))


def match(start_ns: Ints, arrived_ns: Ints) -> Ints:
    """For each request of a tool, in order of its beginning, the position of the server's request that it was.

    The first that arrived after it began and is nobody else's; -1 where there is none. Both arrays ascend. Exact while
    a client sends in the order in which it notes the beginnings; where it does not, requests under way at the same
    time change places, which changes no percentile of all of them.
    """
    found = np.full(len(start_ns), -1, np.int64)
    at = 0
    for i, begun_ns in enumerate(start_ns):
        while at < len(arrived_ns) and arrived_ns[at] < begun_ns - _SLACK_NS:
            at += 1
        if at == len(arrived_ns):
            break
        found[i] = at
        at += 1
    return found


def percentiles(values: Floats) -> list[float]:
    """P50, P95 and P99 by nearest rank. Raises ToolError when there is nothing to take them of."""
    if not values.size:
        raise ToolError("the tool counted no request in the window")
    return [round(float(value), 4) for value in np.percentile(values, PERCENTILES, method="inverted_cdf")]


def compare(measured: Measured, server: Served, rung: Rung) -> dict[str, Any]:
    """What the tool reports of the window's requests beside what was true of the same requests.

    `window_ns` of the result is where its load was measured, for whoever counts what that cost. Raises ToolError when
    nothing can be compared.
    """
    if not measured.start_ns.size:
        raise ToolError("the tool counted no request")
    order = np.argsort(measured.start_ns, kind="stable")
    matched = match(measured.start_ns[order], server.arrived_ns)
    begun_ns, until_ns = _window(measured, rung)
    start_ns = measured.start_ns[order]
    inside = (start_ns >= begun_ns) & (start_ns < until_ns) & (matched >= 0)
    counted, theirs = order[inside], server.only(matched[inside])
    if not counted.size:
        raise ToolError("none of the tool's requests is in the server's log")
    if rung.start == "cold":
        until_ns = int(theirs.sends_ns[:, -1].max())
    itl_ms, true_itl_ms, kind = _gaps(measured, counted, theirs, server, (begun_ns, until_ns))
    tokens = int(((server.sends_ns >= begun_ns) & (server.sends_ns < until_ns)).sum())
    seconds = (until_ns - begun_ns) / 1e9
    return {
        "requests": int(counted.size),
        "unmatched": int((matched < 0).sum()),
        "failed": measured.failed,
        "held_back": server.held_back,
        "remark": measured.remark,
        "window_s": round(seconds, 3),
        "tokens": tokens,
        "load_share": round(tokens / seconds / (rung.streams * OUTPUT_TOKENS / rung.request_s), 4),
        "ttft_ms": measured.reported.get("ttft_ms") or percentiles(measured.ttft_ms[counted]),
        "ttft_true_ms": percentiles(theirs.ttft_ms),
        "itl_ms": measured.reported.get("itl_ms") or percentiles(itl_ms),
        "itl_true_ms": percentiles(true_itl_ms),
        "itl_kind": kind,
        "window_ns": (begun_ns, until_ns),
    }


def _window(measured: Measured, rung: Rung) -> tuple[int, int]:
    if measured.window_ns is not None:
        return measured.window_ns
    first_ns = int(measured.start_ns.min())
    if rung.start == "cold":
        return first_ns, int(measured.start_ns.max()) + 1
    begun_ns = first_ns + round(rung.skip_s * 1e9)
    later_ns = measured.start_ns[measured.start_ns >= begun_ns]
    if not later_ns.size:
        raise ToolError(f"none of its {len(measured.start_ns)} complete requests began after the ramp")
    window_ns = round(rung.window_s * 1e9)
    # A tool may be so late that nothing begins in the window: then it opens with the next request.
    opens_ns = begun_ns if later_ns.min() < begun_ns + window_ns else int(later_ns.min())
    return opens_ns, opens_ns + window_ns


def _gaps(
    measured: Measured, counted: Ints, theirs: Served, server: Served, window_ns: tuple[int, int]
) -> tuple[Floats, Floats, str]:
    """(the tool's gaps, the true ones by the same definition, the definition's name)."""
    true_ms = np.diff(theirs.sends_ns, axis=1) / 1e6
    if measured.gaps_ms is None:
        assert measured.mean_gap_ms is not None
        return measured.mean_gap_ms[counted], true_ms.mean(axis=1), "mean of a request"
    gaps_ms = np.concatenate([measured.gaps_ms[i] for i in counted])
    if measured.role_gaps:
        # The event with the role is sent just before the first token: one more gap a request, of no time.
        return gaps_ms, np.concatenate([true_ms.ravel(), np.zeros(len(true_ms))]), "between chunks"
    if measured.window_ns is not None:
        # Ours: the gaps that end in the window, of every request that was under way then.
        ends_ns = server.sends_ns[:, 1:]
        true_ms = np.diff(server.sends_ns, axis=1)[(ends_ns >= window_ns[0]) & (ends_ns < window_ns[1])] / 1e6
    return gaps_ms, true_ms.ravel(), "between tokens"
