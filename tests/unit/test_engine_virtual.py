"""The closed loop in virtual time: its records are what the settings say, to the nanosecond."""

import time

import numpy as np
import pytest

from loadgen.record import CENSORED, OK, RequestRecord, is_failure
from loadgen.virtual import closed_loop
from server.simulator.settings import SimulatorSettings

MS = 1_000_000
SECOND = 1_000 * MS


def ttfts_ns(records: list[RequestRecord]) -> list[int]:
    return [r.first_token_ns - r.sent_ns for r in records if r.first_token_ns is not None and r.sent_ns is not None]


def output_rate(records: list[RequestRecord], from_ns: int, to_ns: int) -> float:
    arrivals = np.concatenate([r.arrivals_ns for r in records])
    return float(((arrivals >= from_ns) & (arrivals < to_ns)).sum() / ((to_ns - from_ns) / SECOND))


def test_one_user_sees_the_time_of_its_own_steps() -> None:
    records = closed_loop(
        SimulatorSettings(), concurrency=1, input_tokens=128, output_tokens=5, duration_ns=SECOND, start_ns=7, level=3
    )
    first = records[0]
    assert (first.level, first.index, first.user, first.status) == (3, 0, 0, OK)
    assert first.sent_ns == first.dispatched_ns == 7
    assert (first.arrivals_ns - 7).tolist() == [round((33.6 + 10 * i) * MS) for i in range(5)]
    assert first.first_token_ns == first.first_visible_ns == first.arrivals_ns[0]
    assert first.last_token_ns == first.finished_ns == first.arrivals_ns[-1]
    assert records[1].sent_ns == first.finished_ns
    assert (first.input_tokens, first.output_tokens, first.output_tokens_source) == (128, 5, "usage")


def test_every_token_is_in_one_record_and_none_comes_after_the_end() -> None:
    end_ns = 20 * SECOND
    records = closed_loop(
        SimulatorSettings(), concurrency=7, input_tokens=100, output_tokens=30, duration_ns=end_ns, start_ns=0
    )
    done = [r for r in records if r.status == OK]
    open_ones = [r for r in records if r.status == CENSORED]
    assert len(done) + len(open_ones) == len(records)
    assert sorted(r.index for r in records) == list(range(len(records)))
    assert sorted(r.user for r in open_ones) == list(range(7)), "one request of every user is open when the load stops"
    assert all(r.arrivals_ns.size == 30 for r in done)
    assert all(r.arrivals_ns.size < 30 and r.output_tokens is None and r.reason for r in open_ones)
    assert not any(is_failure(r.status) for r in records)
    assert max(int(r.arrivals_ns[-1]) for r in records if r.arrivals_ns.size) <= end_ns
    assert all(r.finished_ns == end_ns for r in open_ones)


def test_throughput_rises_to_the_ceiling_of_max_num_seqs_and_then_only_the_queue_grows() -> None:
    settings = SimulatorSettings(max_num_seqs=4)

    def level(concurrency: int) -> tuple[float, float]:
        records = closed_loop(
            settings,
            concurrency=concurrency,
            input_tokens=16,
            output_tokens=100,
            duration_ns=60 * SECOND,
            start_ns=0,
            ramp_ns=SECOND,
        )
        return output_rate(records, 10 * SECOND, 60 * SECOND), float(np.median(ttfts_ns(records))) / MS

    (one, ttft_one), (two, _), (four, ttft_four), (eight, ttft_eight) = map(level, (1, 2, 4, 8))
    assert one == pytest.approx(100 / (0.0112 + 99 * 0.01), rel=0.01)
    assert 1.8 < two / one < 2 < 3.2 < four / one < 4
    assert eight == pytest.approx(four, rel=0.02)
    assert ttft_one == pytest.approx(11.2)
    assert ttft_four < 30
    # Twice as many users as places: each waits about as long as it is served.
    assert ttft_eight == pytest.approx(1_100, rel=0.1)


def test_users_begin_along_the_ramp() -> None:
    records = closed_loop(
        SimulatorSettings(),
        concurrency=4,
        input_tokens=1,
        output_tokens=1000,
        duration_ns=SECOND,
        start_ns=0,
        ramp_ns=400 * MS,
    )
    assert sorted(r.sent_ns or 0 for r in records) == [0, 100 * MS, 200 * MS, 300 * MS]


def test_the_same_load_gives_the_same_records() -> None:
    def arrivals() -> list[list[int]]:
        records = closed_loop(
            SimulatorSettings(), concurrency=5, input_tokens=50, output_tokens=20, duration_ns=5 * SECOND
        )
        return [r.arrivals_ns.tolist() for r in records]

    assert arrivals() == arrivals()


def test_a_load_without_users_or_with_too_long_a_ramp_is_refused() -> None:
    with pytest.raises(ValueError, match="concurrency=0"):
        closed_loop(SimulatorSettings(), concurrency=0, input_tokens=1, output_tokens=1, duration_ns=1)
    with pytest.raises(ValueError, match="ramp_ns=2"):
        closed_loop(SimulatorSettings(), concurrency=1, input_tokens=1, output_tokens=1, duration_ns=1, ramp_ns=2)


def test_an_hour_of_load_takes_seconds() -> None:
    began = time.perf_counter()
    records = closed_loop(
        SimulatorSettings(), concurrency=16, input_tokens=64, output_tokens=128, duration_ns=360 * SECOND
    )
    elapsed_s = time.perf_counter() - began
    tokens = sum(r.arrivals_ns.size for r in records)
    assert tokens > 300_000
    assert tokens / elapsed_s > 200_000, "measured 1 to 2.5 million a second on an idle core"
