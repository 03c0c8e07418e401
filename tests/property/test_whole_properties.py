"""Any bytes at all, asked for as a whole answer, are one record with one status, however they are cut into reads."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadgen.record import RequestRecord, is_status
from loadgen.wire.decode import decode
from tests.sse_events import SENT_NS, Script, exchange

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.sampled_from(["", "a", "stop", "abort", "error", "\ud83d"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "message",
                    "text",
                    "content",
                    "usage",
                    "completion_tokens",
                    "prompt_tokens",
                    "finish_reason",
                ]
                + ["error", "index", "tool_calls", "function", "arguments", "reasoning", "object", "code"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
BODIES = st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode())
ANSWERS = st.fixed_dictionaries(
    {
        "choices": st.lists(st.fixed_dictionaries({"message": JSON, "finish_reason": JSON}), max_size=2),
        "usage": JSON,
    }
).map(lambda value: json.dumps(value).encode())


def of(script: Script, **fields: Any) -> RequestRecord:
    return decode(exchange(script, streamed=False, content_type="application/json", **fields))


@given(body=BODIES | ANSWERS, complete=st.booleans())
def test_any_body_is_one_record_with_one_status(body: bytes, complete: bool) -> None:
    record = of([(5, body)], body_complete=complete)
    assert is_status(record.status) and bool(record.reason) == (record.status != "ok")
    assert record.first_token_ns is None and record.first_visible_ns is None
    assert len(record.arrivals_ns) == (record.last_token_ns is not None)
    if record.status == "ok":
        assert record.last_token_ns == SENT_NS + 5_000_000
    if record.event_tokens is not None:
        assert record.event_tokens.tolist() == [record.output_tokens]


@given(body=BODIES | ANSWERS, cut=st.integers(0, 200))
def test_how_the_body_is_cut_changes_nothing_but_its_arrival(body: bytes, cut: int) -> None:
    whole = of([(9, body)])
    halves = of([(5, body[:cut]), (9, body[cut:])])
    ignored = {"arrivals_ns", "event_tokens", "coalesced", "finished_ns", "last_token_ns"}
    for field in dataclasses.fields(whole):
        if field.name not in ignored:
            assert getattr(whole, field.name) == getattr(halves, field.name), field.name
    if cut < len(body):
        assert np.array_equal(whole.arrivals_ns, halves.arrivals_ns)
