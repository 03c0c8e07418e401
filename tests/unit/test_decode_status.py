"""How a request ended: one status of the closed list, and why."""

import json

import pytest

from loadgen.record import RequestRecord, is_status
from loadgen.wire.decode import decode
from tests.sse_events import DONE, END, FIN, ROLE, C, Script, U, choice, chunk, event, exchange, refused, usage

RESET = {"failure": ("transport", "the connection was reset"), "body_complete": False}
ERROR = event({"error": {"message": "engine died", "type": "InternalServerError", "param": None, "code": 500}})


def of(*events: bytes, **fields: object) -> RequestRecord:
    """The record of a stream with one read for every event, 10 ms apart."""
    script: Script = [(100 + 10 * k, data) for k, data in enumerate(events)]
    record = decode(exchange(script, **fields))
    assert is_status(record.status)
    assert bool(record.reason) == (record.status != "ok")
    return record


def ended(*events: bytes, **fields: object) -> str:
    return of(*events, **fields).status


# --- how the body ends


def test_done_may_be_missing_after_a_finish_reason() -> None:
    assert ended(C("a"), FIN("stop"), U(9, 1)) == "ok"
    assert ended(C("a"), FIN("stop")) == "ok"


def test_a_finish_reason_may_be_missing_before_done() -> None:
    assert ended(C("a"), U(9, 1), DONE) == "ok"


def test_a_clean_end_with_neither_is_truncated() -> None:
    assert ended(C("a"), U(9, 1)) == "truncated"
    assert ended(ROLE) == "truncated"
    assert ended() == "truncated"


def test_a_body_cut_off_after_the_finish_reason_is_truncated() -> None:
    assert ended(C("a"), FIN("stop"), U(9, 1), body_complete=False) == "truncated"


def test_after_done_a_broken_connection_spoils_nothing() -> None:
    assert ended(C("a"), END(1), body_complete=False) == "ok"
    assert ended(C("a"), END(1), **RESET) == "ok"
    for failure in ("timeout_total", "cancelled", "censored", "protocol"):
        assert ended(C("a"), END(1), body_complete=False, failure=(failure, "x")) == "ok"


def test_after_done_the_stream_is_still_judged() -> None:
    assert ended(ROLE, DONE, **RESET) == "empty"
    assert ended(C("a"), ERROR, DONE, **RESET) == "stream_error"


def test_before_done_a_broken_connection_is_what_happened() -> None:
    assert ended(C("a"), FIN("stop"), U(9, 1), **RESET) == "transport"
    record = of(C("a"), C("b"), failure=("timeout_between_tokens", "silent for 2 s"), body_complete=False)
    assert (record.status, record.reason, len(record.arrivals_ns)) == ("timeout_between_tokens", "silent for 2 s", 2)


def test_the_last_blank_line_may_be_missing_at_a_clean_end() -> None:
    for missing in (1, 2):
        assert ended(C("a"), FIN("stop"), DONE[:-missing]) == "ok"
        assert ended(C("a"), FIN("stop")[:-missing]) == "ok"
        record = of(FIN("stop"), C("a")[:-missing])
        assert (len(record.arrivals_ns), record.status) == (1, "ok")
        assert ended(C("a"), ERROR[:-missing]) == "stream_error"


def test_an_unfinished_event_does_not_count_when_the_connection_broke() -> None:
    assert ended(C("a"), FIN("stop"), DONE[:-1], **RESET) == "transport"
    assert len(of(C("a"), C("b")[:-1], **RESET).arrivals_ns) == 1
    assert ended(C("a"), C("b")[:-9], body_complete=False) == "truncated"


def test_a_body_that_ends_inside_an_event_is_truncated_not_broken_json() -> None:
    for cut in range(3, len(C("b"))):
        assert ended(C("a"), C("b")[:-cut]) == "truncated"
    assert ended(C("a"), FIN("stop"), U(9, 1)[:-5]) == "truncated"


# --- what the events say

ERRORS = [
    (ERROR, "500 InternalServerError: engine died"),
    (event({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}), "rate_limit_exceeded: slow down"),
    (event({"error": "engine died"}), "engine died"),
    (event({"error": "engine died", "code": 503}), "503: engine died"),
    (event({"error": {"code": 500}}), "500"),
    (event({"error": ["engine died"]}), "engine died"),
    (event({"error": True}), "an error event without a message"),
    (event({"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}), "400 BadRequestError: bad"),
    (event({"object": "error"}), "an error event without a message"),
    (b"event: error\n" + ERROR, "500 InternalServerError: engine died"),
    (b"event: error\ndata: engine died\n\n", "engine died"),
    (b'event: error\ndata: "engine died"\n\n', "engine died"),
    (b'event: error\ndata: {"message": "engine died", "code": 7}\n\n', "7: engine died"),
    (b"event: error\ndata:\n\n", "an error event without a message"),
    (chunk(choice({"content": ""}, "error"), error={"message": "gone", "code": 502}), "502: gone"),
    (event({"type": "error", "code": "400", "message": "no", "sequence_number": 5}), "400: no"),
    (event({"error": "too long", "error_type": "validation"}), "validation: too long"),
    (event({"text": "**NETWORK ERROR**", "error_code": 50001}), "50001: **NETWORK ERROR**"),
    (event({"detail": "engine died"}), "engine died"),
    (event({"code": 503, "message": "no worker"}), "503: no worker"),
    (event({"error": {}}), "an error event without a message"),
    (chunk(choice({"content": ""}, error={"code": 502, "message": "gone"})), "502: gone"),
    (b"event: error\n: engine died\n\n", "engine died"),
    (b'error: {"code": 400, "message": "too long"}\n\n', "400: too long"),
    (b"data: error: engine died\n\n", "engine died"),
    (b"data: [ERROR] engine died\n\n", "engine died"),
    (b'{"error": {"message": "engine died"}}\n\n', "engine died"),
    (b'data: {"choices": [{"del\ndata: {"error": "engine died"}\n\n', "engine died"),
    (b'data: {"choices": [{"del\n{"error": "engine died"}\n\n', "engine died"),
    (chunk(choice({}, "ABORT")), "the server gave the request up: finish reason ABORT"),
    (
        chunk(choice({}, "insufficient_system_resource")),
        "the server gave the request up: finish reason insufficient_system_resource",
    ),
    (chunk(choice({}, "error")), "the server gave the request up: finish reason error"),
    (chunk(choice({}, "abort")), "the server gave the request up: finish reason abort"),
]


@pytest.mark.parametrize(("error", "reason"), ERRORS)
def test_an_error_event_in_any_shape_is_a_stream_error(error: bytes, reason: str) -> None:
    for stream in ((C("a"), error, DONE), (C("a"), error), (error, DONE), (error,), (C("a"), FIN("stop"), error)):
        record = of(*stream)
        assert (record.status, record.reason) == ("stream_error", reason)


def test_tokens_after_an_error_event_are_still_arrivals() -> None:
    assert len(of(C("a"), ERROR, C("b"), END(2)).arrivals_ns) == 2


def test_the_first_error_is_the_reason() -> None:
    assert of(C("a"), event({"error": "first"}), event({"error": "second"}), DONE).reason == "first"


def test_an_error_is_a_stream_error_whatever_the_connection_does_then() -> None:
    assert ended(C("a"), ERROR, body_complete=False) == "stream_error"
    assert ended(C("a"), ERROR, **RESET) == "stream_error"
    record = of(C("a"), ERROR, failure=("timeout_between_tokens", "silent for 2 s"), body_complete=False)
    assert (record.status, record.reason) == ("stream_error", "500 InternalServerError: engine died")
    assert ended(ERROR, http_status=503, **RESET) == "http_503"


@pytest.mark.parametrize(
    "broken",
    [
        b"data: {\n\n",
        b"data: [1]\n\n",
        b"data: null\n\n",
        b'data: "x"\n\n',
        b"data: \xff\n\n",
        b"data: NaN\n\n",
        b"data: 5\n\n",
    ],
)
def test_an_event_that_is_no_json_object_breaks_the_protocol(broken: bytes) -> None:
    record = of(C("a"), broken, C("b"), END(2))
    assert (record.status, len(record.arrivals_ns)) == ("protocol", 2)
    assert record.reason.startswith("an event is not a JSON object: ")
    assert ended(C("a"), broken, ERROR, DONE) == "stream_error"
    assert ended(C("a"), broken) == "protocol"
    assert ended(C("a"), broken, **RESET) == "transport"


def test_a_stream_without_a_token_is_empty() -> None:
    assert ended(ROLE, FIN("stop"), U(9, 0), DONE) == "empty"
    assert ended(ROLE, FIN("stop")) == "empty"
    record = of(ROLE, FIN("stop"), U(9, 0), DONE)
    assert (record.output_tokens, record.output_tokens_source) == (0, "usage")


# --- short


def test_fewer_tokens_than_forced_is_short() -> None:
    forced = {"output_forced": True, "output_tokens_requested": 2}
    assert ended(C("a"), END(1), **forced) == "short"
    assert ended(C("a"), C("b"), END(2), **forced) == "ok"
    assert ended(C("a"), C("b"), END(3), **forced) == "ok"
    assert ended(C("a"), END(1), output_tokens_requested=2) == "ok"
    assert ended(C("a"), END(1), output_forced=True) == "ok"


def test_only_the_servers_own_count_makes_a_request_short() -> None:
    forced = exchange([(100, C("ab") + FIN("length") + DONE)], output_forced=True, output_tokens_requested=2)
    assert decode(forced, count_tokens=lambda _: 1).status == "ok"
    assert decode(forced).status == "ok"


# --- answers that are no stream


def test_another_code_than_200_is_that_code_with_the_servers_message() -> None:
    record = decode(refused(503, "overloaded"))
    assert (record.status, record.reason, len(record.arrivals_ns)) == ("http_503", "overloaded", 0)
    assert record.http_status == 503


def test_the_code_stands_whatever_became_of_the_body() -> None:
    assert decode(refused(503, "overloaded", **RESET)).status == "http_503"
    assert decode(refused(500, "x", failure=("timeout_total", "x"), body_complete=False)).status == "http_500"
    assert decode(refused(500, "x", failure=("censored", "x"), body_complete=False)).status == "censored"


def test_tokens_of_an_answer_that_is_not_200_do_not_count() -> None:
    record = of(C("a"), END(1), http_status=500)
    assert (record.status, len(record.arrivals_ns), record.output_tokens) == ("http_500", 0, None)


@pytest.mark.parametrize("content_type", ["application/json", "text/html; charset=utf-8", "application/x-ndjson", ""])
def test_200_with_another_content_type_is_not_a_stream(content_type: str) -> None:
    record = of(C("a"), END(1), content_type=content_type)
    assert (record.status, len(record.arrivals_ns)) == ("not_a_stream", 0)
    assert (content_type.partition(";")[0] or "missing") in record.reason


def test_a_whole_answer_instead_of_a_stream_is_not_a_stream() -> None:
    body = {"object": "chat.completion", "choices": [{"message": {"content": "hi"}}], "usage": usage(1, 1)}
    record = decode(exchange([(100, json.dumps(body).encode())], content_type="application/json"))
    assert record.reason == "the content type is application/json, not text/event-stream"
    record = decode(exchange([(100, b'{"error":{"message":"no such model"}}')], content_type="application/json"))
    assert record.reason == "the content type is application/json, not text/event-stream: no such model"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html><title>502 Bad Gateway</title></html>", "the body holds no event: 502 Bad Gateway"),
        (b"Internal Server Error", "the body holds no event: Internal Server Error"),
        (C("a")[6:] + FIN("stop")[6:], None),  # JSON lines
        (json.dumps({"object": "chat.completion", "choices": []}).encode(), "the body holds no event"),
    ],
)
def test_an_event_stream_by_its_content_type_only_is_not_a_stream(body: bytes, reason: str | None) -> None:
    record = of(body)
    assert record.status == "not_a_stream"
    assert record.reason == reason or reason is None
    assert ended(body, body_complete=False) == "truncated"
    assert ended(body, **RESET) == "transport"


def test_a_content_type_of_any_bytes_can_be_written_down() -> None:
    # aiohttp gives bytes that are no UTF-8 as surrogates, which no JSON can hold.
    record = of(C("a"), END(1), content_type="text/\udcff\x1b[31m")
    assert record.reason.startswith("the content type is text/\ufffd\ufffd[31m, not text/event-stream")
    record = of(failure=("protocol", "compressed (\udcff)"), http_status=None, content_type="", body_complete=False)
    assert record.reason == "compressed (\ufffd)"


@pytest.mark.parametrize(
    "content_type", ["text/event-stream", "Text/Event-Stream;charset=UTF-8", "text/event-stream ;x"]
)
def test_parameters_and_case_of_the_content_type_do_not_matter(content_type: str) -> None:
    assert ended(C("a"), END(1), content_type=content_type) == "ok"


def test_no_answer_at_all_is_the_failure_that_the_client_saw() -> None:
    nothing = {"http_status": None, "content_type": "", "body_complete": False}
    for failure in (("connect", "refused"), ("timeout_connect", "after 5 s"), ("cancelled", "the run stopped")):
        record = of(failure=failure, **nothing)
        assert (record.status, record.reason, record.http_status) == (*failure, None)
    assert of(failure=("connect", ""), **nothing).reason == "connect"
    assert ended(**nothing) == "transport"


def test_we_end_a_request_ourselves_before_anything_else_is_said() -> None:
    record = of(C("a"), ERROR, failure=("censored", "the drain was over"), body_complete=False)
    assert (record.status, record.reason, len(record.arrivals_ns)) == ("censored", "the drain was over", 1)
