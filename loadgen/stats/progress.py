"""What a worker tells of a level while it runs, so that its settling can be seen: token counts and finished requests.

`ProgressLog` is the worker's side and lives on its event loop; `Progress` is what goes to the controller. Clocks are
passed in; nothing here is a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from loadgen.record import OK, RequestRecord, is_failure

BIN_NS = 100_000_000
"""Length of a bin; bin b is [b, b + 1) · 100 ms of the controller's monotonic clock."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What one worker did since its last report; instants are of the controller's clock, lists have one entry each."""

    first_bin: int
    """Number of the bin that `tokens` begins with."""
    tokens: list[float]
    """Tokens that arrived in each *complete* bin, failed requests' too; an estimate, since open requests are counted."""
    user: list[int]
    """Of each finished request (ok or failed) its user; the other lists below go with it."""
    dispatched_ns: list[int]
    finished_ns: list[int]
    ttft_ns: list[int | None]
    """None for a request that is not ok; of one that was not streamed, its end-to-end latency."""

    def encode(self) -> dict[str, Any]:
        """Plain data for a message."""
        return asdict(self)

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Self:
        """What `encode` was called on. Raises TypeError for other keys."""
        return cls(**data)


class ProgressLog:
    """Collects one worker's progress, from one thread; `clock_offset_ns` is the worker's clock minus the controller's."""

    def __init__(self, *, now_ns: int, clock_offset_ns: int) -> None:
        """Begins to count at `now_ns` of the worker's clock, when no token has arrived yet."""
        self._offset_ns = clock_offset_ns
        self._noted_ns = now_ns - clock_offset_ns
        self._total = 0.0
        self._bin = self._noted_ns // BIN_NS
        self._filled = 0.0
        self._tokens: list[float] = []
        self._records: list[RequestRecord] = []

    def note_tokens(self, now_ns: int, total: float) -> None:
        """`total` tokens have arrived since the log began; call it about every 100 ms, more often is as well.

        What came between two calls is spread evenly over the time between them. A total that goes down (a failed
        request brought less than it seemed to) counts as unchanged until it is reached again.
        """
        now_ns -= self._offset_ns
        then_ns, self._noted_ns = self._noted_ns, max(now_ns, self._noted_ns)
        if now_ns <= then_ns:
            return
        before, self._total = self._total, max(total, self._total)
        a_nanosecond = (self._total - before) / (now_ns - then_ns)
        while (end_ns := (self._bin + 1) * BIN_NS) <= now_ns:
            self._tokens.append(self._filled + (end_ns - then_ns) * a_nanosecond)
            self._bin, self._filled, then_ns = self._bin + 1, 0.0, end_ns
        self._filled += (now_ns - then_ns) * a_nanosecond

    def note_finished(self, request: RequestRecord) -> None:
        """A request has ended; those that we cut off ourselves are left out."""
        if request.status == OK or is_failure(request.status):
            self._records.append(request)

    def take(self) -> Progress:
        """Everything since the last call."""
        tokens, self._tokens = self._tokens, []
        records, self._records = self._records, []
        return Progress(
            first_bin=self._bin - len(tokens),
            tokens=tokens,
            user=[r.user for r in records],
            dispatched_ns=[r.dispatched_ns - self._offset_ns for r in records],
            finished_ns=[r.finished_ns - self._offset_ns for r in records],
            ttft_ns=[
                first_ns - r.sent_ns
                if r.status == OK
                and (first_ns := r.first_token_ns if r.streamed else r.last_token_ns) is not None
                and r.sent_ns is not None
                else None
                for r in records
            ],
        )
