"""What is noted of an open answer is the same, and at the same instants, however seldom its chunks are looked at."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from loadgen.wire.exchange import Exchange
from tests.sse_events import DONE, FIN, ROLE, C, U, exchange

EVENTS = st.sampled_from(
    [
        ROLE,
        C("a"),
        C("a longer text, so that the event alone is no short chunk"),
        C("data: [DONE]\n\n"),
        C('{"error": {"message": "quoted"}}'),
        FIN("stop"),
        U(9, 1),
        DONE,
        b": ping\n\n",
        b'data: {"error": {"message": "out of memory", "type": "server_error"}}\n\n',
        b"data: not JSON\r\n\r\n",
    ]
)


def noted(chunks: list[bytes], looks: list[bool]) -> Exchange:
    seen: Exchange = exchange([])
    for k, (chunk, look) in enumerate(zip(chunks, looks, strict=True)):
        seen.add(chunk, k)
        if look:
            seen.note_chunks(k)
    seen.note_chunks(len(chunks))
    return seen


@given(st.lists(EVENTS, max_size=12), st.lists(st.integers(0, 4000), max_size=20), st.data())
def test_tokens_and_ends_are_found_at_the_chunk_that_brought_them(
    events: list[bytes], places: list[int], data: st.DataObject
) -> None:
    body = b"".join(events)
    edges = [0, *sorted({place % (len(body) + 1) for place in places}), len(body)]
    chunks = [body[a:b] for a, b in itertools.pairwise(edges) if a < b]
    looks = data.draw(st.lists(st.booleans(), min_size=len(chunks), max_size=len(chunks)))
    each = noted(chunks, [True] * len(chunks))
    some = noted(chunks, looks)
    for name in ("done_ns", "first_token_ns", "last_event_ns", "error_begun", "events"):
        assert getattr(some, name) == getattr(each, name), name
    assert some.chunks() == each.chunks() == chunks


def test_a_second_look_at_the_same_chunks_notes_nothing() -> None:
    seen = noted([C("a"), C("b")], [False, True])
    events = seen.events
    assert not seen.note_chunks(7)
    assert (seen.events, seen.noted_ns) == (events, 7)


def test_what_was_looked_at_is_one_object_however_many_tokens_came() -> None:
    seen = noted([C("a")] * 1000, [False] * 1000)
    assert (seen.fresh, bytes(seen.body), len(seen.chunk_ends)) == ([], C("a") * 1000, 1000)


def test_a_snapshot_keeps_what_had_come_and_the_stream_goes_on() -> None:
    seen = noted([C("a")], [False])
    seen.add(C("b"), 1)
    then = seen.snapshot(finished_ns=2)
    seen.add(C("c"), 3)
    seen.note_chunks(4)
    assert (then.chunks(), list(then.chunk_ns), then.finished_ns) == ([C("a"), C("b")], [0, 1], 2)
    assert (seen.chunks(), list(seen.chunk_ns), seen.events) == ([C("a"), C("b"), C("c")], [0, 1, 3], 3)
