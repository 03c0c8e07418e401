"""Takes a run's levels with their records, gives one CSV row a request; instants count from its level's window."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

from loadgen.record import RequestRecord
from loadgen.run_reader import LevelData
from loadgen.stats.columns import columns
from loadgen.stats.latencies import per_request_ns
from loadgen.stats.load import within

_LATENCIES = {
    "ttft_ms": "ttft",
    "ttft_from_schedule_ms": "ttft_from_schedule",
    "ttfo_ms": "ttfo",
    "tpot_ms": "tpot",
    "e2el_ms": "e2el",
    "e2el_from_schedule_ms": "e2el_from_schedule",
}
_INSTANTS = {
    "scheduled_s": "scheduled_ns",
    "dispatched_s": "dispatched_ns",
    "sent_s": "sent_ns",
    "first_token_s": "first_token_ns",
    "last_token_s": "last_token_ns",
    "finished_s": "finished_ns",
}
_AS_RECORDED = (
    "status",
    "reason",
    "input_tokens",
    "input_tokens_requested",
    "output_tokens",
    "output_tokens_requested",
    "output_tokens_source",
    "finish_reason",
    "http_status",
    "retries",
    "request_bytes",
    "response_bytes",
    "kernel_stamps",
)
COLUMNS = (
    "level",
    "run",
    "concurrency",
    "request_rate",
    "index",
    "worker",
    "user",
    "kind",
    "in_window",
    *_AS_RECORDED,
    *_INSTANTS,
    *_LATENCIES,
    "max_chunk_gap_ms",
    "events",
    "coalesced_events",
)


def write_requests(file: TextIO, levels: Iterable[LevelData]) -> int:
    """Writes a heading and a row for each request, in the order in which they ended; gives how many. Absent cells are empty."""
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    count = 0
    for data in levels:
        for row in _rows(data):
            writer.writerow(row)
            count += 1
    return count


def _rows(data: LevelData) -> Iterator[Mapping[str, Any]]:
    plan = data.plan
    records = sorted((one for one in data.records if one.level == plan.level), key=lambda one: one.finished_ns)
    c = columns(records)
    inside = within(c.anchor_ns, (plan.window_start_ns, plan.window_end_ns)).tolist()
    durations = {name: per_request.tolist() for name, per_request in per_request_ns(c).items()}
    for place, record in enumerate(records):
        yield {
            "level": plan.level,
            "run": plan.run,
            "concurrency": plan.concurrency,
            "request_rate": plan.request_rate,
            "index": record.index,
            "worker": record.worker,
            "user": record.user,
            "kind": record.kind,
            "in_window": _flag(inside[place]),
            **{name: _cell(getattr(record, name)) for name in _AS_RECORDED},
            **{name: _seconds(getattr(record, of), plan.window_start_ns) for name, of in _INSTANTS.items()},
            **{name: _milliseconds(durations[of][place]) for name, of in _LATENCIES.items()},
            "max_chunk_gap_ms": _longest_gap_ms(record),
            "events": record.arrivals_ns.size,
            "coalesced_events": int(record.coalesced.sum()),
        }


def _cell(value: Any) -> Any:
    return _flag(value) if isinstance(value, bool) else value


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _seconds(instant_ns: int | None, start_ns: int) -> str | None:
    return None if instant_ns is None else f"{(instant_ns - start_ns) / 1e9:.9f}"


def _milliseconds(value_ns: float) -> str | None:
    return None if math.isnan(value_ns) else f"{value_ns / 1e6:.6f}"


def _longest_gap_ms(record: RequestRecord) -> str | None:
    gaps = record.arrivals_ns[1:] - record.arrivals_ns[:-1]
    return f"{int(gaps.max()) / 1e6:.6f}" if gaps.size else None
