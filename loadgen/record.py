"""The waist of the program: what is known of one request, and the plan of the level it belongs to.

Left of these types is network and time; right of them everything is pure and can be rerun from a file.
All instants are integer nanoseconds of the monotonic clock of the machine that took them; `None` means "did not happen".
The meaning of each instant and status is in docs/metrics.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

SCHEMA_VERSION = 1

OK = "ok"
EMPTY = "empty"
SHORT = "short"
TRUNCATED = "truncated"
STREAM_ERROR = "stream_error"
PROTOCOL = "protocol"
TIMEOUT_CONNECT = "timeout_connect"
TIMEOUT_FIRST_BYTE = "timeout_first_byte"
TIMEOUT_FIRST_TOKEN = "timeout_first_token"
TIMEOUT_BETWEEN_TOKENS = "timeout_between_tokens"
TIMEOUT_TOTAL = "timeout_total"
CONNECT = "connect"
TRANSPORT = "transport"
NOT_A_STREAM = "not_a_stream"
CANCELLED = "cancelled"
CENSORED = "censored"

STATUSES = frozenset(
    {
        OK,
        EMPTY,
        SHORT,
        TRUNCATED,
        STREAM_ERROR,
        PROTOCOL,
        TIMEOUT_CONNECT,
        TIMEOUT_FIRST_BYTE,
        TIMEOUT_FIRST_TOKEN,
        TIMEOUT_BETWEEN_TOKENS,
        TIMEOUT_TOTAL,
        CONNECT,
        TRANSPORT,
        NOT_A_STREAM,
        CANCELLED,
        CENSORED,
    }
)
"""The closed list of ends; `http_<code>` (a status other than 200) belongs to it too."""

UNDECIDED = frozenset({CANCELLED, CENSORED})
"""Ends that we made ourselves: neither a success nor a failure of the target."""

OutputTokensSource = Literal["usage", "tokenized"]


def is_status(status: str) -> bool:
    """Whether `status` belongs to the closed list."""
    return status in STATUSES or (status.startswith("http_") and status[5:].isdigit())


def is_failure(status: str) -> bool:
    """Whether `status` counts as a failure of the target (not ok, and not ended by us)."""
    return status != OK and status not in UNDECIDED


def _no_arrivals() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


def _no_flags() -> NDArray[np.bool_]:
    return np.empty(0, np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class RequestRecord:
    """One request, as measured by the worker that sent it.

    `arrivals_ns`, `event_tokens` and `coalesced` have one entry for every *token-carrying* event, in order of arrival.
    """

    level: int
    """Index of the level (0, 1, …) that was active when the request was dispatched."""
    index: int
    """Number k of the prompt within the level; (level, index) is unique in a run."""
    user: int
    """Number of the user on its worker."""
    worker: int
    """Locust's index of the worker."""
    status: str
    """`ok` or how the request failed: one of `STATUSES` or `http_<code>`."""
    dispatched_ns: int
    """When the worker began to send it."""
    finished_ns: int
    """When the stream ended, failed, was cancelled, or was given up as censored."""
    reason: str = ""
    """Why it is not ok, in words without ids or times; never empty for a failure."""
    scheduled_ns: int | None = None
    """When the arrival schedule wanted it sent; None in a closed loop."""
    waited_ns: int | None = None
    """How long it then waited for a place among the requests in flight, of which there may be so many; not the worker's
    own delay, which is dispatched − scheduled − waited. None in a closed loop."""
    sent_ns: int | None = None
    """Just before the `send` call that handed the last byte of the request to the kernel."""
    send_gap_ns: int | None = None
    """The instant just after that call minus `sent_ns`: the bound of its error."""
    connection_wait_ns: int | None = None
    """From `dispatched_ns` until a connection, new or kept alive, was at hand: connecting, TLS, or waiting for one of
    `target.max_connections`. None where there never was one."""
    response_started_ns: int | None = None
    """Arrival of the first byte of the response headers."""
    first_token_ns: int | None = None
    """Arrival of the first event that carries a generated token, in any channel."""
    first_visible_ns: int | None = None
    """The same for visible output only (not reasoning)."""
    last_token_ns: int | None = None
    """Arrival of the last token-carrying event."""
    http_status: int | None = None
    finish_reason: str | None = None
    input_tokens: int | None = None
    """`usage.prompt_tokens` as the server counted them."""
    input_tokens_requested: int | None = None
    output_tokens: int | None = None
    """N: `usage.completion_tokens`, else one tokenisation of the joined text; never the number of events."""
    output_tokens_source: OutputTokensSource | None = None
    output_tokens_requested: int | None = None
    retries: int = 0
    """How often it was sent again, because a kept-alive connection turned out to be closed before any byte came back."""
    kind: int = 0
    """Index of its class in the workload."""
    streamed: bool = True
    """Whether a stream was asked for. Else the answer came whole: it has no first token, and its only arrival, with all its
    tokens, is that of its last byte."""
    session: int | None = None
    """Number of the conversation within the level that it is a turn of; None where requests stand alone."""
    turn: int | None = None
    """Which of the conversation's turns it is, from 1."""
    prefix_tokens: int | None = None
    """Tokens at the beginning of the prompt that the server was given before: in the turn before this one, or as a
    beginning that requests share, tools included. None where requests stand alone, and have no tools."""
    turn_input_tokens: int | None = None
    """Tokens that a later turn adds to the turn before it and its answer: the user's message, and the template around."""
    request_bytes: int = 0
    response_bytes: int = 0
    """Bytes of the response body."""
    kernel_stamps: bool = False
    """Whether arrivals are the kernel's receive stamps (else taken in user space, first thing in the read)."""
    arrivals_ns: NDArray[np.int64] = field(default_factory=_no_arrivals)
    """shape (events,): arrival of each token-carrying event, never decreasing."""
    event_tokens: NDArray[np.int32] | None = None
    """shape (events,): tokens that each event brought, where the server said so (`continuous_usage_stats`); else None."""
    coalesced: NDArray[np.bool_] = field(default_factory=_no_flags)
    """shape (events,): True where the event came in one read with another token-carrying event. Such an arrival bounds,
    it does not measure: the gap that *ends* in a coalesced event stays out of ITL."""


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """What a level asked for and when it was measured; instants are of the controller's monotonic clock."""

    level: int
    concurrency: int | None
    """Users of a closed loop; None in an open one."""
    window_start_ns: int
    window_end_ns: int
    run: int = 0
    """Which repeat of the sweep it belongs to, from 0."""
    server: dict[str, Any] = field(default_factory=dict)
    """Of a server that we start: `max_num_seqs` and every setting that is swept; else empty."""
    effective: dict[str, Any] | None = None
    """What the server ran with, as far as it told (`server.effective`)."""
    drained_ns: int | None = None
    """When the last request of the window had ended or was given up; None when the level was interrupted."""
    workers: int = 1
    """Workers that took part from the beginning."""
    lost_workers: int = 0
    """Of these, workers that were missing at some time of the level."""
    late_workers: int = 0
    """Workers that tried to join during the level; Locust may have moved users to them before they were sent away."""
    settled: bool | None = None
    """Whether it was steady when its window opened; None when the scenario gave the warm-up."""
    settle_reason: str = ""
    """Why it counted as steady, or why not."""
    window_reason: str = ""
    """Why the window is so long; empty when the scenario gave its length."""
    missing_records: int = 0
    """Records that workers said they had written for the level and that are not in the spools."""
    interrupted: bool = False
    dataset_rows: int | None = None
    """Rows of the dataset that requests are taken from; None without one."""
    mean_turns: float = 1.0
    """Turns that a conversation was to have on average; 1 where requests stand alone."""
    think_time_s: float | None = 0.0
    """Of a closed loop: how long a user waits on average before its next request; None where its tasks decide that."""
    request_rate: float | None = None
    """Of an open loop: requests a second that were asked for; the mean of a rate that changes."""
    arrivals: dict[str, Any] | None = None
    """Of an open loop: its schedule (`loadgen.arrivals.schedule.Schedule`)."""
    arrivals_start_ns: int | None = None
    """The instant that the schedule's offsets count from."""
    max_in_flight: int | None = None
    """Of an open loop: most requests in flight, over all workers; None without a limit."""
    overflow: str | None = None
    """What becomes of an arrival beyond that: `queue` or `drop`."""
    load_changed_ns: int | None = None
    """When the load was changed before the window's requests had ended; None where it went on until then."""
    step: int | None = None
    """Which one it is of the levels that the scenario lists; a level that was run again has the same. None of other levels."""
    interrupted_by: str = ""
    """Why it was interrupted, where the server under test or a guard of `safety` was the reason."""
    soak_window_s: float | None = None
    """Of a soak: length of the windows that it is watched in; None of another level."""
    clock_change_ns: int | None = None
    """Most by which a worker's clock offset changed from the level's beginning to its end; None where all share one clock."""


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """How well one worker kept up during the window of one level: the generator's own figures, never the server's."""

    worker: int
    level: int
    loop_lag_p50_ms: float | None
    """How late a probe on the event loop was woken, over the instants at which it was due (nearest rank)."""
    loop_lag_p99_ms: float | None
    loop_lag_max_ms: float | None
    read_delay_p99_ms: float | None
    """Processing minus kernel arrival; None without kernel stamps."""
    cpu_loop_thread: float | None
    """CPU of the loop thread / window length: 1.0 is one full core."""
    cpu_process: float | None
    refused_stamps: int
    """Kernel stamps that lay outside the possible span (a step of the wall clock) and were replaced by the read's time."""
    clock_offset_ns: int
    """Worker's monotonic clock minus the controller's, from the ping with the least round trip."""
    clock_error_ns: int
    """Half of that round trip: the bound of the offset's error."""
    hub_lag_p50_ms: float | None = None
    """The same as the loop's lag, of a probe in the gevent hub."""
    hub_lag_p99_ms: float | None = None
    hub_lag_max_ms: float | None = None
    read_delay_p50_ms: float | None = None
    """As P99, over requests."""
    read_delay_max_ms: float | None = None
    gc_pauses: int | None = None
    """Garbage collections inside the window, of any generation; there should be none."""
    gc_pause_total_ms: float | None = None
    gc_pause_max_ms: float | None = None
    """None without a collection."""
    resident_bytes: int | None = None
    """Memory of the process at the window's end; None where the system does not tell."""
    dropped: int | None = None
    """Arrivals of the window that were not sent, since as many requests as may be were in flight; None in a closed loop."""
