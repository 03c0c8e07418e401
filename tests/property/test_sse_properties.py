"""The parser against a byte-at-a-time reading of the WHATWG's rules, for any bytes and any split."""

import os
from itertools import pairwise

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from loadgen.record import is_status
from loadgen.wire.decode import decode
from loadgen.wire.sse import FirstToken, parse
from tests.sse_events import CU, DONE, END, FIN, RC, ROLE, TEXT, C, R, Script, U, event, exchange
from tests.sse_rules import by_the_rules

many = settings(max_examples=int(os.environ.get("FUZZ_EXAMPLES", "300")), deadline=None)  # `make fuzz`: many more

# Few symbols, so that line ends, fields and marks meet often.
SYMBOLS = [
    b"\r",
    b"\n",
    b":",
    b" ",
    b"data",
    b"data: ",
    b"event: error",
    b"event",
    b"error",
    b"Error: x",
    b"id",
    b"\xef\xbb\xbf",
    b"{}",
    b"\xe4",
    b"[DONE]",
]
noise = st.lists(st.sampled_from(SYMBOLS) | st.binary(max_size=3), max_size=30).map(b"".join)

EVENTS = [
    ROLE,
    C("a"),
    C(" "),
    C(""),
    C("中文 ✓"),
    R("r"),
    RC("r"),
    TEXT("t"),
    CU("c", 1),
    CU("d", 3),
    FIN("stop"),
    FIN("error"),
    U(9, 3),
    DONE,
    END(2),
    C("a", usage=None),
    event({"error": {"message": "x"}}),
    event([1]),
    b": ping\n\n",
    b"\n",
    b"event: error\ndata: x\n\n",
    b"event: ping\ndata: x\n\n",
    b"id: 1\nretry: 5\n" + C("b"),
    b'data: {"choices":\ndata: [{"delta":{"content":"m"}}]}\n\n',
    b"data: {\n\n",
    b"data:" + C("n")[6:],
    b'{"error": "x"}\n\n',
    b"Internal Server Error\n",
    b"error: x\n\n",
    b"event: error\n: x\n\n",
    b'data: "[DONE]"\n\n',
    C("NaN").replace(b'"NaN"', b"NaN"),
    C("\\ud83d").replace(b"\\\\", b"\\"),
    C("u").replace(b'"u"', b'"\xe4"'),
]
streams = st.lists(st.sampled_from(EVENTS), max_size=12).map(b"".join)


@st.composite
def split(draw: st.DrawFn, bodies: st.SearchStrategy[bytes]) -> list[bytes]:
    """A body in pieces, some of them empty."""
    body = draw(bodies)
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=8)))
    return [body[a:b] for a, b in pairwise([0, *cuts, len(body)])]


@many
@given(noise | streams)
@example(b"data: a\n\n\r\ndata: b\r\n\r\n\r\n\ndata: c")
@example(b"\xef\xbb\xbf\r\n\r\ndata\r\rdata:\n\r")
def test_any_bytes_are_read_by_the_rules(body: bytes) -> None:
    assert parse(body) == by_the_rules(body)


@many
@given(streams, st.sampled_from([b"\r", b"\r\n"]))
def test_any_line_end_gives_the_same_events(body: bytes, end: bytes) -> None:
    events, unfinished = parse(body)
    others, other_unfinished = parse(body.replace(b"\n", end))
    assert [(data, name) for data, _, name in others] == [(data, name) for data, _, name in events]
    assert [(data, name) for data, _, name in other_unfinished] == [(data, name) for data, _, name in unfinished]


@many
@given(st.lists(st.sampled_from(EVENTS), max_size=12), st.data())
def test_any_mixture_of_line_ends_gives_the_same_events(events: list[bytes], data: st.DataObject) -> None:
    ends = st.sampled_from([b"\n", b"\r", b"\r\n"])
    parts = [e.replace(b"\n", data.draw(ends)) for e in events]
    assume(not any(a.endswith(b"\r") and b.startswith(b"\n") for a, b in pairwise(parts)))  # CR and LF are one line end
    mixed = b"".join(parts)
    assert [e[0] for e in parse(mixed)[0]] == [e[0] for e in parse(b"".join(events))[0]]


def scripted(pieces: list[bytes]) -> Script:
    return [(10.0 * k, piece) for k, piece in enumerate(pieces)]


@many
@given(split(noise | streams))
def test_any_split_gives_the_same_record_and_moves_only_arrivals(pieces: list[bytes]) -> None:
    whole = decode(exchange([(0, b"".join(pieces))]), count_tokens=len)
    record = decode(exchange(scripted(pieces)), count_tokens=len)
    for name in ("status", "reason", "finish_reason", "input_tokens", "output_tokens", "output_tokens_source"):
        assert getattr(record, name) == getattr(whole, name)
    assert record.arrivals_ns.shape == whole.arrivals_ns.shape
    assert (record.event_tokens is None) == (whole.event_tokens is None)
    if record.event_tokens is not None and whole.event_tokens is not None:
        assert record.event_tokens.tolist() == whole.event_tokens.tolist()


@many
@given(split(noise | streams))
def test_an_event_arrives_with_the_piece_that_holds_its_end(pieces: list[bytes]) -> None:
    seen = exchange(scripted(pieces))
    ends = [end for _, end, _ in by_the_rules(b"".join(pieces))[0]]
    so_far, possible = 0, set()
    for piece, at_ns in zip(seen.chunks(), seen.chunk_ns, strict=True):
        possible |= {at_ns for end in ends if so_far < end <= so_far + len(piece)}
        so_far += len(piece)
    record = decode(seen)
    assert set(record.arrivals_ns.tolist()) <= possible | {seen.chunk_ns[-1]}
    assert (record.arrivals_ns[1:] >= record.arrivals_ns[:-1]).all()


@many
@given(split(noise | streams))
def test_the_watch_sees_the_first_token_when_the_record_does(pieces: list[bytes]) -> None:
    # A body that did not end as it should: its unfinished event counts for neither.
    seen = exchange(scripted(pieces), body_complete=False)
    watch = FirstToken()
    at = [at_ns for piece, at_ns in zip(seen.chunks(), seen.chunk_ns, strict=True) if watch.feed(piece)]
    first_ns = decode(seen).first_token_ns
    assert at == ([] if first_ns is None else [first_ns])
    assert watch.seen == (first_ns is not None)


@many
@given(
    split(noise | streams | st.binary()),
    st.sampled_from([200, 200, 204, 404, 503, 999, None]),
    st.sampled_from(["text/event-stream", "application/json", ""]),
    st.booleans(),
    st.sampled_from([None, ("transport", "reset"), ("censored", "late"), ("timeout_total", "")]),
)
def test_nothing_that_a_server_sends_makes_the_decoder_raise(
    pieces: list[bytes], code: int | None, content_type: str, complete: bool, failure: tuple[str, str] | None
) -> None:
    record = decode(
        exchange(scripted(pieces), http_status=code, content_type=content_type, body_complete=complete, failure=failure)
    )
    assert is_status(record.status)
    assert bool(record.reason) == (record.status != "ok")
    assert len(record.reason) <= 300
    assert record.coalesced.shape == record.arrivals_ns.shape
    assert record.event_tokens is None or record.event_tokens.shape == record.arrivals_ns.shape
    assert (record.first_token_ns is None) == (record.arrivals_ns.size == 0) == (record.last_token_ns is None)
