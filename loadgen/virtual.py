"""Closed- or open-loop load on the simulator's engine in virtual time: takes a load, gives a perfect client's records.

No socket, no clock, no waiting: an hour of load takes seconds, so judgement can be tested on it. What a real client
adds (network, its own lag, coalesced reads) is not in these records. Of the settings all that concern time and memory
count; faults and start-up do not happen.
"""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from loadgen.record import CENSORED, OK, RequestRecord
from server.simulator.engine import Engine, Request, Step
from server.simulator.metrics import EngineMetrics
from server.simulator.settings import SimulatorSettings

SAMPLE_EVERY_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ServerState:
    """What the server's /metrics would have said at an instant of virtual time."""

    at_ns: int
    values: dict[str, float]
    """By name as on the page, with `_total` where it has it: see `EngineMetrics.values`."""


@dataclass(slots=True, eq=False)
class _Sent:
    request: Request
    user: int
    sent_ns: int
    scheduled_ns: int | None = None
    arrivals_ns: array[int] = field(default_factory=lambda: array("q"))
    event_tokens: array[int] = field(default_factory=lambda: array("i"))
    held_back: int = 0

    def gets(self, now_ns: int, tokens: int, finished: bool, stream_interval: int) -> None:
        """The next tokens, as one event; held back until there are `stream_interval` of them."""
        if self.arrivals_ns and not finished and self.held_back + tokens < stream_interval:
            self.held_back += tokens
            return
        self.arrivals_ns.append(now_ns)
        self.event_tokens.append(self.held_back + tokens)
        self.held_back = 0


class _Server:
    """The engine, its metrics, and samples of them."""

    def __init__(
        self, settings: SimulatorSettings, samples: list[ServerState] | None, start_ns: int, shared_prefix_tokens: int
    ) -> None:
        self._settings = settings
        self._engine = Engine(settings)
        self._metrics = EngineMetrics(settings, self._engine)
        self._samples = samples
        self._due_ns = start_ns
        self._shared = shared_prefix_tokens // settings.block_size

    def add(self, request: Request, now_ns: int) -> None:
        if self._settings.enable_prefix_caching:
            full = (request.prompt_tokens + request.output_tokens) // self._settings.block_size
            shared = min(self._shared, request.prompt_tokens // self._settings.block_size)
            request.hashes = [*range(shared), *((request.id, block) for block in range(shared, full))]
        request.arrived_ns = now_ns
        self._engine.add(request)

    def step(self, now_ns: int) -> Step | None:
        """The step that begins now."""
        step = self._engine.step()
        if step is None:
            self._metrics.idle()
        else:
            self._metrics.began(step, now_ns)
        return step

    def sample_until(self, now_ns: int) -> None:
        """What a scrape of every second up to `now_ns` sees; called before anything of that instant happens."""
        while self._samples is not None and self._due_ns <= now_ns:
            self._samples.append(ServerState(self._due_ns, self._metrics.values()))
            self._due_ns += SAMPLE_EVERY_NS

    def run(self, step: Step, now_ns: int, end_ns: int) -> int:
        """When the step that begins now ends. What lies beyond `end_ns` is not counted any more."""
        done_ns = now_ns + step.duration_ns
        self.sample_until(min(done_ns, end_ns))
        if done_ns <= end_ns:
            finished = [(request, "length") for request, _, last in step.emissions if last]
            self._metrics.ended(step, done_ns, finished, planned_ns=done_ns)
        return done_ns


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
    shared_prefix_tokens: int = 0,
    samples: list[ServerState] | None = None,
) -> list[RequestRecord]:
    """Records of `concurrency` users, each sending its next request the moment the last one ends; in order of end.

    User u of c begins at `start_ns + ramp_ns · u / c`. Without a ramp, users of one length stay in lockstep for
    good, as real ones do. The load stops at `start_ns + duration_ns`; what is open then comes last, as
    `censored`, with the tokens it had got. All prompts begin with the same `shared_prefix_tokens`. `samples` gets what
    the server's /metrics would say, once a second from `start_ns`. ValueError for a load without users or tokens.
    """
    if concurrency < 1 or duration_ns < 1 or not 0 <= ramp_ns <= duration_ns:
        raise ValueError(
            "a closed loop needs at least one user, some time, and a ramp within it: "
            f"concurrency={concurrency}, duration_ns={duration_ns}, ramp_ns={ramp_ns}"
        )
    server = _Server(settings, samples, start_ns, shared_prefix_tokens)
    sent: dict[int, _Sent] = {}
    records: list[RequestRecord] = []
    next_id = 0

    def send(user: int, now_ns: int) -> None:
        nonlocal next_id
        request = Request(next_id, input_tokens, output_tokens)
        next_id += 1
        server.add(request, now_ns)
        sent[request.id] = _Sent(request, user, now_ns)

    beginnings_ns = deque((start_ns + ramp_ns * user // concurrency, user) for user in range(concurrency))
    now_ns, end_ns = start_ns, start_ns + duration_ns
    while True:
        while beginnings_ns and beginnings_ns[0][0] <= now_ns:
            begin_ns, user = beginnings_ns.popleft()
            send(user, begin_ns)
        step = server.step(now_ns)
        if step is None:
            now_ns = beginnings_ns[0][0]
            server.sample_until(now_ns)
            continue
        now_ns = server.run(step, now_ns, end_ns)
        if now_ns > end_ns:
            break
        for request, tokens, finished in step.emissions:
            sent[request.id].gets(now_ns, tokens, finished, settings.stream_interval)
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
    shared_prefix_tokens: int = 0,
    samples: list[ServerState] | None = None,
) -> list[RequestRecord]:
    """Records of requests that arrive at `start_ns` + each of `offsets_s` (ascending), in order of end.

    An arrival that finds `max_in_flight` requests in flight waits for the first of them to end. Arrivals stop at
    `start_ns + duration_ns`; what is open then comes last, as `censored`; what never had a place after it. The rest as
    in `closed_loop`.
    """
    server = _Server(settings, samples, start_ns, shared_prefix_tokens)
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
        server.add(request, at_ns)
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
        step = server.step(now_ns)
        if step is None:
            if coming_ns >= end_ns:
                server.sample_until(end_ns)
                break
            now_ns = coming_ns
            server.sample_until(now_ns)
            continue
        now_ns = server.run(step, now_ns, end_ns)
        if now_ns > end_ns:
            break
        for request, tokens, finished in step.emissions:
            sent[request.id].gets(now_ns, tokens, finished, settings.stream_interval)
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
        event_tokens=np.frombuffer(sent.event_tokens, np.int32) if sent.event_tokens else np.empty(0, np.int32),
        coalesced=np.zeros(arrivals_ns.size, np.bool_),
    )
