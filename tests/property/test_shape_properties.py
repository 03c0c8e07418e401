"""Events that are recognised by their shape say what they say when parsed, whatever stands in their texts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadgen.wire import stream
from loadgen.wire.shape import ShapeMemory
from loadgen.wire.stream import Stream, read_stream
from tests.sse_events import END, C

many = settings(max_examples=int(os.environ.get("FUZZ_EXAMPLES", "300")), deadline=None)  # `make fuzz`: many more

Server = Callable[[str, str, int, int], dict[str, Any]]


def counts(k: int) -> dict[str, int]:
    return {"prompt_tokens": 9, "total_tokens": 9 + k, "completion_tokens": k}


def choice(**brings: Any) -> list[dict[str, Any]]:
    return [{"index": 0, **brings, "finish_reason": None}]


# An event of (text, id, creation time, tokens so far), its keys in one order or another.
SERVERS: list[Server] = [
    lambda text, name, created, k: {"id": name, "created": created, "choices": choice(delta={"content": text})},
    lambda text, name, created, k: {"id": name, "created": created, "choices": choice(text=text), "usage": counts(k)},
    lambda text, name, created, k: {"usage": counts(k), "choices": choice(delta={"content": text}), "id": name},
    lambda text, name, created, k: {"choices": choice(delta={"reasoning": text}), "created": created, "id": name},
    lambda text, name, created, k: {"choices": choice(delta={"content": text}), "usage": {"completion_tokens": k}},
]

# What texts are made of: pieces of the very events that they stand in, and all that needs escapes.
QUOTED = [
    "data: ",
    "\n\n",
    "\n",
    "\r",
    '"',
    "\\",
    "[DONE]",
    'data: {"id":"c","created":1,"choices":[{"index":0,"delta":{"content":"',
    '"},"finish_reason":null}]}',
    '"},"finish_reason":null}]}\n\ndata: {"id":"c","created":1,"choices":[{"index":0,"delta":{"content":"a',
    '","finish_reason":"stop',
    '"usage":{"prompt_tokens":9,"total_tokens":10,"completion_tokens":1}',
    "a",
    " b",
    "é",
    "中文",
    "😀",
    "\ud83d",
    "\x00",
    "\x7f",
    "\u2028",
    "?",
]
texts = st.lists(st.sampled_from(QUOTED), max_size=3).map("".join)
ids = st.sampled_from(["c", "c", "c", "c", "d", "a", 'd"', "é"])
instants = st.sampled_from([1, 1, 1, 1, 2, 10**19])
between = st.sampled_from(
    [b""] * 8 + [b": ping\n\n", b"\n", b"event: error\n", b"x\n\n", b"data: {\n\n", b"\xef\xbb\xbf"]
)


def _worn(draw: st.DrawFn, event: bytes) -> bytes:
    """One event in eight with a byte that is lacking or another one."""
    if draw(st.integers(0, 7)):
        return event
    at = draw(st.integers(0, len(event) - 1))
    return event[:at] + draw(st.sampled_from([b"", b"", b"\xe4", b'"', b"\n", b"\n\n", b"\r", b"0"])) + event[at + 1 :]


@st.composite
def alike(draw: st.DrawFn) -> bytes:
    """A stream of one server, whose texts are escaped in full, as little as allowed, not at all, or broken."""
    server = draw(st.sampled_from(SERVERS))
    body = b""
    for k in range(1, draw(st.integers(1, 8)) + 1):
        text = draw(texts)
        event = server("\x1a", draw(ids), draw(instants), draw(st.sampled_from([k] * 8 + [k - 1, 0, 10**10])))
        value = json.dumps(text, ensure_ascii=draw(st.booleans()))[1:-1]
        written = draw(st.sampled_from([value] * 4 + [text])).encode(errors="surrogatepass")
        data = json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode().replace(b"\\u001a", written)
        body += draw(between) + _worn(draw, b"data: " + data + b"\n\n")
    body += draw(st.sampled_from([b"", END(3), b"data: [DONE]\n\n" + body]))
    return body


def said(body: bytes, *, body_complete: bool, keep_text: bool = False) -> dict[str, Any]:
    whole = read_stream(body, body_complete=body_complete, keep_text=keep_text)
    return {f.name: getattr(whole, f.name) for f in fields(Stream) if f.name not in ("texts", "tokens")}


@many
@given(st.lists(alike(), min_size=1, max_size=3), st.booleans())
@example([C("a") + C("b"), C("a") + C("\\").replace(b'\\\\"', b'\\\\\\"') + C("b") + END(2)], True)
def test_streams_that_are_alike_say_what_their_events_say(bodies: list[bytes], body_complete: bool) -> None:
    before, stream._SHAPES = stream._SHAPES, ShapeMemory()
    try:
        for body in [*bodies, *bodies]:  # a worker that has met the server, and one that has not
            parsed = said(body, body_complete=body_complete, keep_text=True)
            assert said(body, body_complete=body_complete) == parsed
    finally:
        stream._SHAPES = before
