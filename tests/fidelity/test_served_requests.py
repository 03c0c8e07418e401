"""Requests a second by the share of their tokens in the window: as sure as it says, and surer than counting whole ones."""

from __future__ import annotations

import dataclasses
import itertools
import random
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from loadgen.measured_run import read_run
from loadgen.record import CENSORED, RequestRecord
from loadgen.stats.level import level_object
from tests.level_records import normal, plan
from tests.virtual_run import VirtualRun

SECOND = 10**9


def levels(spread: float, seeds: int, folder: Path) -> list[dict[str, object]]:
    runs = (VirtualRun(concurrency=(8,), window_s=20, warmup_s=5, spread=spread, seed=seed) for seed in range(seeds))
    return [read_run(run.write(folder / str(number))).levels[0] for number, run in enumerate(runs)]


@pytest.mark.parametrize("spread", [0.3, 0.8])
def test_the_interval_holds_the_long_runs_rate_as_often_as_it_says(spread: float, tmp_path: Path) -> None:
    measured = levels(spread, 24, tmp_path)
    truth = statistics.fmean(level["completed_request_rate"] for level in measured)
    held = sum(low <= truth <= high for low, high in (level["intervals"]["served_request_rate"] for level in measured))
    assert held >= 21, "of 24 intervals of 95 %"
    assert statistics.fmean(level["served_request_rate"] for level in measured) == pytest.approx(truth, rel=0.01)


def test_users_in_step_make_whole_requests_a_poor_count_of_the_rate(tmp_path: Path) -> None:
    (level,) = levels(0.0, 1, tmp_path)
    width = {
        name: (level["intervals"][name][1] - level["intervals"][name][0]) / level[name]
        for name in ("completed_request_rate", "served_request_rate")
    }
    assert width["served_request_rate"] < width["completed_request_rate"] / 2


def test_where_answers_last_nearly_as_long_as_blocks_of_the_window_the_arrivals_decide_how_sure_the_rate_is() -> None:
    held = 0
    for seed in range(60):
        due_s = itertools.takewhile(lambda at: at < 41, itertools.accumulate(arrivals(seed)))
        records = [normal(50, 100, 100, sent_ms=1e3 * at, scheduled_ms=1e3 * at) for at in due_s]
        at = plan(25e3, 41e3, concurrency=None, drained_ns=66 * SECOND, request_rate=4.0)
        low, high = level_object(at, records, [])["intervals"]["served_request_rate"]
        held += low <= 4.0 <= high
    assert held >= 54, "of 60 intervals of 95 %"


def arrivals(seed: int) -> Iterator[float]:
    """Seconds between Poisson arrivals, four a second."""
    draw = random.Random(seed)
    while True:
        yield draw.expovariate(4.0)


def with_rare_long_answers(users: int, until_ms: float) -> Iterator[RequestRecord]:
    """Of each user one answer in 33 takes 80 s, and the others one."""
    draw = random.Random(1)
    for user in range(users):
        sent_ms = -draw.random() * 1_000
        while sent_ms < until_ms:
            tokens = 800 if draw.random() < 0.03 else 10
            yield normal(tokens, 100, 100, sent_ms=sent_ms, user=user, output_tokens_requested=tokens)
            sent_ms += 100 * tokens


def cut_off(record: RequestRecord, end_ns: int) -> RequestRecord:
    if record.finished_ns <= end_ns:
        return record
    arrivals = record.arrivals_ns[record.arrivals_ns < end_ns]
    return dataclasses.replace(
        record,
        status=CENSORED,
        finished_ns=end_ns,
        arrivals_ns=arrivals,
        coalesced=np.zeros(arrivals.size, np.bool_),
        output_tokens=None,
        last_token_ns=int(arrivals[-1]) if arrivals.size else None,
    )


def test_answers_that_outlast_the_drain_are_counted_in_what_the_users_leave_open() -> None:
    users, window_s, windows = 16, 45, 40
    records = list(with_rare_long_answers(users, (windows + 4) * window_s * 1e3))
    ended = sum(2 * window_s * SECOND <= one.finished_ns < (windows + 2) * window_s * SECOND for one in records)
    truth, held = ended / (windows * window_s), 0
    for number in range(2, windows + 2):
        begin_ns, end_ns = number * window_s * SECOND, (number + 1) * window_s * SECOND
        seen = [
            cut_off(one, end_ns + 30 * SECOND)
            for one in records
            if one.finished_ns > begin_ns - SECOND and one.dispatched_ns < end_ns
        ]
        at = plan(begin_ns / 1e6, end_ns / 1e6, concurrency=users, drained_ns=end_ns + 30 * SECOND)
        low, high = level_object(at, seen, [])["intervals"]["served_request_rate"]
        held += low <= truth <= high
    assert held >= 35, "of 40 intervals of 95 %"
