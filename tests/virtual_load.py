"""Closed-loop load in virtual time with what `loadgen.virtual` leaves out: drawn lengths, late users, a server that slows."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from loadgen.record import OK, RequestRecord
from server.simulator.engine import Engine, Request
from server.simulator.settings import SimulatorSettings

SECOND = 1_000_000_000


def drawn_load(
    settings: SimulatorSettings,
    *,
    begin_ns: list[int],
    lengths: Callable[[], tuple[int, int]],
    end_ns: int,
    slowness: Callable[[int], float] = lambda now_ns: 1.0,
    ttft_extra_ns: Callable[[int], int] = lambda now_ns: 0,
) -> list[RequestRecord]:
    """Ok records until `end_ns`; user u begins at `begin_ns[u]` and has requests of `lengths()` = (prompt, output).

    A step that begins at t takes `slowness(t)` times as long; every first token is seen `ttft_extra_ns(t)` late.
    """
    engine = Engine(settings)
    waiting = [(at_ns, user) for user, at_ns in enumerate(begin_ns)]
    heapq.heapify(waiting)
    open_ones: dict[int, tuple[Request, int, int, list[int]]] = {}
    records: list[RequestRecord] = []
    now_ns = next_id = 0
    while now_ns < end_ns:
        while waiting and waiting[0][0] <= now_ns:
            sent_ns, user = heapq.heappop(waiting)
            request = Request(next_id, *lengths())
            engine.add(request)
            open_ones[next_id] = (request, user, sent_ns, [])
            next_id += 1
        step = engine.step()
        if step is None:
            now_ns = waiting[0][0]
            continue
        now_ns += round(step.duration_ns * slowness(now_ns))
        for request, _, finished in step.emissions:
            arrivals = open_ones[request.id][3]
            # Only what the client sees of the first token is late: the engine goes on as it was.
            arrivals.append(now_ns + (0 if arrivals else ttft_extra_ns(now_ns)))
            if finished:
                _, user, sent_ns, arrivals = open_ones.pop(request.id)
                records.append(_record(request, user, sent_ns, np.array(sorted(arrivals), np.int64)))
                heapq.heappush(waiting, (int(records[-1].finished_ns), user))
    return records


def _record(request: Request, user: int, sent_ns: int, arrivals_ns: np.ndarray) -> RequestRecord:
    first_ns, last_ns = int(arrivals_ns[0]), int(arrivals_ns[-1])
    return RequestRecord(
        level=0,
        index=request.id,
        user=user,
        worker=0,
        status=OK,
        dispatched_ns=sent_ns,
        finished_ns=last_ns,
        sent_ns=sent_ns,
        first_token_ns=first_ns,
        first_visible_ns=first_ns,
        last_token_ns=last_ns,
        input_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        output_tokens_source="usage",
        arrivals_ns=arrivals_ns,
        coalesced=np.zeros(arrivals_ns.size, np.bool_),
    )
