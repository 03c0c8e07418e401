"""What the client saw of one request, raw: the bytes of the answer, when each read arrived, and how the connection ended.

Filled by the transport and the client on the hot path; turned into a `RequestRecord` by `decode` after the stream has ended.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal, Protocol

from loadgen.wire.payload import load
from loadgen.wire.sse import FirstToken
from loadgen.wire.tokens import is_error

Endpoint = Literal["chat", "completions"]


# A chunk shorter than this may hold only the last part of `data: [DONE]`; so much before it is enough to know.
_SPLIT_BYTES = 32


class Wire(Protocol):
    """A connection, as far as it knows of its current request."""

    sent_ns: int | None
    """Just before the last send."""
    sent_done_ns: int | None
    """Just after it; None where that is not known."""
    kernel_stamps: bool
    """Whether every arrival was stamped by the kernel."""
    longest_delay_ns: int
    """The longest time that stamped bytes lay in the kernel before they were handed on."""


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
    waited_ns: int | None = None
    """How long the arrival waited for a place under the limit of requests in flight."""
    kind: int = 0
    """Index of the request's class in the workload."""
    session: int | None = None
    """Of a turn of a conversation, as the next three; see `loadgen.record.RequestRecord`."""
    turn: int | None = None
    prefix_tokens: int | None = None
    turn_input_tokens: int | None = None
    input_tokens_requested: int | None = None
    output_tokens_requested: int | None = None
    output_forced: bool = False
    """Whether the server was told to produce exactly `output_tokens_requested` (`ignore_eos`, `min_tokens`)."""
    streamed: bool = True
    """Whether a stream was asked for; else the answer comes whole."""
    request_bytes: int = 0
    reused: bool = False
    """Whether the connection had served a request before."""
    retries: int = 0
    """How often it was sent again, because a kept-alive connection had been closed before any byte came back."""
    connected_ns: int | None = None
    """When a connection, new or kept alive, was at hand."""
    sent_ns: int | None = None
    send_gap_ns: int | None = None
    """From `sent_ns` until the call that sent had returned."""
    response_started_ns: int | None = None
    http_status: int | None = None
    content_type: str = ""
    chunks: list[bytes] = field(default_factory=list)
    chunk_ns: array[int] = field(default_factory=_stamps)
    last_arrival_ns: int | None = None
    """Arrival of the latest read, whatever it brought."""
    kernel_stamps: bool = False
    """Whether every arrival is the kernel's."""
    read_delay_ns: int = 0
    """The longest time that bytes of this answer lay in the kernel before they were read; 0 without kernel stamps."""
    finished_ns: int | None = None
    """None while the request is open."""
    body_complete: bool = False
    """Whether the body ended as HTTP says it should (last chunk, content length, or close of an unframed body)."""
    failure: tuple[str, str] | None = None
    """(status, reason) that the client itself saw: connect, transport, a timeout, protocol, cancelled, censored."""
    first_token: FirstToken = field(default_factory=FirstToken)
    """Tells of an open request, for timeouts and live counts, whether a token has arrived."""
    first_token_ns: int | None = None
    last_event_ns: int | None = None
    """Arrival of the latest chunk that completed an event with data."""
    done_ns: int | None = None
    """Arrival of `[DONE]`, or of an error event: the answer is complete whatever the connection does next."""
    error_begun: bool = False
    """Whether the latest chunk may hold the beginning of an error event."""
    events: int = 0
    """Events since the first token; a live estimate of tokens, never a result."""
    noted: int = 0
    """How many of the chunks are known in the fields above, from `first_token` on: `note_chunks`."""
    noted_ns: int = 0
    """When that was."""

    wire: Wire | None = None
    """The connection while the request is open: it knows when the last byte was sent."""

    def note_wire(self) -> None:
        """Takes from the connection what it knows of the request: when it was sent, and of the answer so far."""
        wire = self.wire
        if wire is None:
            return
        if self.sent_ns is None and wire.sent_ns is not None:
            self.sent_ns = wire.sent_ns
            self.send_gap_ns = None if wire.sent_done_ns is None else wire.sent_done_ns - wire.sent_ns
        if self.response_started_ns is not None:
            self.kernel_stamps = wire.kernel_stamps
            self.read_delay_ns = wire.longest_delay_ns

    def start_again(self) -> None:
        """Forgets an attempt of which the target has answered nothing."""
        self.retries += 1
        self.connected_ns = self.sent_ns = self.send_gap_ns = self.failure = self.wire = None
        self.reused = False

    def add(self, chunk: bytes, arrival_ns: int) -> None:
        """Keeps the payload bytes of one read; what they say is looked at by `note_chunks`, many at a time."""
        self.chunks.append(chunk)
        self.chunk_ns.append(arrival_ns)
        self.last_arrival_ns = arrival_ns

    def note_chunks(self, now_ns: int) -> bool:
        """Notes tokens and ends in the chunks that came since the last call; False when there are none."""
        first, self.noted, self.noted_ns = self.noted, len(self.chunks), now_ns
        if first == self.noted:
            return False
        new = self.chunks[first:]
        text = b"".join(new)
        if self.error_begun or b"[DONE]" in text or b'"error"' in text or min(map(len, new)) < _SPLIT_BYTES:
            for k in range(first, self.noted):
                self._note_end(k)
        if self.first_token_ns is None:
            first = self._note_first_token(first)
            text = b"".join(self.chunks[first:])
        if events := text.count(b"data:"):
            self.events += events
            latest = next((k for k in range(self.noted - 1, first, -1) if b"data:" in self.chunks[k]), first)
            self.last_event_ns = self.chunk_ns[latest]
        return True

    def _note_end(self, k: int) -> None:
        chunk = self.chunks[k]
        if (b"[DONE]" in chunk or len(chunk) < _SPLIT_BYTES) and self.done_ns is None and self._says_done(k):
            self.done_ns = self.chunk_ns[k]
        if b'"error"' in chunk or self.error_begun:
            self.error_begun = not self.error_begun  # the rest of the event may come with the next chunk
            if self.done_ns is None and self.streamed and self._says_error(k):
                self.done_ns = self.chunk_ns[k]

    def _note_first_token(self, first: int) -> int:
        """Index of the chunk after the one that brought the first token, or of the next that may."""
        for k in range(first, self.noted):
            if self.streamed and self.first_token.feed(self.chunks[k]):
                self.first_token_ns = self.last_event_ns = self.chunk_ns[k]
                self.events = 1
                return k + 1
        return self.noted

    def _says_done(self, k: int) -> bool:
        """Whether a line of the chunks up to this is `data: [DONE]`; a text that quotes it does not begin its line."""
        text, at = self.chunks[k], k
        while at and len(text) < len(self.chunks[k]) + _SPLIT_BYTES:
            at -= 1
            text = self.chunks[at] + text
        found = text.rfind(b"[DONE]")
        if found < 0:
            return False
        line = max(text.rfind(b"\n", 0, found), text.rfind(b"\r", 0, found)) + 1
        before, after = text[line:found].strip(b' \t"'), text[found + 6 :].lstrip(b' \t"')[:1]
        return before == b"data:" and after in (b"\n", b"\r")

    def _says_error(self, k: int) -> bool:
        """Whether this chunk, or the one before and this, hold an error event, behind which nothing good can come. Text
        that quotes one has its quotation marks escaped; an event in more pieces is met by the limit between tokens."""
        lines = b"".join(self.chunks[max(0, k - 1) : k + 1]).splitlines()
        events = (load(line.removeprefix(b"data:")) for line in lines if line.startswith(b"data:"))
        return any(type(event) is dict and is_error(event) for event in events)
