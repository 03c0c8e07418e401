"""Turns what the client saw of one request into its record: takes an `Exchange`, gives a `RequestRecord`; does no I/O.

Runs after the stream has ended, off the hot path.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from loadgen.record import (
    EMPTY,
    NOT_A_STREAM,
    OK,
    PROTOCOL,
    SHORT,
    STREAM_ERROR,
    TRANSPORT,
    TRUNCATED,
    UNDECIDED,
    OutputTokensSource,
    RequestRecord,
)
from loadgen.wire.exchange import Exchange
from loadgen.wire.reasons import LONGEST, answered_message, http_reason, printable
from loadgen.wire.stream import NO_COUNT, Stream, read_stream
from loadgen.wire.whole import read_whole

EVENT_STREAM = "text/event-stream"


def decode(
    exchange: Exchange, *, count_tokens: Callable[[str], int] | None = None, ends: list[int] | None = None
) -> RequestRecord:
    """The record of one exchange.

    `count_tokens` gives the number of tokens of a text, without special tokens. It is asked once per choice, only when
    text came and the server did not count; without it N stays None. `ends` is given the bytes of the body up to the end
    of each token-carrying event, for the audit. What the target did never raises: it is data.
    """
    body = exchange.payload()
    stream: Stream | None = None
    if exchange.http_status == 200 and not exchange.streamed:
        media_type, complete = _media_type(exchange), exchange.body_complete
        stream = read_whole(body, media_type=media_type, body_complete=complete, keep_text=count_tokens is not None)
    elif exchange.http_status == 200 and _media_type(exchange) == EVENT_STREAM:
        stream = read_stream(body, body_complete=exchange.body_complete, keep_text=count_tokens is not None)
    said = stream or Stream()
    if ends is not None:
        ends += said.ends

    arrivals_ns = _arrivals_ns(exchange, said.ends)
    output_tokens, source = _output_tokens(said, count_tokens)
    status, reason = _status(exchange, body, stream)
    return RequestRecord(
        level=exchange.level,
        index=exchange.index,
        user=exchange.user,
        worker=exchange.worker,
        status=status,
        reason=printable(reason),
        scheduled_ns=exchange.scheduled_ns,
        waited_ns=exchange.waited_ns,
        dispatched_ns=exchange.dispatched_ns,
        sent_ns=exchange.sent_ns,
        send_gap_ns=exchange.send_gap_ns,
        connection_wait_ns=None if exchange.connected_ns is None else exchange.connected_ns - exchange.dispatched_ns,
        response_started_ns=exchange.response_started_ns,
        first_token_ns=int(arrivals_ns[0]) if said.ends and exchange.streamed else None,
        first_visible_ns=None
        if said.first_visible is None or not exchange.streamed
        else int(arrivals_ns[said.first_visible]),
        last_token_ns=int(arrivals_ns[-1]) if said.ends else None,
        finished_ns=_finished_ns(exchange),
        http_status=exchange.http_status,
        finish_reason=said.finish_reason,
        input_tokens=said.input_tokens,
        input_tokens_requested=exchange.input_tokens_requested,
        output_tokens=output_tokens,
        output_tokens_source=source,
        output_tokens_requested=exchange.output_tokens_requested,
        retries=exchange.retries,
        kind=exchange.kind,
        streamed=exchange.streamed,
        session=exchange.session,
        turn=exchange.turn,
        prefix_tokens=exchange.prefix_tokens,
        turn_input_tokens=exchange.turn_input_tokens,
        request_bytes=exchange.request_bytes,
        response_bytes=len(body),
        kernel_stamps=exchange.kernel_stamps,
        arrivals_ns=arrivals_ns,
        event_tokens=_event_tokens(said),
        coalesced=_coalesced(arrivals_ns),
    )


def _status(exchange: Exchange, body: bytes, stream: Stream | None) -> tuple[str, str]:
    """The status and why. The first line that holds decides; `stream` is None unless a 200 came with an event stream.

    | what happened | status |
    |---|---|
    | we ended it ourselves before `[DONE]` | `cancelled`, `censored` |
    | the server answered another code than 200, whatever came after | `http_<code>` |
    | an error event, or a finish reason that is a failure | `stream_error` |
    | the client saw a failure before `[DONE]` | that failure: `connect`, `transport`, a timeout, `protocol` |
    | no answer, and nobody knows why | `transport` |
    | 200 with another content type | `not_a_stream` |
    | an event that is not a JSON object | `protocol` |
    | no `[DONE]`, and the body cut off | `truncated` |
    | lines, but not a single event | `not_a_stream` |
    | no `[DONE]`, and a choice without finish reason | `truncated` |
    | no token | `empty` |
    | a number of tokens was forced, and the server counted fewer | `short` |
    | none of these | `ok` |

    Of an answer that was asked for whole, `[DONE]` is the end of its JSON object; what is no such object is `protocol`.

    After `[DONE]` the answer is complete, so a connection that then breaks, hangs or is closed by us spoils nothing. After
    an error event nothing good can come: what the server said tells more than the reset or the silence that follows.
    """
    done = stream is not None and stream.done
    failure = None if done else exchange.failure
    code = exchange.http_status

    if failure is not None and failure[0] in UNDECIDED:
        return failure[0], failure[1] or failure[0]
    if code is not None and code != 200:
        return f"http_{code}", http_reason(code, body)
    if failure is not None and (stream is None or stream.error is None):
        return failure[0], failure[1] or failure[0]
    if code is None:
        return TRANSPORT, "the connection ended without an answer"
    if stream is None:
        return NOT_A_STREAM, _not_a_stream_reason(exchange, body)
    if stream.error is not None:
        return STREAM_ERROR, stream.error
    if stream.broken is not None:
        return PROTOCOL, stream.broken
    if not done and not exchange.body_complete:
        return TRUNCATED, "the connection ended inside the body" + (", before [DONE]" if exchange.streamed else "")
    if not done and stream.cut:
        return TRUNCATED, "the body ended inside an event, before [DONE]"
    if stream.only_stray:
        message = answered_message(body)
        return NOT_A_STREAM, "the body holds no event" + (f": {message}" if message else "")
    if not done and (not stream.finished or stream.finished != stream.choices):
        return TRUNCATED, "the body ended without finish reason and without [DONE]"
    if not stream.ends:
        return EMPTY, "no event carried a token" if exchange.streamed else "the answer holds no token"
    if _is_short(exchange, stream.output_tokens):
        return SHORT, "the server counted fewer output tokens than it was told to produce"
    return OK, ""


def _is_short(exchange: Exchange, counted: int | None) -> bool:
    """Only the server's own count can tell: the text of random tokens often has fewer tokens when tokenised again."""
    wanted = exchange.output_tokens_requested
    return exchange.output_forced and wanted is not None and counted is not None and counted < wanted


def _not_a_stream_reason(exchange: Exchange, body: bytes) -> str:
    reason = f"the content type is {_media_type(exchange) or 'missing'}, not {EVENT_STREAM}"
    message = answered_message(body)
    return (f"{reason}: {message}" if message else reason)[:LONGEST]


def _media_type(exchange: Exchange) -> str:
    return exchange.content_type.partition(";")[0].strip().lower()


def _finished_ns(exchange: Exchange) -> int:
    if exchange.finished_ns is not None:
        return exchange.finished_ns
    return exchange.chunk_ns[-1] if exchange.chunk_ns else exchange.dispatched_ns


def _arrivals_ns(exchange: Exchange, ends: list[int]) -> NDArray[np.int64]:
    """shape (events,): the stamp of the chunk in which each event's last byte lies; never decreasing."""
    if not ends:
        return np.empty(0, np.int64)
    chunk_ns = np.maximum.accumulate(np.array(exchange.chunk_ns, np.int64))
    # The first chunk that reaches so far; an empty chunk after it brought nothing.
    chunk_ends = exchange.chunk_ends.tolist()
    first = bisect_left(chunk_ends, ends[0])
    if chunk_ends[first : first + len(ends)] == ends:  # a chunk for each, as nearly always
        return chunk_ns[first : first + len(ends)]
    return chunk_ns[np.searchsorted(chunk_ends, ends, side="left")]


def _coalesced(arrivals_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """shape (events,): whether an event has the very stamp of a neighbour.

    Equal stamps, not equal chunks: one read may be handed on in several pieces, and a gap of 0 is never a measurement.
    """
    coalesced = np.zeros(len(arrivals_ns), np.bool_)
    same = arrivals_ns[1:] == arrivals_ns[:-1]
    coalesced[1:] = same
    coalesced[:-1] |= same
    return coalesced


def _output_tokens(
    stream: Stream, count_tokens: Callable[[str], int] | None
) -> tuple[int | None, OutputTokensSource | None]:
    counted = stream.output_tokens
    if counted is not None:
        return counted, "usage"
    if count_tokens is None or not stream.texts:
        return None, None
    return sum(map(count_tokens, stream.whole_texts())), "tokenized"


def _event_tokens(stream: Stream) -> NDArray[np.int32] | None:
    """shape (events,): tokens of each event, from the running counts that the server sent with them; else None.

    What the server counted after the last token-carrying event (an end-of-sequence token, or the count of an event that
    had none) belongs to that event. Counts that do not fit (missing in between, an event without a token, a smaller
    total, several choices counted apart) say nothing about any event.
    """
    counts, total = stream.counts, stream.output_tokens
    if not counts or total is None or len(stream.choices) > 1 or total < counts[-1] or counts[0] == NO_COUNT:
        return None
    if total == len(counts) and counts == list(range(1, total + 1)):  # nearly every server; and arrays are slow to make
        return np.ones(total, np.int32)
    if counts[-1] != NO_COUNT and len(counts) > 1 and counts[-1] <= counts[-2]:
        return None
    event_tokens = np.diff(np.array([*counts[:-1], total], np.int64), prepend=0)
    return event_tokens.astype(np.int32) if (event_tokens > 0).all() else None
