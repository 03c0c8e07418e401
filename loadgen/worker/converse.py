"""Holds a conversation: takes one, has its turns sent one after another, each when the answer before it is there.

Runs on the event loop, for users of both kinds of load. A conversation ends early when a turn fails, when its user is
asked to stop, and when the level that it belongs to is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from loadgen import record
from loadgen.record import RequestRecord
from loadgen.wire.answer_text import answer_text
from loadgen.wire.client import Client
from loadgen.wire.exchange import Exchange
from loadgen.workload.conversation import Conversation
from loadgen.workload.planned import PlannedRequest


class Holder(Protocol):
    """Whose conversation it is; `loadgen.worker.async_user.AsyncUser`."""

    number: int

    @property
    def stopping(self) -> bool:
        """Whether no further request is to be started."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Think time: ends early when the user is asked to stop."""
        ...


class Sender(Protocol):
    """Who sends; `loadgen.worker.generator.Generator`."""

    level: int
    client: Client
    holder: Holder | None

    def next_conversation(self) -> Conversation:
        """The next one of the level."""
        ...

    async def request(
        self,
        user: int,
        *,
        scheduled_ns: int | None = None,
        waited_ns: int | None = None,
        turn: PlannedRequest | None = None,
        heard: Callable[[Exchange, RequestRecord], object] | None = None,
    ) -> RequestRecord:
        """One request from its dispatch to its end."""
        ...


async def converse(
    sender: Sender,
    holder: Holder,
    conversation: Conversation,
    *,
    most_turns: int | None = None,
    scheduled_ns: int | None = None,
) -> RequestRecord:
    """Sends the turns, at most `most_turns`; gives the record of the last one. All go through one connection.

    Of an open loop: `scheduled_ns` is when the schedule wanted the first turn; a later one is due when its user has
    thought. Raises what `Generator.request` raises.
    """
    level = sender.level
    key = (level, conversation.session.number)
    due_ns, most = scheduled_ns, conversation.turns if most_turns is None else most_turns
    asked = 0

    def heard(exchange: Exchange, request: RequestRecord) -> None:
        if conversation.wants_answer and request.status == record.OK and asked + 1 < most:
            conversation.answered(answer_text(exchange), request.input_tokens, request.output_tokens)

    try:
        while True:
            request = await sender.request(
                holder.number,
                scheduled_ns=due_ns,
                waited_ns=None if due_ns is None else 0,
                turn=conversation.next(),
                heard=heard,
            )
            asked += 1
            if request.status != record.OK or conversation.over or asked >= most:
                return request
            due_ns = request.finished_ns + round(conversation.think_s * 1e9)
            while (early_ns := due_ns - time.monotonic_ns()) > 0 and not holder.stopping:  # a timer may be early
                await holder.sleep(early_ns / 1e9)
            if holder.stopping or sender.level != level:
                return request
            if scheduled_ns is None:
                due_ns = None
    finally:
        sender.client.let_go(key)


class ConversationSender:
    """What an open loop sends through where its arrivals are conversations; `loadgen.worker.open_loop.Sender`."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    async def request(
        self, user: int, *, scheduled_ns: int | None = None, waited_ns: int | None = None
    ) -> RequestRecord:
        """One conversation, from its first turn to its last."""
        holder = self._sender.holder
        assert holder is not None, "a schedule is followed by a user"
        return await converse(self._sender, holder, self._sender.next_conversation(), scheduled_ns=scheduled_ns)

    def leave_out(self) -> None:
        """A conversation that never begins keeps its number."""
        self._sender.next_conversation()

    def give_up_waiting(self, user: int, scheduled_ns: int, waited_ns: int) -> None:
        """Conversations never wait for a place."""
