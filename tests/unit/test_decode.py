"""What a record says of tokens and times, for kinds of streams beyond the public cases."""

import numpy as np
import pytest

from loadgen.record import RequestRecord
from loadgen.wire.decode import decode
from tests.sse_events import (
    CU,
    DONE,
    END,
    FIN,
    NORMAL,
    RC,
    ROLE,
    SENT_NS,
    TEXT,
    C,
    R,
    Script,
    U,
    choice,
    chunk,
    event,
    exchange,
    usage,
)


def arrivals_ms(record: RequestRecord) -> list[float]:
    return ((record.arrivals_ns - SENT_NS) / 1e6).tolist()


def of(*script: tuple[float, bytes], **fields: object) -> RequestRecord:
    return decode(exchange(list(script), **fields))


def call(name: str | None = None, arguments: str | None = None) -> bytes:
    return chunk(choice({"tool_calls": [{"index": 0, "function": {"name": name, "arguments": arguments}}]}))


# --- channels


def test_tool_calls_alone_are_visible_tokens() -> None:
    body = [
        (50, ROLE),
        (100, call("weather")),
        (120, call(None, "")),
        (140, call(None, '{"at":')),
        (160, call(None, "1}")),
    ]
    record = of(*body, (180, FIN("tool_calls") + U(9, 7) + DONE))
    assert arrivals_ms(record) == [100, 140, 160]
    assert record.first_visible_ns == record.first_token_ns
    assert (record.status, record.output_tokens, record.finish_reason) == ("ok", 7, "tool_calls")


def test_reasoning_alone_has_a_first_token_but_nothing_visible() -> None:
    record = of((100, R("a")), (150, RC("b")), (200, FIN("length") + U(9, 2) + DONE))
    assert arrivals_ms(record) == [100, 150]
    assert record.first_visible_ns is None
    assert record.status == "ok"


def test_white_space_is_a_token() -> None:
    assert arrivals_ms(of((100, C(" ")), (150, C("\n")), (200, C("") + END(2)))) == [100, 150]


def test_completions_text_is_a_token_and_its_empty_last_event_is_not() -> None:
    record = of((100, TEXT("a")), (150, TEXT("b")), (200, TEXT("", "length") + U(9, 2) + DONE), endpoint="completions")
    assert arrivals_ms(record) == [100, 150]
    assert (record.status, record.finish_reason) == ("ok", "length")


def test_a_finish_reason_beside_content_leaves_it_a_token() -> None:
    record = of((100, C("a")), (150, chunk(choice({"content": "b"}, "stop"))), (150, U(9, 2) + DONE))
    assert arrivals_ms(record) == [100, 150]


def test_two_choices_interleaved_share_the_arrivals() -> None:
    def one(index: int, text: str) -> bytes:
        return chunk(choice({"content": text}, index=index))

    def fin(index: int) -> bytes:
        return chunk(choice({}, "stop", index=index))

    texts: list[str] = []
    tokens = [(100, one(0, "a")), (110, one(1, "x")), (120, one(0, "b")), (130, one(1, "y"))]
    record = of(*tokens, (140, fin(0) + fin(1) + U(9, 4) + DONE))
    assert (arrivals_ms(record), record.output_tokens, record.status) == ([100, 110, 120, 130], 4, "ok")

    decode(exchange([*tokens, (140, fin(0) + fin(1))]), count_tokens=lambda text: texts.append(text) or 1)
    assert texts == ["ab", "xy"]
    assert of(*tokens, (140, fin(0))).status == "truncated"


def test_choices_that_are_counted_apart_give_no_counts_an_event_and_no_wrong_total() -> None:
    def one(index: int, count: int) -> bytes:
        return chunk(choice({"content": "x"}, index=index), usage=usage(9, count))

    tokens = [(100, one(0, 1)), (110, one(1, 1)), (120, one(0, 2)), (130, one(1, 2))]
    record = of(*tokens, (140, U(9, 4) + DONE))
    assert (record.output_tokens, record.event_tokens) == (4, None)
    assert of(*tokens, (140, DONE)).output_tokens is None
    # 1, 2 and 2 tokens, though the counts could be read as 1, 1 and 3.
    seeming = [(100, one(0, 1)), (110, one(1, 2)), (120, one(0, 3))]
    assert of(*seeming, (140, U(9, 5) + DONE)).event_tokens is None


# --- counts


def test_usage_in_the_finish_event_only() -> None:
    record = of((100, C("a")), (150, C("b")), (200, FIN("stop", usage=usage(5, 2)) + DONE))
    assert (record.input_tokens, record.output_tokens, record.output_tokens_source) == (5, 2, "usage")
    assert record.event_tokens is None


@pytest.mark.parametrize(
    "finish",
    [
        chunk(choice({}, "stop", usage=usage(5, 2))),
        FIN("stop", x_groq={"id": "req", "usage": usage(5, 2)}),
        FIN("stop", usage=None, x_groq={"usage": usage(5, 2)}),
    ],
)
def test_usage_where_moonshot_and_groq_put_it(finish: bytes) -> None:
    record = of((100, C("a")), (150, C("b")), (200, finish + DONE))
    assert (record.input_tokens, record.output_tokens) == (5, 2)


def test_without_usage_the_text_is_tokenised_once_and_flagged() -> None:
    texts: list[str] = []
    script: Script = [(100, R("th")), (150, C("中")), (200, C("文") + FIN("stop") + DONE)]
    record = decode(exchange(script), count_tokens=lambda text: texts.append(text) or 5)
    assert texts == ["th中文"]
    assert (record.output_tokens, record.output_tokens_source, record.status) == (5, "tokenized", "ok")


def test_without_usage_and_tokenizer_the_count_is_not_known() -> None:
    record = of((100, C("a")), (150, C("b") + FIN("stop") + DONE))
    assert (record.output_tokens, record.output_tokens_source, record.status) == (None, None, "ok")


def test_the_tokenizer_is_not_asked_when_the_server_counted_or_nothing_came() -> None:
    def never(text: str) -> int:
        raise AssertionError(text)

    decode(exchange(NORMAL(3, 100, 10)), count_tokens=never)
    decode(exchange([(100, ROLE + FIN("stop") + DONE)]), count_tokens=never)


@pytest.mark.parametrize("count", [None, -1, 2.0, "2", True, 2**40, 10**30])
def test_a_broken_count_is_no_count(count: object) -> None:
    broken = {"prompt_tokens": count, "completion_tokens": count}
    record = of((100, C("a")), (150, C("b") + FIN("stop") + chunk(usage=broken) + DONE))
    assert (record.input_tokens, record.output_tokens, record.status) == (None, None, "ok")


def test_zero_tokens_beside_text_come_from_a_server_that_does_not_count() -> None:
    record = decode(exchange([(100, C("a") + FIN("stop") + U(0, 0) + DONE)]), count_tokens=len)
    assert (record.output_tokens, record.output_tokens_source) == (1, "tokenized")


def counts(*events: bytes) -> list[int] | None:
    record = of(*((100 + 10 * k, data) for k, data in enumerate(events)))
    if record.event_tokens is None:
        return None
    assert record.event_tokens.sum() == record.output_tokens
    return record.event_tokens.tolist()


def test_counts_an_event_are_differences_of_the_running_count() -> None:
    assert counts(CU("", 0), CU("a", 2), CU("b", 3), FIN("stop"), U(9, 3), DONE) == [2, 1]


def test_a_count_that_came_with_no_text_is_an_event_of_its_own() -> None:
    assert counts(CU("a", 1), CU("", 2), CU("中", 3), FIN("stop"), U(9, 3), DONE) == [1, 1, 1]


def test_an_end_token_or_a_missing_last_count_belongs_to_the_last_event() -> None:
    assert counts(CU("a", 1), CU("b", 2), FIN("stop"), U(9, 3), DONE) == [1, 2]
    assert counts(CU("a", 1), C("b"), FIN("stop"), U(9, 4), DONE) == [1, 3]
    assert counts(CU("a", 1), CU("b", 2), FIN("stop", usage=usage(9, 3)), DONE) == [1, 1, 1]


def test_counts_of_a_stream_that_broke_off_are_kept() -> None:
    assert counts(CU("a", 1), CU("bc", 3)) == [1, 2]


@pytest.mark.parametrize(
    "events",
    [
        (CU("a", 2), CU("b", 1), U(9, 2)),  # down
        (CU("a", 1), CU("b", 3), U(9, 2)),  # more than the total
        (CU("a", 1), C("b"), CU("c", 3), U(9, 3)),  # missing in between
        (C("a"), CU("b", 2), U(9, 2)),  # missing at first
        (CU("a", 1), CU("b", 1), CU("c", 1), U(9, 3)),  # counts of single events, not running
        (CU("a", 0), CU("b", 0), U(9, 2)),  # a placeholder
        (CU("a", 1), C("b")),  # the last is not known
        (C("a"), C("b"), U(9, 2)),  # none
        (C("abc"), U(9, 3)),  # none
        (U(9, 3),),  # no event
    ],
)
def test_counts_that_do_not_fit_say_nothing(events: tuple[bytes, ...]) -> None:
    assert counts(*events, FIN("stop"), DONE) is None


# --- times


def test_an_event_arrives_with_the_read_that_completes_it() -> None:
    body = C("a") + C("b")
    half, whole = len(C("a")) // 2, len(C("a"))
    record = of((100, body[:half]), (110, body[half : whole - 1]), (120, body[whole - 1 :]), (130, END(2)))
    assert arrivals_ms(record) == [120, 120]
    assert record.coalesced.tolist() == [True, True]


def test_only_neighbours_of_one_read_are_coalesced() -> None:
    record = of((100, C("a")), (110, C("b") + C("c")), (120, C("d")), (130, ROLE + C("e") + END(5)))
    assert record.coalesced.tolist() == [False, True, True, False, False]


def test_pieces_of_one_read_are_coalesced_by_their_stamp() -> None:
    assert of((100, C("a")), (100, C("b")), (110, C("c") + END(3))).coalesced.tolist() == [True, True, False]


def test_arrivals_never_decrease() -> None:
    record = of((100, C("a")), (90, C("b")), (95, C("c")), (120, C("d") + END(4)))
    assert arrivals_ms(record) == [100, 100, 100, 120]
    assert record.coalesced.tolist() == [True, True, True, False]


def test_empty_reads_bring_nothing() -> None:
    assert arrivals_ms(of((90, b""), (100, C("a")), (105, b""), (110, C("b") + END(2)), (115, b""))) == [100, 110]


def test_an_open_exchange_ends_with_its_last_read() -> None:
    assert of((100, C("a")), (110, C("b")), finished_ns=None).finished_ns == SENT_NS + 110_000_000
    assert of(finished_ns=None, dispatched_ns=5).finished_ns == 5


def test_what_the_client_noted_is_copied() -> None:
    noted = {
        "level": 3,
        "index": 14,
        "user": 2,
        "worker": 1,
        "dispatched_ns": 11,
        "scheduled_ns": 10,
        "sent_ns": 12,
        "response_started_ns": 13,
        "finished_ns": 99,
        "input_tokens_requested": 9,
        "output_tokens_requested": 2,
        "request_bytes": 77,
        "kernel_stamps": True,
        "http_status": 200,
    }
    script = NORMAL(2, 100, 10)
    record = decode(exchange(script, **noted))
    assert {name: getattr(record, name) for name in noted} == noted
    assert record.response_bytes == sum(len(data) for _, data in script)


def test_arrays_are_the_records_own() -> None:
    seen = exchange(NORMAL(3, 100, 10))
    record = decode(seen)
    seen.chunk_ns[1] = 0
    seen.chunk_ns.append(5)  # refused while another array looks into it
    assert arrivals_ms(record) == [100, 110, 120]
    assert (record.arrivals_ns.dtype, record.coalesced.dtype) == (np.int64, np.bool_)
    empty = decode(exchange([]))
    assert (empty.arrivals_ns.dtype, empty.arrivals_ns.shape, empty.coalesced.shape) == (np.int64, (0,), (0,))


# --- shapes of events


@pytest.mark.parametrize("end", [b"\r", b"\r\n"])
def test_any_line_end_gives_the_same_record(end: bytes) -> None:
    script = [(at, data.replace(b"\n", end)) for at, data in NORMAL(3, 100, 10)]
    record = decode(exchange(script))
    assert (arrivals_ms(record), record.output_tokens, record.status) == ([100, 110, 120], 3, "ok")


def test_a_byte_order_mark_hides_no_token() -> None:
    assert arrivals_ms(of((100, b"\xef\xbb\xbf" + C("a")), (110, C("b") + END(2)))) == [100, 110]


def test_json_over_several_data_lines_is_one_event() -> None:
    lines = b'data: {"choices":\ndata: [{"index":0,"delta":{"content":"a"}}]}\n\n'
    assert arrivals_ms(of((100, lines), (110, C("b") + END(2)))) == [100, 110]


@pytest.mark.parametrize(
    "odd",
    [
        event({}),
        event({"choices": None}),
        event({"choices": {}}),
        event({"choices": [None, 1, "x", []]}),
        event({"choices": [{}]}),
        event({"choices": [{"delta": None, "text": None, "finish_reason": 5, "index": "0"}]}),
        event({"choices": [{"delta": {"content": ["x"], "reasoning": 1, "tool_calls": [None, {"function": 3}]}}]}),
        event({"choices": [], "usage": []}),
        event({"choices": [], "usage": {"completion_tokens": {}}}),
        event({"choices": [], "error": None}),
        event({"choices": [], "error": ""}),
        event({"choices": [], "error": {"code": None, "message": ""}}),
        event({"type": "heartbeat", "message": "alive"}),
        event({"status": "queued", "message": "two before you", "code": 0}),
        event({"code": 200, "message": "success"}),
        event({"object": "chat.completion.chunk", "message": "hello"}),
        event({"choices": [{"delta": {}, "finish_reason": ""}], "x_groq": 5}),
        b"event: ping\ndata: alive\n\n",
        b"event: message\n\n",
        b"data:\n\n",
        b"data:  \n\n",
        b"id: 5\nretry: 10\n\n",
    ],
)
def test_odd_events_without_a_token_are_nothing(odd: bytes) -> None:
    record = of((50, odd), (100, C("a")), (105, odd), (110, C("b")), (120, odd + END(2)))
    assert (arrivals_ms(record), record.output_tokens, record.status) == ([100, 110], 2, "ok")


def test_tokens_after_done_are_no_part_of_the_stream() -> None:
    record = of((100, C("a")), (110, END(1)), (120, C("b") + event({"error": "x"}) + b"data: {\n\n"))
    assert (arrivals_ms(record), record.status) == ([100], "ok")
