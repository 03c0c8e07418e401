"""A conversation keeps its connection while it lives: nobody else is given it, and it is given back when it is over."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.record import OK, RequestRecord
from loadgen.route import Route
from loadgen.wire.client import Client
from loadgen.wire.pool import Reuse
from tests.certificates import root_pem, server_context
from tests.measuring import ask, measure
from tests.scripted_server import Answer, Request, ScriptedServer
from tests.sse_events import NORMAL

TLS = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
ANSWER = NORMAL(2, 1, 1)


def came_through(steps: list[Any], server: ScriptedServer, **options: Any) -> list[int]:
    """The connection of each request. A step is the session of a request (None stands alone), or what ends one."""

    async def script(client: Client) -> list[RequestRecord]:
        found = []
        for index, step in enumerate(steps):
            if isinstance(step, tuple):
                client.let_go(step)
            else:
                found.append(await ask(client, index, session=step))
        return found

    records = measure(server.url, script, route=Route(ca_pem=root_pem()), **options)
    assert [record.status for record in records] == [OK] * len(records), [record.reason for record in records]
    return [request.connection for request in server.requests]


@TLS
def test_each_conversation_goes_through_one_connection_of_its_own(tls: bool) -> None:
    with ScriptedServer(ANSWER, tls=server_context() if tls else None) as server:
        used = came_through([1, 2, 3, 2, 3, 1, 1, 3, 2], server)
    assert used == [1, 2, 3, 2, 3, 1, 1, 3, 2]


def test_requests_that_stand_alone_take_what_no_conversation_keeps() -> None:
    with ScriptedServer(ANSWER) as server:
        used = came_through([1, None, None, 1, None], server)
    assert used == [1, 2, 2, 1, 2]


def test_the_connection_of_a_conversation_that_is_over_serves_others() -> None:
    with ScriptedServer(ANSWER) as server:
        used = came_through([1, 2, (0, 1), None, None, 2, (0, 2), 3, 3], server)
    assert used[:5] == [1, 2, 1, 1, 2] and server.connections == 2 and used[5] == used[6]


def test_a_conversation_whose_connection_was_closed_goes_on_through_a_new_one() -> None:
    def answer(k: int, request: Request) -> Answer:
        return Answer(ANSWER, end="clean", headers={"Connection": "close"} if k == 1 else {})

    with ScriptedServer(answer) as server:
        used = came_through([1, 1, 1, 1], server)
    assert used == [1, 1, 2, 2]


def test_where_connections_are_few_none_is_kept() -> None:
    with ScriptedServer(ANSWER) as server:
        used = came_through([1, 2, None, 1], server, reuse=Reuse(max_connections=1))
    assert used == [1] * 4


def test_where_each_request_has_its_own_none_is_kept() -> None:
    with ScriptedServer(ANSWER) as server:
        used = came_through([1, 1, (0, 1), 1], server, reuse=Reuse(per_request=True))
    assert used == [1, 2, 3]
