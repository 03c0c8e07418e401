"""Closed- or open-loop load on the simulator's engine in virtual time: takes a load, gives a perfect client's records.

No socket, no clock, no waiting: an hour of load takes seconds, so judgement can be tested on it. What a real client
adds (network, its own lag, coalesced reads) is not in these records.
"""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from loadgen.record import CENSORED, OK, RequestRecord
from server.simulator.engine import Engine, Request
from server.simulator.settings import SimulatorSettings


@dataclass(slots=True, eq=False)
class _Sent:
    request: Request
    user: int
    sent_ns: int
    scheduled_ns: int | None = None
    arrivals_ns: array[int] = field(default_factory=lambda: array("q"))


def closed_loop(
    settings: SimulatorSettings,
    *,
    concurrency: int,
    input_tokens: int,
    output_tokens: int,
    duration_ns: int,
    level: int = 0,
    start_ns: int = 1_000_000_000,
    ramp_ns: int = 0,
) -> list[RequestRecord]:
    """Records of `concurrency` users, each sending its next request the moment the last one ends; in order of end.

    User u of c begins at `start_ns + ramp_ns · u / c`. Without a ramp, users of one length stay in lockstep for
    good, as real ones do. The load stops at `start_ns + duration_ns`; what is open then comes last, as
    `censored`, with the tokens it had got. ValueError for a load without users or tokens.
    """
    if concurrency < 1 or duration_ns < 1 or not 0 <= ramp_ns <= duration_ns:
        raise ValueError(
            "a closed loop needs at least one user, some time, and a ramp within it: "
            f"concurrency={concurrency}, duration_ns={duration_ns}, ramp_ns={ramp_ns}"
        )
    engine = Engine(settings)
    sent: dict[int, _Sent] = {}
    records: list[RequestRecord] = []
    next_id = 0

    def send(user: int, now_ns: int) -> None:
        nonlocal next_id
        request = Request(next_id, input_tokens, output_tokens)
        next_id += 1
        engine.add(request)
        sent[request.id] = _Sent(request, user, now_ns)

    beginnings_ns = deque((start_ns + ramp_ns * user // concurrency, user) for user in range(concurrency))
    now_ns, end_ns = start_ns, start_ns + duration_ns
    while True:
        while beginnings_ns and beginnings_ns[0][0] <= now_ns:
            begin_ns, user = beginnings_ns.popleft()
            send(user, begin_ns)
        step = engine.step()
        if step is None:
            now_ns = beginnings_ns[0][0]
            continue
        now_ns += step.duration_ns
        if now_ns > end_ns:
            break
        for request, _, finished in step.emissions:
            sent[request.id].arrivals_ns.append(now_ns)
            if finished:
                done = sent.pop(request.id)
                records.append(_record(done, level, OK, now_ns))
                send(done.user, now_ns)
    records.extend(_record(open_one, level, CENSORED, end_ns) for open_one in sent.values())
    return records


def open_loop(
    settings: SimulatorSettings,
    *,
    offsets_s: Iterable[float],
    input_tokens: int,
    output_tokens: int,
    duration_ns: int,
    max_in_flight: int | None = None,
    level: int = 0,
    start_ns: int = 1_000_000_000,
) -> list[RequestRecord]:
    """Records of requests that arrive at `start_ns` + each of `offsets_s` (ascending), in order of end.

    An arrival that finds `max_in_flight` requests in flight waits for the first of them to end. Arrivals stop at
    `start_ns + duration_ns`; what is open then comes last, as `censored`; what never had a place after it.
    """
    engine = Engine(settings)
    sent: dict[int, _Sent] = {}
    records: list[RequestRecord] = []
    end_ns = start_ns + duration_ns
    arrivals_ns = (start_ns + round(offset_s * 1e9) for offset_s in offsets_s)
    coming_ns = next(arrivals_ns, end_ns)
    waiting: deque[int] = deque()
    ended: list[Request] = []
    numbers = itertools.count()
    now_ns = start_ns

    def send(scheduled_ns: int, at_ns: int) -> None:
        request = Request(next(numbers), input_tokens, output_tokens)
        engine.add(request)
        sent[request.id] = _Sent(request, 0, at_ns, scheduled_ns)

    while True:
        # Before the step's answers end: an arrival in mid-step found them in flight.
        while coming_ns < end_ns and coming_ns <= now_ns:
            if max_in_flight is None or len(sent) < max_in_flight:
                send(coming_ns, coming_ns)
            else:
                waiting.append(coming_ns)
            coming_ns = next(arrivals_ns, end_ns)
        for request in ended:
            records.append(_record(sent.pop(request.id), level, OK, now_ns))
            if waiting:
                send(waiting.popleft(), now_ns)
        ended = []
        step = engine.step()
        if step is None:
            if coming_ns >= end_ns:
                break
            now_ns = coming_ns
            continue
        now_ns += step.duration_ns
        if now_ns > end_ns:
            break
        for request, _, finished in step.emissions:
            sent[request.id].arrivals_ns.append(now_ns)
            if finished:
                ended.append(request)
    records.extend(_record(open_one, level, CENSORED, end_ns) for open_one in sent.values())
    for scheduled_ns in waiting:
        never = _Sent(Request(next(numbers), input_tokens, output_tokens), 0, end_ns, scheduled_ns)
        records.append(replace(_record(never, level, CENSORED, end_ns), sent_ns=None, response_started_ns=None))
    return records


def _record(sent: _Sent, level: int, status: str, finished_ns: int) -> RequestRecord:
    arrivals_ns = np.frombuffer(sent.arrivals_ns, np.int64) if sent.arrivals_ns else np.empty(0, np.int64)
    ok = status == OK
    first_ns = int(arrivals_ns[0]) if arrivals_ns.size else None
    return RequestRecord(
        level=level,
        index=sent.request.id,
        user=sent.user,
        worker=0,
        status=status,
        dispatched_ns=sent.sent_ns,
        finished_ns=finished_ns,
        reason="" if ok else "still open when the load stopped",
        scheduled_ns=sent.scheduled_ns,
        waited_ns=None if sent.scheduled_ns is None else sent.sent_ns - sent.scheduled_ns,
        sent_ns=sent.sent_ns,
        send_gap_ns=0,
        response_started_ns=sent.sent_ns,
        first_token_ns=first_ns,
        first_visible_ns=first_ns,
        last_token_ns=int(arrivals_ns[-1]) if arrivals_ns.size else None,
        http_status=200,
        finish_reason="length" if ok else None,
        input_tokens=sent.request.prompt_tokens if ok else None,
        input_tokens_requested=sent.request.prompt_tokens,
        output_tokens=sent.request.output_tokens if ok else None,
        output_tokens_source="usage" if ok else None,
        output_tokens_requested=sent.request.output_tokens,
        kernel_stamps=True,
        arrivals_ns=arrivals_ns,
        event_tokens=np.ones(arrivals_ns.size, np.int32),
        coalesced=np.zeros(arrivals_ns.size, np.bool_),
    )
