"""Answers that were asked for whole: one arrival with all tokens, no first token, and a status for whatever comes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.record import RequestRecord, is_status
from loadgen.wire.decode import decode
from loadgen.wire.request import BodyTemplate
from tests.sse_events import DONE, NORMAL, SENT_NS, C, Script, exchange

MS = 1_000_000
RESET = {"failure": ("transport", "the connection was reset"), "body_complete": False}


def answer(message: Any = None, *, n: int | None = 12, finish: str | None = "length", **more: Any) -> bytes:
    """The body of a whole chat answer; `n`: its output tokens, None for no usage."""
    message = {"role": "assistant", "content": "a b c"} if message is None else message
    body: dict[str, Any] = {
        "id": "c",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }
    if n is not None:
        body["usage"] = {"prompt_tokens": 9, "completion_tokens": n, "total_tokens": 9 + n}
    return json.dumps(body | more).encode()


def of(*bodies: bytes, **fields: Any) -> RequestRecord:
    """The record of an answer whose body came in these reads, 10 ms apart from 100 ms on."""
    script: Script = [(100 + 10 * k, data) for k, data in enumerate(bodies)]
    seen = {"streamed": False, "content_type": "application/json"} | fields
    record = decode(exchange(script, **seen))
    assert is_status(record.status)
    assert bool(record.reason) == (record.status != "ok")
    assert record.first_token_ns is None and record.first_visible_ns is None
    assert not record.streamed
    return record


def test_all_tokens_are_credited_to_the_arrival_of_the_last_byte() -> None:
    body = answer()
    record = of(body[:20], body[20:90], body[90:])
    assert record.status == "ok"
    assert record.last_token_ns == SENT_NS + 120 * MS
    assert record.arrivals_ns.tolist() == [SENT_NS + 120 * MS]
    assert record.event_tokens is not None and record.event_tokens.tolist() == [12]
    assert (record.output_tokens, record.output_tokens_source, record.input_tokens) == (12, "usage", 9)
    assert record.finish_reason == "length"


def test_an_empty_read_behind_the_body_moves_nothing() -> None:
    assert of(answer(), b"").last_token_ns == SENT_NS + 100 * MS


@pytest.mark.parametrize(
    "message",
    [
        {"content": "a"},
        {"content": None, "reasoning_content": "hm"},
        {"content": None, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"content": None, "refusal": "no"},
    ],
)
def test_tokens_of_every_channel_count(message: dict[str, Any]) -> None:
    record = of(answer(message))
    assert (record.status, record.output_tokens) == ("ok", 12)


def test_a_completion_has_its_text_beside_no_message() -> None:
    body = {"choices": [{"index": 0, "text": "a b", "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}
    assert of(json.dumps(body).encode()).output_tokens == 2


def test_without_usage_there_is_no_count_and_none_is_made_up() -> None:
    record = of(answer(n=None))
    assert (record.status, record.output_tokens, record.output_tokens_source) == ("ok", None, None)
    assert record.event_tokens is None


def test_tokens_that_made_no_text_are_tokens() -> None:
    assert of(answer({"content": ""}, n=3)).status == "ok"


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"", "protocol", "not a JSON object"),
        (b"<html>gateway</html>", "protocol", "gateway"),
        (b"[]", "protocol", "not a JSON object"),
        (b"null", "protocol", "not a JSON object"),
        (b'{"object": "chat.completion"}', "protocol", "no choices"),
        (answer({"content": ""}, n=0), "empty", "no token"),
        (answer({"content": None}, n=None), "empty", "no token"),
        (b'{"choices": [], "usage": {"completion_tokens": 0}}', "empty", "no token"),
        (b'{"error": {"message": "engine died", "code": 500}}', "stream_error", "engine died"),
        (b'{"object": "error", "message": "engine died", "code": 500}', "stream_error", "engine died"),
        (answer(finish="abort"), "stream_error", "abort"),
    ],
)
def test_what_is_no_answer_has_a_status_and_a_reason(body: bytes, status: str, word: str) -> None:
    record = of(body)
    assert record.status == status
    assert word in record.reason


def test_a_stream_that_nobody_asked_for_is_not_an_answer() -> None:
    stream = b"".join(data for _, data in NORMAL(3, 20, 5))
    record = of(stream, content_type="text/event-stream")
    assert (record.status, record.reason) == ("protocol", "a stream came although none was asked for")
    assert of(C("a") + DONE).status == "protocol"


def test_a_whole_answer_where_a_stream_was_asked_for_is_still_no_stream() -> None:
    record = decode(exchange([(100, answer())], content_type="application/json"))
    assert record.status == "not_a_stream" and record.streamed


def test_a_body_that_was_cut_off_is_truncated_and_one_that_was_reset_says_so() -> None:
    assert of(answer()[:-9], body_complete=False).status == "truncated"
    record = of(answer()[:-9], **RESET)
    assert record.status == "transport"
    assert record.last_token_ns is None


def test_what_happens_after_the_whole_answer_spoils_nothing() -> None:
    assert of(answer(), **RESET).status == "ok"


def test_an_http_error_keeps_its_code() -> None:
    record = of(b'{"error": {"message": "busy"}}', http_status=503)
    assert (record.status, record.reason) == ("http_503", "busy")


def test_fewer_tokens_than_were_forced_are_short() -> None:
    assert of(answer(n=7), output_forced=True, output_tokens_requested=12).status == "short"
    assert of(answer(n=12), output_forced=True, output_tokens_requested=12).status == "ok"


def test_usage_of_several_choices_is_their_sum() -> None:
    choices = [{"index": k, "message": {"content": "a"}, "finish_reason": "stop"} for k in range(2)]
    record = of(json.dumps({"choices": choices, "usage": {"completion_tokens": 8}}).encode())
    assert (record.output_tokens, record.finish_reason) == (8, "stop")


def test_no_body_whatever_raises() -> None:
    for body in (b"{", b"\xff", b'{"choices": 5}', b'{"choices": [5]}', b'{"choices": [{"message": 5}]}', b"[" * 9999):
        assert of(body).status in ("protocol", "empty")


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_body_that_asks_for_no_stream_has_no_options_of_one(endpoint: Any) -> None:
    template = BodyTemplate(model="m", endpoint=endpoint, ignore_eos=True, continuous_usage=True, stream=False)
    body = json.loads(template.body("words", 5))
    assert body["stream"] is False and "stream_options" not in body
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (5, 5, True)
