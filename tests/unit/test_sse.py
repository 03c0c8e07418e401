"""Framing of server-sent events: bytes in, (data, end, name) out."""

import pytest

from loadgen.wire.sse import STRAY, FirstToken, parse
from tests.sse_events import CU, DONE, END, FIN, RC, ROLE, TEXT, C, R, U, choice, chunk, event


def data(body: bytes) -> list[bytes]:
    """The data of every event, the unfinished one included, without stray lines."""
    events, unfinished = parse(body)
    return [data for data, _, name in events + unfinished if name != STRAY]


def stray(body: bytes) -> list[bytes]:
    events, unfinished = parse(body)
    return [data for data, _, name in events + unfinished if name == STRAY]


def test_an_event_ends_with_its_blank_line() -> None:
    assert parse(b"data: a\n\ndata: bc\n\n") == ([(b"a", 9, b""), (b"bc", 19, b"")], [])


def test_with_crlf_the_carriage_return_of_the_blank_line_completes_the_event() -> None:
    body = b"data: a\r\n\r\ndata: b\r\n\r\n"
    events, unfinished = parse(body)
    assert events == [(b"a", 10, b""), (b"b", 21, b"")]
    assert body[9:10] == b"\r" and body[20:21] == b"\r"
    assert unfinished == []


def test_a_carriage_return_alone_ends_a_line() -> None:
    assert parse(b"data: a\r\rdata: b\r\r") == ([(b"a", 9, b""), (b"b", 18, b"")], [])


def test_line_ends_may_be_mixed() -> None:
    assert data(b"data: a\n\rdata: b\r\n\ndata: c\n\r\ndata: d\r\r\ndata: e\r\n\rdata: f\n\n") == [
        *map(bytes, zip(b"abcdef"))
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_blank_lines_without_an_event_mean_nothing(end: bytes) -> None:
    assert data(end * 3 + b"data: a" + end * 5 + b"data: b" + end * 2 + end) == [b"a", b"b"]


def test_comments_are_skipped_before_inside_and_between_events() -> None:
    assert data(b": ping\n\n:\n\n:c\ndata: a\n: c\n\n: keep-alive\n\ndata: b\n\n") == [b"a", b"b"]


def test_several_data_lines_are_joined_by_line_feeds() -> None:
    assert data(b"data: {\ndata: }\ndata:\n\n") == [b"{\n}\n"]


def test_only_one_space_after_the_colon_is_dropped() -> None:
    assert data(b"data:a\n\ndata: b\n\ndata:  c\n\ndata:\td\n\n") == [b"a", b"b", b" c", b"\td"]


def test_a_data_line_without_a_colon_or_without_a_value_is_an_empty_event() -> None:
    assert data(b"data\n\ndata:\n\ndata: \n\n") == [b"", b"", b""]


def test_unknown_fields_and_look_alikes_are_skipped() -> None:
    assert data(b"id: 1\nretry: 10\nfoo: bar\nDATA: x\n data: y\ndatax: z\ndata: a\n\n") == [b"a"]


def test_the_event_field_names_its_own_event_only() -> None:
    events, _ = parse(b"event: error\ndata: a\n\nevent: lost\n\ndata: b\nevent:c\n\n")
    assert [(d, n) for d, _, n in events] == [(b"a", b"error"), (b"b", b"c")]


def test_a_byte_order_mark_counts_as_bytes_but_not_as_text() -> None:
    assert parse(b"\xef\xbb\xbfdata: a\n\n") == ([(b"a", 12, b"")], [])


def test_a_byte_order_mark_later_on_is_text() -> None:
    assert data(b"data: a\n\n\xef\xbb\xbfdata: b\n\n") == [b"a"]


def test_an_event_without_blank_line_at_the_end_is_handed_out_apart() -> None:
    assert parse(b"data: a\n\ndata: b\n") == ([(b"a", 9, b"")], [(b"b", 17, b"")])
    assert parse(b"data: a\n\ndata: b") == ([(b"a", 9, b"")], [(b"b", 16, b"")])
    assert parse(b"data: a\r\n\r\ndata: b\r\n") == ([(b"a", 10, b"")], [(b"b", 20, b"")])


@pytest.mark.parametrize("rest", [b"", b"\n", b": ping", b"id: 5", b"event: ping\n"])
def test_a_rest_without_data_is_no_event(rest: bytes) -> None:
    assert parse(b"data: a\n\n" + rest) == ([(b"a", 9, b"")], [])


@pytest.mark.parametrize(
    "line",
    [
        b'{"error": {"message": "engine died"}}',
        b"<html><title>502 Bad Gateway</title></html>",
        b"Internal Server Error",
        b"upstream connect error or disconnect/reset before headers. reset reason: overflow",
        b'error: {"code": 400}',
        b"Error: engine died",
        b" data: x",
    ],
)
def test_a_line_that_is_no_field_is_handed_out_as_stray(line: bytes) -> None:
    assert parse(line) == ([], [(line, len(line), STRAY)])
    assert parse(line + b"\n\n") == ([(line, len(line) + 2, STRAY)], [])
    body = b"data: a\n\n" + line + b"\ndata: b\n\n"
    assert parse(body) == ([(b"a", 9, b""), (line, len(body), STRAY), (b"b", len(body), b"")], [])
    assert first_token_at([line + b"\n\n", line + b"\n" + C("x")]) == [1]


def test_stray_lines_of_one_block_are_one_text() -> None:
    assert stray(b'{\n  "error": "x"\n}\n') == [b'{\n  "error": "x"\n}']


def test_an_event_that_is_named_error_needs_no_data() -> None:
    assert parse(b"event: error\n: engine died\n\n") == ([(b"engine died", 28, b"error")], [])
    assert parse(b"event: error\n") == ([], [(b"", 13, b"error")])


def test_line_separators_of_unicode_do_not_end_a_line() -> None:
    text = "a\u2028b\u2029c\u0085d\x0b\x0c\x1ce".encode()
    assert data(b"data: " + text + b"\n\n") == [text]
    assert data(b"data: " + text + b"\r\n\r\n") == [text]


def test_a_line_of_megabytes_is_one_event() -> None:
    long = b"x" * 3_000_000
    assert data(b"data: " + long + b"\n\n") == [long]
    assert data(b"data: " + long + b"\r\r") == [long]


def first_token_at(chunks: list[bytes]) -> list[int]:
    """Every chunk for which the watch said True."""
    watch = FirstToken()
    return [k for k, piece in enumerate(chunks) if watch.feed(piece)]


NO_TOKEN = [
    ROLE,
    b": ping\n\n",
    C(""),
    chunk(choice({"content": None})),
    chunk(choice({})),
    chunk(choice(None)),
    chunk(choice({"content": "", "reasoning": "", "reasoning_content": None, "tool_calls": []})),
    chunk(choice({"tool_calls": [{"index": 0, "id": "call", "function": {"name": "", "arguments": None}}]})),
    chunk(choice({"tool_calls": None, "content": 5})),
    chunk(),
    U(9, 3),
    FIN("stop"),
    TEXT(""),
    event([1]),
    event("text"),
    event(None),
    event({"choices": {"0": 1}}),
    event({"choices": [None, 3]}),
    event({"error": {"message": "x"}}),
    b"event: error\n" + C("x"),
    b"data: {broken\n\n",
    b"data:\n\n",
    b"data: \xff\xfe\n\n",
]
TOKEN = [
    C("x"),
    C(" "),
    C("\n"),
    CU("x", 1),
    R("x"),
    RC("x"),
    TEXT("x"),
    TEXT("x", "stop"),
    chunk(choice({"role": "assistant", "content": "x"})),
    chunk(choice({"content": "x"}, "length")),
    chunk(choice({"content": ""}), choice({"content": "x"}, index=1)),
    chunk(choice({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]})),
    chunk(choice({"content": None, "tool_calls": [{"index": 0, "function": {"arguments": "{"}}]})),
    C("x", usage=None),
]


@pytest.mark.parametrize("nothing", NO_TOKEN)
def test_an_event_without_a_token_is_not_the_first_token(nothing: bytes) -> None:
    assert first_token_at([nothing]) == []
    assert first_token_at([nothing, C("x"), C("y")]) == [1]


@pytest.mark.parametrize("token", TOKEN)
def test_an_event_with_a_token_in_any_channel_is_the_first_token(token: bytes) -> None:
    assert first_token_at([ROLE, token, C("y"), END(2)]) == [1]


def test_the_first_token_arrives_with_the_byte_that_completes_its_event() -> None:
    body = ROLE + C("x") + C("y")
    assert first_token_at([body[k : k + 1] for k in range(len(body))]) == [len(ROLE + C("x")) - 1]


def test_a_crlf_between_two_reads_does_not_end_an_event() -> None:
    line = C("x").rstrip(b"\n")
    assert first_token_at([line + b"\r", b"\n", b"\r", b"\n"]) == [2]
    assert first_token_at([line + b"\r", b"\r"]) == [1]
    assert first_token_at([line + b"\n", b"", b"\n"]) == [2]


def test_a_token_after_done_is_not_the_first_token() -> None:
    assert first_token_at([DONE, C("x")]) == []


def test_a_byte_order_mark_in_pieces_does_not_hide_the_first_token() -> None:
    assert first_token_at([b"\xef", b"\xbb", b"\xbf" + C("x")]) == [2]


def test_the_first_token_may_be_a_line_of_megabytes_in_small_reads() -> None:
    body = C("x" * 2_000_000)
    pieces = [body[k : k + 100] for k in range(0, len(body), 100)]
    assert first_token_at(pieces) == [len(pieces) - 1]


def test_several_events_in_one_read_are_one_first_token() -> None:
    assert first_token_at([ROLE + C("x") + C("y") + END(2)]) == [0]
