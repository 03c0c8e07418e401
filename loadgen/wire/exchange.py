"""What the client saw of one request, raw: the bytes of the answer, when each read arrived, and how the connection ended.

Filled by the transport and the client on the hot path; turned into a `RequestRecord` by `decode` after the stream has ended.
"""

from __future__ import annotations

import dataclasses
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, Protocol

from loadgen.wire.payload import load
from loadgen.wire.sse import FirstToken
from loadgen.wire.tokens import is_error

Endpoint = Literal["chat", "completions"]


_DATA = b"data:"

# A chunk may hold only the last part of `data: [DONE]`; so much before it is enough for the marks that servers send.
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


def _integers() -> array[int]:
    return array("q")


@dataclass(slots=True, eq=False)
class Exchange:
    """One request on the wire. A chunk is what one read brought of the payload (without HTTP's framing); chunk i arrived at
    `chunk_ns[i]` on the monotonic clock."""

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
    body: bytearray = field(default_factory=bytearray)
    """The chunks that were joined, all but `fresh`: one object, however many tokens a stream has."""
    chunk_ends: array[int] = field(default_factory=_integers)
    """shape (joined chunks,): bytes of `body` up to the end of each."""
    chunk_ns: array[int] = field(default_factory=_integers)
    """shape (chunks,): arrivals, of `fresh` too."""
    fresh: list[bytes] = field(default_factory=list)
    """The chunks that came since they were joined the last time."""
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
    """Whether the latest chunk that was looked at may hold the beginning of an error event."""
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
        self.fresh.append(chunk)
        self.chunk_ns.append(arrival_ns)
        self.last_arrival_ns = arrival_ns

    def payload(self) -> bytes:
        """All that came of the body."""
        self._join()
        return bytes(self.body)

    def chunks(self) -> list[bytes]:
        """The same, chunk by chunk."""
        self._join()
        return [self._chunk(k) for k in range(len(self.chunk_ends))]

    def snapshot(self, **changes: Any) -> Exchange:
        """A copy of what has arrived, to decode and not to go on with, with these changes; what arrives later is not in it."""
        self._join()
        return dataclasses.replace(
            self, body=self.body[:], chunk_ends=self.chunk_ends[:], chunk_ns=self.chunk_ns[:], fresh=[], **changes
        )

    def note_chunks(self, now_ns: int) -> bool:
        """Notes tokens and ends in the chunks that came since the last call; False when there are none."""
        self._join()
        first, self.noted, self.noted_ns = self.noted, len(self.chunk_ends), now_ns
        if first == self.noted:
            return False
        body, start = self.body, self._start(first)
        done_may_be_in = body.find(b"[DONE]", max(0, start - _SPLIT_BYTES)) >= 0
        if done_may_be_in or self.error_begun or body.find(b'"error"', start) >= 0:
            for k in range(first, self.noted):
                self._note_end(k)
        if self.first_token_ns is None:
            start = self._note_first_token(first)
        start = max(0, start + 1 - len(_DATA))  # the first may have been cut
        if events := body.count(_DATA, start):
            self.events += events
            self.last_event_ns = self.chunk_ns[bisect_left(self.chunk_ends, body.rfind(_DATA, start) + len(_DATA))]
        return True

    def _join(self) -> None:
        ends = list(accumulate(map(len, self.fresh), initial=len(self.body)))
        self.body += b"".join(self.fresh)
        self.chunk_ends.fromlist(ends[1:])
        self.fresh.clear()

    def _start(self, k: int) -> int:
        return self.chunk_ends[k - 1] if k > 0 else 0

    def _chunk(self, k: int) -> bytes:
        return bytes(self.body[self._start(k) : self.chunk_ends[k]])

    def _note_end(self, k: int) -> None:
        if self.done_ns is None and self.streamed and self._says_done(k):
            self.done_ns = self.chunk_ns[k]
        if self.error_begun or self.body.find(b'"error"', self._start(k), self.chunk_ends[k]) >= 0:
            self.error_begun = not self.error_begun  # the rest of the event may come with the next chunk
            if self.done_ns is None and self.streamed and self._says_error(k):
                self.done_ns = self.chunk_ns[k]

    def _note_first_token(self, first: int) -> int:
        """Where the chunk ends that brought the first token; else, where all ends that came."""
        for k in range(first, self.noted):
            if self.streamed and self.first_token.feed(self._chunk(k)):
                self.first_token_ns = self.last_event_ns = self.chunk_ns[k]
                self.events = 1
                return self.chunk_ends[k]
        return len(self.body)

    def _says_done(self, k: int) -> bool:
        """Whether a line that ends in this chunk, or shortly before it, is `data: [DONE]`. What only ends so is a quotation: a
        line whose beginning is not in sight is none."""
        begin = max(0, self._start(k) - _SPLIT_BYTES)
        text = bytes(self.body[begin : self.chunk_ends[k]])
        found = text.rfind(b"[DONE]")
        line = max(text.rfind(b"\n", 0, max(0, found)), text.rfind(b"\r", 0, max(0, found))) + 1
        if found < 0 or (line == 0 and begin > 0):
            return False
        before, after = text[line:found].rstrip(b' \t"'), text[found + 6 :].lstrip(b' \t"')[:1]
        return before == _DATA and after in (b"\n", b"\r")

    def _says_error(self, k: int) -> bool:
        """Whether this chunk, or the one before and this, hold an error event, behind which nothing good can come. Text
        that quotes one has its quotation marks escaped; an event in more pieces is met by the limit between tokens."""
        lines = bytes(self.body[self._start(k - 1) : self.chunk_ends[k]]).splitlines()
        events = (load(line.removeprefix(_DATA)) for line in lines if line.startswith(_DATA))
        return any(type(event) is dict and is_error(event) for event in events)
