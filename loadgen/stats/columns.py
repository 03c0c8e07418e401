"""Takes request records, gives the same as columns of numbers, every arrival concatenated once; never judges.

A level can hold a hundred thousand requests of a hundred tokens; numpy walks such columns, Python would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.record import OK, RequestRecord, is_failure

MISSING = int(np.iinfo(np.int64).min)
"""Stands for None in the columns of integers."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """n requests with m token-carrying events in all. Integers of instants and counts hold `MISSING` for None."""

    ok: Flags
    failed: Flags
    dispatched_ns: Ints
    finished_ns: Ints
    scheduled_ns: Ints
    waited_ns: Ints
    sent_ns: Ints
    first_token_ns: Ints
    first_visible_ns: Ints
    last_token_ns: Ints
    input_tokens: Ints
    input_tokens_requested: Ints
    output_tokens: Ints
    output_tokens_requested: Ints
    user: Ints
    """By its number on its worker."""
    worker: Ints
    kind: Ints
    """Index of the class in the workload."""
    session: Ints
    turn: Ints
    """From 1; MISSING where requests stand alone."""
    prefix_tokens: Ints
    turn_input_tokens: Ints
    send_gap_ns: Ints
    connection_wait_ns: Ints
    kernel_stamps: Flags
    first_event_tokens: Ints
    """f, tokens of the first event where the server gave counts, or where a single event carried all N."""
    counts_given: Flags
    """Whether the server gave token counts per event."""
    events: Ints
    """shape (n,): number of token-carrying events."""
    request: NDArray[np.int32]
    """shape (m,): index of the request that each event belongs to."""
    arrivals_ns: Ints
    """shape (m,)."""
    tokens: Floats
    """shape (m,): tokens that each event is credited with, see `_credit`."""
    coalesced: Flags
    """shape (m,)."""

    @property
    def n(self) -> int:
        return int(self.ok.size)

    @property
    def anchor_ns(self) -> Ints:
        """The instant that decides which window a request belongs to: scheduled, else sent, else dispatched."""
        begun = np.where(self.sent_ns != MISSING, self.sent_ns, self.dispatched_ns)
        return np.where(self.scheduled_ns != MISSING, self.scheduled_ns, begun)

    @property
    def on_the_wire_ns(self) -> Ints:
        """When the request began to be in flight: sent, or dispatched for one that could not be sent."""
        return np.where(self.sent_ns != MISSING, self.sent_ns, self.dispatched_ns)


def columns(records: Sequence[RequestRecord]) -> Columns:
    """The columns of `records`, in their order. Raises ValueError where an event array has the wrong length."""
    n = len(records)

    def ints(field: str) -> Ints:
        values = (getattr(record, field) for record in records)
        return np.fromiter((MISSING if value is None else value for value in values), np.int64, n)

    events = np.fromiter((record.arrivals_ns.size for record in records), np.int64, n)
    output_tokens = ints("output_tokens")
    counts_given = np.fromiter((record.event_tokens is not None for record in records), np.bool_, n)
    request = np.repeat(np.arange(n, dtype=np.int32), events)
    return Columns(
        ok=np.fromiter((record.status == OK for record in records), np.bool_, n),
        failed=np.fromiter((is_failure(record.status) for record in records), np.bool_, n),
        dispatched_ns=ints("dispatched_ns"),
        finished_ns=ints("finished_ns"),
        scheduled_ns=ints("scheduled_ns"),
        waited_ns=ints("waited_ns"),
        sent_ns=ints("sent_ns"),
        first_token_ns=ints("first_token_ns"),
        first_visible_ns=ints("first_visible_ns"),
        last_token_ns=ints("last_token_ns"),
        input_tokens=ints("input_tokens"),
        input_tokens_requested=ints("input_tokens_requested"),
        output_tokens=output_tokens,
        output_tokens_requested=ints("output_tokens_requested"),
        user=ints("user"),
        worker=ints("worker"),
        kind=ints("kind"),
        session=ints("session"),
        turn=ints("turn"),
        prefix_tokens=ints("prefix_tokens"),
        turn_input_tokens=ints("turn_input_tokens"),
        send_gap_ns=ints("send_gap_ns"),
        connection_wait_ns=ints("connection_wait_ns"),
        kernel_stamps=np.fromiter((record.kernel_stamps for record in records), np.bool_, n),
        first_event_tokens=_first_event_tokens(records, events, output_tokens),
        counts_given=counts_given,
        events=events,
        request=request,
        arrivals_ns=_concatenated([record.arrivals_ns for record in records]),
        tokens=_credit(records, events, output_tokens, counts_given, request),
        coalesced=_coalesced(records, request.size),
    )


def _concatenated(arrays: list[Ints]) -> Ints:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)


def _first_event_tokens(records: Sequence[RequestRecord], events: Ints, output_tokens: Ints) -> Ints:
    first = np.where((events == 1) & (output_tokens > 1), output_tokens, 1)
    for i, record in enumerate(records):
        if record.event_tokens is not None and record.event_tokens.size:
            first[i] = int(record.event_tokens[0])
    return first


def _credit(
    records: Sequence[RequestRecord], events: Ints, output_tokens: Ints, counts_given: Flags, request: NDArray[np.int32]
) -> Floats:
    """Tokens of each event: what the server said; else N spread evenly over the request's events; else as many as an event of
    the requests whose N is known had in the mean; else one.

    The last two are for a request that we cut off before its usage came (censored, cancelled) and for the partial output of
    a failed one: its events are all that is known of it.
    """
    spread = (output_tokens != MISSING) & (events > 0)
    mean = output_tokens[spread].sum() / events[spread].sum() if spread.any() else 1.0
    share = np.full(events.size, mean)
    share[spread] = output_tokens[spread] / events[spread]
    tokens = np.repeat(share, events)
    if counts_given.any():
        given = [record.event_tokens for record in records if record.event_tokens is not None]
        where = np.flatnonzero(counts_given[request])
        told = np.concatenate(given)
        if told.size != where.size:
            raise ValueError("event_tokens must have one entry for each arrival")
        tokens[where] = told
    return tokens


def _coalesced(records: Sequence[RequestRecord], m: int) -> Flags:
    flags = [
        record.coalesced if record.coalesced.size else np.zeros(record.arrivals_ns.size, np.bool_) for record in records
    ]
    joined = np.concatenate(flags) if flags else np.empty(0, np.bool_)
    if joined.size != m:
        raise ValueError("coalesced must have one entry for each arrival")
    return joined
