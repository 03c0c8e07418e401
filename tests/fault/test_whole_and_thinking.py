"""Answers that come whole, and models that think before they speak, through the real client from a server of known instants."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen import record
from loadgen.record import RequestRecord
from loadgen.route import Route
from loadgen.wire.client import Client, Limits
from tests.measuring import ask, measure
from tests.scripted_server import Answer, ScriptedServer, Write
from tests.sse_events import DONE, FIN, ROLE, C, U, choice, chunk

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = pytest.mark.alone

MS = 1_000_000
LATE = 25 * MS


def thought(text: str, key: str = "reasoning") -> bytes:
    return chunk(choices=[choice({key: text})])


def call(arguments: str, name: str | None = None) -> bytes:
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    return chunk(choices=[choice({"tool_calls": [{"index": 0, "function": function}]})])


def one(
    answer: Answer, limits: Limits | None = None, *, streamed: bool = True, **options: Any
) -> tuple[RequestRecord, Any]:
    """(the record, the request as the server read it)."""

    async def script(client: Client) -> list[RequestRecord]:
        return [await ask(client, streamed=streamed)]

    with ScriptedServer(answer) as server:
        (found,) = measure(server.url, script, limits, **options)
    return found, server.requests[0]


def whole(*writes: Write, **options: Any) -> Answer:
    return Answer(list(writes), content_type="application/json", **options)


BODY = json.dumps(
    {
        "choices": [{"index": 0, "message": {"content": "a b c"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3},
    }
).encode()


def test_a_whole_answer_arrives_with_its_last_byte_and_has_no_first_token() -> None:
    found, request = one(whole((40, BODY[:30]), (90, BODY[30:])), streamed=False)
    assert (found.status, found.output_tokens) == (record.OK, 3)
    assert found.first_token_ns is None and found.first_visible_ns is None
    assert found.sent_ns is not None and found.last_token_ns is not None
    assert 0 <= found.last_token_ns - request.writes_ns[1] < LATE
    assert request.headers["accept"] == "application/json"


def test_a_whole_answer_may_take_longer_than_a_first_token() -> None:
    limits = Limits(first_token_ns=60 * MS, between_tokens_ns=60 * MS, total_ns=5_000 * MS)
    found, _ = one(whole((10, BODY[:9]), (250, BODY[9:])), limits, streamed=False)
    assert found.status == record.OK


@pytest.mark.parametrize(
    ("answer", "limits", "status"),
    [
        (whole(headers_at_ms=60_000), Limits(first_byte_ns=100 * MS), record.TIMEOUT_FIRST_BYTE),
        (whole((1, BODY[:9]), end="hold"), Limits(total_ns=150 * MS), record.TIMEOUT_TOTAL),
        (whole((1, BODY[:9]), end="close"), Limits(), record.TRUNCATED),
        (whole((1, BODY[:9]), (5, b"x"), end="reset"), Limits(), record.TRANSPORT),
        (whole((1, BODY[:9])), Limits(), record.PROTOCOL),
        (Answer([(1, C("a") + DONE)]), Limits(), record.PROTOCOL),
        (whole((1, b'{"error": "engine died"}')), Limits(), record.STREAM_ERROR),
    ],
    ids=["no byte", "hangs", "closed", "reset", "no JSON", "a stream", "an error"],
)
def test_a_whole_answer_that_fails_is_one_record(answer: Answer, limits: Limits, status: str) -> None:
    found, _ = one(answer, limits, streamed=False)
    assert found.status == status and found.reason
    assert found.last_token_ns is None and not found.arrivals_ns.size


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_a_thought_is_the_first_token_and_the_answer_the_first_output(key: str) -> None:
    script: list[Write] = [
        (10, ROLE),
        (50, thought("hm", key)),
        (90, thought("so", key)),
        (200, C("yes")),
        (220, C("!")),
    ]
    found, request = one(Answer([*script, (221, FIN("stop") + U(9, 4) + DONE)]))
    assert (found.status, found.output_tokens, len(found.arrivals_ns)) == (record.OK, 4, 4)
    assert found.first_token_ns is not None and found.first_visible_ns is not None
    assert 0 <= found.first_token_ns - request.writes_ns[1] < LATE
    assert 0 <= found.first_visible_ns - request.writes_ns[3] < LATE


def test_a_model_that_only_thought_has_a_first_token_and_no_first_output() -> None:
    found, _ = one(Answer([(10, ROLE), (50, thought("hm")), (60, FIN("length") + U(9, 1) + DONE)]))
    assert found.status == record.OK
    assert found.first_token_ns is not None and found.first_visible_ns is None


def test_the_call_of_a_tool_is_visible_output_from_its_name_on() -> None:
    script: list[Write] = [
        (10, ROLE),
        (40, thought("hm")),
        (90, call("", "weather")),
        (120, call('{"a"')),
        (130, call(": 1}")),
    ]
    found, request = one(Answer([*script, (131, FIN("tool_calls") + U(9, 4) + DONE)]))
    assert (found.status, len(found.arrivals_ns), found.finish_reason) == (record.OK, 4, "tool_calls")
    assert found.first_visible_ns is not None
    assert 0 <= found.first_visible_ns - request.writes_ns[2] < LATE


def test_every_request_carries_the_headers_of_the_scenario_over_those_of_the_program() -> None:
    headers = {"X-Tenant": "blue", "user-agent": "mine/1", "Authorization": "Bearer own"}
    route = Route.of(insecure=False, ca_file=None, proxy=None, headers=headers)
    _, request = one(whole((1, BODY)), streamed=False, route=route, api_key="key-of-the-environment")
    assert request.headers["x-tenant"] == "blue"
    assert (request.headers["user-agent"], request.headers["authorization"]) == ("mine/1", "Bearer own")
