"""The load of one worker: users ask it for requests, it sends them and keeps a record of each.

Everything in `Generator` runs on the event loop unless its docstring says otherwise; finished records are handed to the
hub, which writes them down. Levels are told apart by time: nothing acts at a window's boundaries.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import gc
import time
from collections.abc import Callable
from typing import cast

from locust.exception import StopUser

from loadgen import record
from loadgen.api_key import without_key
from loadgen.arrivals.schedule import Schedule
from loadgen.arrivals.think_time import ThinkTime
from loadgen.messages import Configure, Level, Window
from loadgen.open_table import OpenTable
from loadgen.record import RequestRecord, WorkerHealth
from loadgen.route import Route
from loadgen.wire.audited import AnswerLog
from loadgen.wire.client import Client, Limits
from loadgen.wire.decode import decode
from loadgen.wire.exchange import Endpoint, Exchange
from loadgen.wire.pool import Reuse
from loadgen.wire.wire_loop import WireLoop
from loadgen.worker.converse import ConversationSender, Holder
from loadgen.worker.health import HealthProbe
from loadgen.worker.hub_probe import HubProbe
from loadgen.worker.open_loop import OpenLoop
from loadgen.worker.prompt_queue import PromptQueue
from loadgen.workload.conversation import Conversation
from loadgen.workload.planned import PlannedRequest

_DRAIN_POLL_S = 0.02
_GIVEN_UP = (record.CENSORED, "still open at the end of the drain")


class Generator:
    """Sends requests of the current level. Made on the loop, once the worker is configured."""

    def __init__(self, plan: Configure, api_key: str | None, table: OpenTable, hub: HubProbe) -> None:
        self.plan = plan
        self._table = table
        self._api_key = api_key
        self._route = Route.from_dict(plan.route)
        endpoint = cast(Endpoint, plan.endpoint)
        self.answers = None if plan.audit_addresses is None else AnswerLog(plan.audit_addresses)
        """Of an audited run."""
        self.client = Client(
            plan.base_url,
            endpoint,
            limits=Limits(**plan.limits_ns),
            api_key=api_key,
            route=self._route,
            reuse=Reuse.from_dict(plan.reuse),
            answers=self.answers,
        )
        self.health = HealthProbe(cast(WireLoop, asyncio.get_running_loop()), hub)
        self.finished: collections.deque[tuple[RequestRecord, int | None]] = collections.deque()
        """Records that the hub has not taken yet, each with the slot in the table of open requests that it frees."""
        self.problem: OSError | None = None
        """Why requests can no longer be noted: no further one is sent."""
        self.level = -1
        self.ramp_ns = 0
        self.think_time: ThinkTime | None = None
        self.open_loop: OpenLoop | None = None
        """Of a level with a schedule: who follows it."""
        self.holder: Holder | None = None
        """Of an open loop: the user whose conversations they are."""
        self._prompts: PromptQueue[PlannedRequest] | None = None
        self._conversations: PromptQueue[Conversation] | None = None
        """In place of single requests."""
        self._endpoint = endpoint
        self._slots: dict[Exchange, int] = {}
        """Slot of every open request."""
        self._given_up: set[Exchange] = set()
        """Open requests that are recorded as censored already; their real end replaces that record."""

    def begin_level(
        self,
        plan: Level,
        prompts: PromptQueue[PlannedRequest] | None,
        conversations: PromptQueue[Conversation] | None = None,
    ) -> None:
        """Requests dispatched from here on belong to this level. An open loop's earlier level ends with its backlog."""
        if self.open_loop is not None:
            self.open_loop.end()
        self.level, self.ramp_ns = plan.level, plan.ramp_ns
        self._prompts, self._conversations = prompts, conversations
        self.think_time = None if plan.think_time is None else ThinkTime.from_dict(plan.think_time)
        self.open_loop = (
            None
            if plan.arrivals is None
            else OpenLoop(
                self if conversations is None else ConversationSender(self),
                Schedule.from_dict(plan.arrivals).share(plan.position, plan.of),
                start_ns=plan.start_ns,
                max_in_flight=plan.max_in_flight,
                drops=plan.drops,
            )
        )
        # A collection over retained stamps stalls the loop for tens of milliseconds: here, never inside a window.
        gc.collect()
        gc.freeze()

    @property
    def holds_conversations(self) -> bool:
        """Whether the level's requests are turns of conversations."""
        return self._conversations is not None

    def next_conversation(self) -> Conversation:
        """The next one of the level."""
        assert self._conversations is not None
        return self._conversations.take()

    async def request(
        self,
        user: int,
        *,
        scheduled_ns: int | None = None,
        waited_ns: int | None = None,
        make: Callable[[int], PlannedRequest] | None = None,
        turn: PlannedRequest | None = None,
        heard: Callable[[Exchange, RequestRecord], object] | None = None,
        ended: Callable[[RequestRecord], object] | None = None,
    ) -> RequestRecord:
        """One request from its dispatch to its end. Raises CancelledError, after the record was kept, and StopUser when
        it cannot be noted any more.

        Of an open loop: when the schedule wanted it, and how long it waited for a place among those in flight. `make`
        makes the request of its number, in place of the next one of the workload; `turn` is the request, of a
        conversation. `heard` is told what came of it, `ended` also of one that is cancelled."""
        plan, level = self.plan, self.level
        planned = turn
        if planned is None:
            assert self._prompts is not None, "a user was spawned before the first level began"
            planned = self._prompts.take() if make is None else make(self._prompts.skip())
        exchange = Exchange(
            level=level,
            index=planned.k,
            user=user,
            worker=plan.worker,
            endpoint=self._endpoint,
            dispatched_ns=time.monotonic_ns(),
            scheduled_ns=scheduled_ns,
            waited_ns=waited_ns,
            kind=planned.kind,
            session=planned.session,
            turn=planned.turn,
            prefix_tokens=planned.prefix_tokens,
            turn_input_tokens=planned.turn_input_tokens,
            input_tokens_requested=planned.input_tokens,
            output_tokens_requested=planned.output_tokens,
            output_forced=planned.output_forced,
            streamed=planned.streamed,
        )
        try:
            self._slots[exchange] = self._table.begin(level, planned.k, exchange.dispatched_ns, planned.kind)
        except OSError as error:
            self.problem = error
            raise StopUser from None
        try:
            await self.client.send(planned.body, exchange, f"{plan.nonce}-{level}-{planned.k}")
        finally:
            ends: list[int] | None = None if self.answers is None else []
            request = decode(exchange, ends=ends)
            if self.answers is not None and ends is not None:
                self.answers.finish(exchange, ends)
            if request.reason:
                reason = self._route.without_secrets(without_key(request.reason, self._api_key))
                request = dataclasses.replace(request, reason=reason)
            if exchange in self._given_up:
                # Its level is over and has it as censored; what came since is part of the next level's load.
                self._given_up.discard(exchange)
                request = dataclasses.replace(request, status=_GIVEN_UP[0], reason=_GIVEN_UP[1])
            self.finished.append((request, self._slots.pop(exchange)))
            if ended is not None:
                ended(request)
            if request.kernel_stamps:
                self.health.note_read_delay(exchange.read_delay_ns)
        if heard is not None:
            heard(exchange, request)
        return request

    async def measure(self, window: Window, done: Callable[[WorkerHealth], object]) -> None:
        """Brackets the window with the health probe, waits for the drain, gives up what is still open then."""
        await self.open_window(window.start_ns)
        await _sleep_until(window.end_ns)
        await self.close_window(window, done)

    async def open_window(self, start_ns: int) -> None:
        """Waits for the window's start; the figures of the worker's own health count from there."""
        await _sleep_until(start_ns)
        self.health.begin()

    async def close_window(self, window: Window, done: Callable[[WorkerHealth], object]) -> None:
        """What follows the window's end, now."""
        health = self.health.end(
            worker=self.plan.worker,
            level=window.level,
            clock_offset_ns=self.plan.clock_offset_ns,
            clock_error_ns=self.plan.clock_error_ns,
        )
        while self._unfinished(window.end_ns) and time.monotonic_ns() < window.drain_deadline_ns:
            await asyncio.sleep(_DRAIN_POLL_S)
        for exchange in self._open_since_before(window.end_ns):
            self._give_up(exchange)
        if self.open_loop is not None:
            self.open_loop.give_up_before(window.end_ns)
            dropped = self.open_loop.take_dropped(window.start_ns, window.end_ns)
            health = dataclasses.replace(health, dropped=dropped)
        done(health)

    def _unfinished(self, instant_ns: int) -> bool:
        """Whether a request that belongs before this instant is open, or waits for its turn."""
        if self.open_loop is not None and self.open_loop.waits_since_before(instant_ns):
            return True
        return bool(self._open_since_before(instant_ns))

    def _open_since_before(self, instant_ns: int) -> list[Exchange]:
        def belongs_before(exchange: Exchange) -> bool:
            begun_ns = exchange.dispatched_ns if exchange.scheduled_ns is None else exchange.scheduled_ns
            return begun_ns < instant_ns

        return [exchange for exchange in self._slots if belongs_before(exchange) and exchange not in self._given_up]

    def leave_out(self) -> None:
        """The next planned request is not sent; the one after it keeps its number."""
        prompts = self._prompts or self._conversations
        assert prompts is not None
        prompts.skip()

    def give_up_waiting(self, user: int, scheduled_ns: int, waited_ns: int) -> None:
        """Records the next planned request as one that had no place among those in flight until now."""
        prompts = self._prompts or self._conversations
        assert prompts is not None
        now_ns = time.monotonic_ns()
        request = RequestRecord(
            level=self.level,
            index=prompts.skip(),
            user=user,
            worker=self.plan.worker,
            status=record.CENSORED,
            reason="it had no place among the requests in flight",
            scheduled_ns=scheduled_ns,
            waited_ns=waited_ns,
            dispatched_ns=now_ns,
            finished_ns=now_ns,
        )
        self.finished.append((request, None))

    def _give_up(self, exchange: Exchange) -> None:
        """Records what has arrived so far; the request itself runs on, so the load stays unchanged."""
        exchange.note_wire()
        snapshot = exchange.snapshot(finished_ns=time.monotonic_ns(), failure=_GIVEN_UP)
        self._given_up.add(exchange)
        self.finished.append((decode(snapshot), None))

    def events_in_flight(self) -> int:
        """Events of open requests that surely carried a token: the last three may be finish, usage and [DONE]."""
        # A copy, since the hub asks while the loop goes on.
        return sum(max(0, exchange.events - 3) for exchange in list(self._slots))

    def begun_and_not_taken(self) -> int:
        """Requests that are open, or have ended and the hub does not have their records yet."""
        return len(self._slots) + sum(slot is not None for _, slot in list(self.finished))

    async def close(self) -> None:
        """Ends the probe and the connections; the users must have been stopped before."""
        self.health.stop()
        await self.client.close()


async def _sleep_until(instant_ns: int) -> None:
    while (remaining_ns := instant_ns - time.monotonic_ns()) > 0:
        await asyncio.sleep(remaining_ns / 1e9)


_generator: Generator | None = None


def use(generator: Generator | None) -> None:
    """Makes `generator` the one that this process's users send through."""
    global _generator
    _generator = generator


def current() -> Generator:
    """The process's generator. Raises RuntimeError before the worker has been configured."""
    if _generator is None:
        raise RuntimeError("the worker has not been configured by a controller")
    return _generator
