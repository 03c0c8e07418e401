"""Streams of any JSON in any order: the record keeps every promise of `tests.fuzz.invariants`, however the bytes are cut."""

from __future__ import annotations

import json
import os

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.invariants import check
from tests.fuzz.mutations import KEYS, ODD_VALUES
from tests.sse_events import CU, DONE, FIN, ROLE, C, R, U, choice, chunk, usage

# `make fuzz` asks for many more.
many = settings(max_examples=int(os.environ.get("FUZZ_EXAMPLES", "150")), deadline=None)

leaves = st.sampled_from(ODD_VALUES)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)
counts = st.none() | st.integers(0, 5) | leaves


@st.composite
def chunks(draw: st.DrawFn) -> bytes:
    """An event of the usual envelope, with what a server may put in each place, and what it may not."""
    deltas = st.dictionaries(
        st.sampled_from(
            ["content", "reasoning", "reasoning_content", "role", "refusal", "tool_calls", "function_call"]
        ),
        st.sampled_from(["", "a", " ", "中", "\ud83d"]) | values,
        max_size=3,
    )
    one = st.builds(
        choice,
        deltas | values,
        st.none() | st.sampled_from(["stop", "length", "error", "null", ""]),
        st.integers(0, 2) | leaves,
    )
    choices = draw(st.lists(one, max_size=2))
    more = draw(st.dictionaries(st.sampled_from(["error", "x_groq", "object", "detail", "type"]), values, max_size=1))
    told = draw(counts)
    if told is not None:
        more["usage"] = {"prompt_tokens": 9, "completion_tokens": told}
    envelope = {"id": "c", "created": 1, "choices": choices, **more}
    return b"data: " + json.dumps(envelope, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass") + b"\n\n"


usual = st.sampled_from(
    [ROLE, C("a"), C(""), R("r"), CU("b", 1), CU("c", 2), CU("", 3), FIN("stop"), U(9, 3), DONE, b": ping\n\n"]
    + [chunk(choice({}), usage=usage(9, 3)), b"event: error\ndata: x\n\n", b'{"error":"x"}\n', b"error: x\n\n"]
)
streams = st.lists(usual | chunks(), max_size=8).map(b"".join)


@many
@given(streams, st.lists(st.floats(0, 1), max_size=5), st.booleans())
def test_any_json_in_any_order_gives_a_sound_record(body: bytes, cuts: list[float], complete: bool) -> None:
    check(body, [round(cut * len(body)) for cut in cuts], body_complete=complete)


@many
@given(streams)
def test_a_read_for_every_byte_gives_the_same_record(body: bytes) -> None:
    check(body, range(len(body)))


@many
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_any_bytes_give_a_sound_record(body: bytes, cuts: list[int]) -> None:
    check(body, [min(cut, len(body)) for cut in cuts])
