"""What is noted of an open answer is the same, and at the same instants, however seldom its chunks are looked at."""

from __future__ import annotations

import itertools
from array import array

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
    seen: Exchange = exchange([], chunk_ns=array("q"))
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
    assert (some.done_ns, some.first_token_ns, some.error_begun) == (
        each.done_ns,
        each.first_token_ns,
        each.error_begun,
    )
    assert some.events >= each.events  # `data:` that was cut is seen in the chunks together
    if each.events == some.events:
        assert some.last_event_ns == each.last_event_ns


def test_a_second_look_at_the_same_chunks_notes_nothing() -> None:
    seen = noted([C("a"), C("b")], [False, True])
    events = seen.events
    assert not seen.note_chunks(7)
    assert (seen.events, seen.noted_ns) == (events, 7)
