"""What the client saw of one request, raw: the bytes of the answer, when each read arrived, and how the connection ended.

Filled by the transport and the client on the hot path; turned into a `RequestRecord` by `decode` after the stream has ended.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal

Endpoint = Literal["chat", "completions"]


def _stamps() -> array[int]:
    return array("q")


@dataclass(slots=True, eq=False)
class Exchange:
    """One request on the wire. `chunks[i]` (payload bytes, de-chunked) arrived at `chunk_ns[i]` on the monotonic clock."""

    level: int
    index: int
    user: int
    worker: int
    endpoint: Endpoint
    dispatched_ns: int
    scheduled_ns: int | None = None
    input_tokens_requested: int | None = None
    output_tokens_requested: int | None = None
    output_forced: bool = False
    """Whether the server was told to produce exactly `output_tokens_requested` (`ignore_eos`, `min_tokens`)."""
    request_bytes: int = 0
    sent_ns: int | None = None
    response_started_ns: int | None = None
    http_status: int | None = None
    content_type: str = ""
    chunks: list[bytes] = field(default_factory=list)
    chunk_ns: array[int] = field(default_factory=_stamps)
    kernel_stamps: bool = False
    finished_ns: int | None = None
    """None while the request is open."""
    body_complete: bool = False
    """Whether the body ended as HTTP says it should (last chunk, content length, or close of an unframed body)."""
    failure: tuple[str, str] | None = None
    """(status, reason) that the client itself saw: connect, transport, a timeout, protocol, cancelled, censored."""
