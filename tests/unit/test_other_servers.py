"""What other servers stream becomes the right record: tokens, counts, finish reason, and which events carried a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.record import OK
from loadgen.wire.decode import decode
from loadgen.wire.exchange import Exchange

STREAMS = Path(__file__).parents[1] / "samples/streams"

# file: (prompt tokens, output tokens, events that carry a token, tokens of each event where they are told, finish reason)
EXPECTED = {
    "llamacpp-b11549-chat": (32, 4, 4, None, "length"),
    "llamacpp-b11549-completions": (2, 3, 3, None, "length"),
    "transformers-5.19-chat": (32, 3, 3, None, "length"),
    "transformers-5.19-completions": (2, 3, 3, None, "length"),
    "ollama-chat": (32, 3, 3, None, "length"),
    "ollama-completions": (2, 3, 3, None, "length"),
    "trtllm-chat": (32, 4, 4, [1, 1, 1, 1], "length"),
    "sglang-chat": (32, 3, 3, [1, 1, 1], "length"),
    "tgi-chat": (32, 3, 2, None, "stop"),
}


def received(body: bytes, pieces: int) -> Exchange:
    """The body in so many chunks, 1 ms apart."""
    size = -(-len(body) // pieces)
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    seen = Exchange(
        level=0,
        index=0,
        user=0,
        worker=0,
        endpoint="chat",
        dispatched_ns=0,
        sent_ns=1,
        http_status=200,
        content_type="text/event-stream; charset=utf-8",
        body_complete=True,
        finished_ns=1_000_000 * (len(chunks) + 1),
    )
    for k, chunk in enumerate(chunks):
        seen.add(chunk, 1_000_000 * (k + 1))
    return seen


def test_every_sample_has_its_expected_record() -> None:
    assert {path.stem for path in STREAMS.glob("*.sse")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_a_servers_stream_is_decoded_to_the_right_record(name: str, pieces: int) -> None:
    input_tokens, output_tokens, events, each, finish = EXPECTED[name]
    record = decode(received((STREAMS / f"{name}.sse").read_bytes(), pieces))
    assert (record.status, record.reason) == (OK, "")
    assert (record.input_tokens, record.output_tokens, record.finish_reason) == (input_tokens, output_tokens, finish)
    assert len(record.arrivals_ns) == events
    assert (None if record.event_tokens is None else record.event_tokens.tolist()) == each


def test_a_stream_without_done_is_complete_when_its_choice_has_a_finish_reason() -> None:
    body = (STREAMS / "transformers-5.19-chat.sse").read_bytes()
    assert b"[DONE]" not in body
    cut = body[: body.index(b'"finish_reason"')]
    assert decode(received(body, 3)).status == OK
    assert decode(received(cut, 3)).status == "truncated"
