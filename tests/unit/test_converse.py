"""A conversation is held turn by turn: each waits for the answer before it, and nothing is said after a failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from loadgen.record import OK, RequestRecord
from loadgen.wire.exchange import Exchange
from loadgen.wire.request import BodyTemplate
from loadgen.worker.converse import ConversationSender, converse
from loadgen.workload.conversation import Conversation, Session, Turn
from loadgen.workload.planned import PlannedRequest
from tests.level_records import request
from tests.sse_events import DONE, FIN, C

TEMPLATE = BodyTemplate(model="m", endpoint="chat", ignore_eos=True, continuous_usage=True)


def conversation(turns: int = 4, *, think_s: float = 0.01, made_up: bool = False) -> Conversation:
    said = tuple(
        Turn(b"the turn", 10, 3, b"the answer made" if made_up and turn < turns else None, think_s if turn > 1 else 0.0)
        for turn in range(1, turns + 1)
    )
    return Conversation(
        Session(0, 7, 0, None, 0, said),
        TEMPLATE,
        is_chat=True,
        first_k=7 << 10,
        counted=True,
        forced=True,
        streamed=True,
    )


class User:
    """Thinks for as long as it is told."""

    number = 3

    def __init__(self) -> None:
        self.stopping = False
        self.thought_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.thought_s.append(seconds)
        await asyncio.sleep(seconds)


class Server:
    """Answers every turn with `answer <its number>`; `then` is done after each."""

    def __init__(self, then: Callable[[Server, int], str] = lambda server, turn: OK) -> None:
        self.level = 0
        self.client: Any = self
        self.holder: Any = User()
        self.waiting = [conversation()]
        self.sent: list[PlannedRequest] = []
        self.scheduled_ns: list[int | None] = []
        self.ended_ns: list[int] = []
        self.released: list[tuple[int, int]] = []
        self._then = then

    def next_conversation(self) -> Conversation:
        return self.waiting.pop()

    def let_go(self, key: tuple[int, int]) -> None:
        self.released.append(key)

    async def request(
        self,
        user: int,
        *,
        scheduled_ns: int | None = None,
        waited_ns: int | None = None,
        turn: PlannedRequest | None = None,
        heard: Callable[[Exchange, RequestRecord], object] | None = None,
    ) -> RequestRecord:
        assert turn is not None and heard is not None and user == User.number
        assert (scheduled_ns is None) == (waited_ns is None)
        self.sent.append(turn)
        self.scheduled_ns.append(scheduled_ns)
        await asyncio.sleep(0)
        exchange = Exchange(0, turn.k, user, 0, "chat", 0, content_type="text/event-stream; charset=utf-8")
        self.ended_ns.append(time.monotonic_ns())
        exchange.add(C(f"answer {turn.turn}") + FIN("length") + DONE, self.ended_ns[-1])
        ended_ms = self.ended_ns[-1] / 1e6
        record = request(
            ended_ms, [ended_ms], status=self._then(self, len(self.sent)), input_tokens=20 * len(self.sent), n=3
        )
        heard(exchange, record)
        return record


def held(server: Server, talk: Conversation, **options: Any) -> RequestRecord:
    async def run() -> RequestRecord:
        return await asyncio.wait_for(converse(server, server.holder, talk, **options), 10)

    return asyncio.run(run())


def test_every_turn_carries_what_was_said_before_it() -> None:
    server = Server()
    held(server, conversation(4))
    assert [one.turn for one in server.sent] == [1, 2, 3, 4]
    last = server.sent[-1].body.decode()
    assert last.count('"role":"user"') == 4 and last.count('"role":"assistant"') == 3
    assert [last.index(f'"answer {turn}"') for turn in (1, 2, 3)] == sorted(
        last.index(f'"answer {turn}"') for turn in (1, 2, 3)
    )
    assert [one.prefix_tokens for one in server.sent] == [0, 23, 43, 63], "prompt and answer as the server counted them"
    assert server.released == [(0, 7)]


def test_made_up_answers_stand_where_the_server_spoke() -> None:
    server = Server()
    held(server, conversation(3, made_up=True))
    assert b"answer 1" not in server.sent[-1].body and server.sent[-1].body.count(b"the answer made") == 2
    assert [one.input_tokens for one in server.sent] == [10, 23, 36]


def test_the_user_thinks_between_turns_and_not_after_the_last() -> None:
    server = Server()
    held(server, conversation(3, think_s=0.02))
    gaps_s = [
        (sent_ns - ended_ns) / 1e9 for ended_ns, sent_ns in zip(server.ended_ns[:-1], server.ended_ns[1:], strict=True)
    ]
    assert all(gap_s >= 0.02 for gap_s in gaps_s)
    assert sum(server.holder.thought_s) < 0.1 and server.scheduled_ns == [None] * 3


@pytest.mark.parametrize("status", ["http_503", "short", "censored"])
def test_a_turn_that_fails_is_the_last(status: str) -> None:
    server = Server(lambda server, turn: status if turn == 2 else OK)
    assert held(server, conversation(4)).status == status
    assert len(server.sent) == 2 and server.released == [(0, 7)]


def test_a_conversation_ends_with_its_level_or_when_its_user_is_to_stop() -> None:
    def level_ends(server: Server, turn: int) -> str:
        server.level = int(turn == 2)
        return OK

    def stops(server: Server, turn: int) -> str:
        server.holder.stopping = turn == 3
        return OK

    for then, turns in ((level_ends, 2), (stops, 3)):
        server = Server(then)
        held(server, conversation(4))
        assert len(server.sent) == turns and server.released == [(0, 7)]


def test_a_first_conversation_may_be_cut_short() -> None:
    server = Server()
    held(server, conversation(4), most_turns=2)
    assert [one.turn for one in server.sent] == [1, 2]


def test_later_turns_of_an_open_loop_are_due_when_the_user_has_thought() -> None:
    server = Server()
    sender = ConversationSender(server)

    async def run() -> None:
        await asyncio.wait_for(sender.request(0, scheduled_ns=123, waited_ns=0), 10)

    asyncio.run(run())
    assert server.scheduled_ns[0] == 123
    for due_ns, ended_ns in zip(server.scheduled_ns[1:], server.ended_ns[:-1], strict=True):
        assert due_ns == pytest.approx(ended_ns + 10_000_000, abs=1000)


def test_a_cancelled_conversation_lets_its_connection_go() -> None:
    server = Server()

    async def run() -> None:
        task = asyncio.create_task(converse(server, server.holder, conversation(4, think_s=30)))
        while not server.holder.thought_s:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert server.released == [(0, 7)]
