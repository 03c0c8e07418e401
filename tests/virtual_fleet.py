"""Tells the records of a level, made in virtual time, to a settle detector as a fleet of workers would while it runs."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

import numpy as np

from loadgen.record import RequestRecord
from loadgen.stats.progress import ProgressLog
from loadgen.stats.steady import SettleDetector, Verdict

TICK_NS = 100_000_000
REPORT_TICKS = 3


def told(
    detector: SettleDetector, records: Sequence[RequestRecord], *, workers: int, until_ns: int, from_ns: int = 0
) -> Iterator[tuple[int, Verdict]]:
    """(now, verdict) after every round of reports; user u is worker u mod `workers`'s, whose clock is u s ahead."""
    logs = [ProgressLog(now_ns=from_ns + w * 10**9, clock_offset_ns=w * 10**9) for w in range(workers)]
    mine = [[r for r in records if r.user % workers == w] for w in range(workers)]
    arrivals = [np.sort(np.concatenate([r.arrivals_ns for r in rs] or [np.empty(0, np.int64)])) for rs in mine]
    ended = [sorted(rs, key=lambda r: r.finished_ns) for rs in mine]
    taken = [0] * workers
    for tick, now_ns in enumerate(range(from_ns + TICK_NS, until_ns, TICK_NS)):
        for w, log in enumerate(logs):
            log.note_tokens(now_ns + w * 10**9, int(np.searchsorted(arrivals[w], now_ns)))
            upto = bisect.bisect_left(ended[w], now_ns, key=lambda r: r.finished_ns)
            for request in ended[w][taken[w] : upto]:
                log.note_finished(ahead(request, w * 10**9))
            taken[w] = upto
            if (tick + w) % REPORT_TICKS == 0:
                detector.update(w, log.take())
        if tick % REPORT_TICKS == 0:
            yield now_ns, detector.settled(now_ns)


def ahead(request: RequestRecord, offset_ns: int) -> RequestRecord:
    """The record as a worker whose clock is `offset_ns` ahead would have made it."""
    moved = ("dispatched_ns", "finished_ns", "sent_ns", "first_token_ns", "first_visible_ns", "last_token_ns")
    values = {name: getattr(request, name) for name in RequestRecord.__slots__}
    for name in moved:
        values[name] = None if values[name] is None else values[name] + offset_ns
    return RequestRecord(**{**values, "arrivals_ns": request.arrivals_ns + offset_ns})
