"""When a worker whose collector is off collects after all: by growth since the least, never twice in vain, never blindly."""

from __future__ import annotations

import gc
import time

import pytest

from loadgen.worker.gc_pauses import GcPauses
from loadgen.worker.lag import LagLog
from loadgen.worker.memory import MemoryGuard, collection_due, resident_bytes

MB = 1 << 20
MS = 1_000_000


class Process:
    """A process of so much memory, of which a collection frees what is garbage."""

    def __init__(self, needed: int | None) -> None:
        self.needed = needed
        self.garbage = 0
        self.collections = 0
        self.guard = MemoryGuard(self.resident, self.collect)

    def resident(self) -> int | None:
        return None if self.needed is None else self.needed + self.garbage

    def collect(self) -> None:
        self.collections += 1
        self.garbage = 0


@pytest.mark.parametrize(
    ("resident_mb", "lowest_mb", "due"),
    [(90, 90, False), (346, 90, False), (347, 90, True), (1500, 1000, False), (1501, 1000, True), (80, 90, False)],
)
def test_a_collection_is_due_after_256_mb_or_half_as_much_again(resident_mb: int, lowest_mb: int, due: bool) -> None:
    assert collection_due(resident_mb * MB, lowest_mb * MB) is due


def test_garbage_is_collected_each_time_that_it_has_grown_too_far() -> None:
    process = Process(90 * MB)
    process.guard.begin_level()
    for _ in range(100):
        process.garbage += 10 * MB
        process.guard.look()
    assert process.collections == 3
    assert process.garbage < 256 * MB


def test_memory_that_is_needed_is_collected_in_vain_a_few_times_only() -> None:
    process = Process(90 * MB)
    for _ in range(400):
        assert process.needed is not None
        process.needed += 10 * MB
        process.guard.look()
    assert process.needed == 4090 * MB
    assert 1 <= process.collections <= 7


def test_a_new_level_counts_from_what_it_begins_with() -> None:
    process = Process(90 * MB)
    process.guard.look()
    process.needed = 300 * MB
    process.guard.begin_level()
    process.needed = 500 * MB
    process.guard.look()
    assert process.collections == 0


def test_where_memory_is_not_known_nothing_is_collected() -> None:
    process = Process(None)
    process.guard.begin_level()
    process.guard.look()
    assert process.collections == 0


@pytest.mark.skipif(resident_bytes() is None, reason="the system does not tell")
def test_resident_memory_grows_with_what_is_written() -> None:
    before = resident_bytes()
    held = bytearray(b"x") * (64 * MB)
    after = resident_bytes()
    assert before is not None
    assert after is not None
    assert 32 * MB < after - before < 200 * MB, len(held)


def test_collections_are_counted_whoever_asked_for_them_until_the_counting_ends() -> None:
    pauses = GcPauses()
    try:
        assert [pauses.count, pauses.total_ns, pauses.max_ns, pauses.take_peak_ns()] == [0, 0, None, 0]
        before_ns = time.monotonic_ns()
        gc.collect()
        gc.collect(0)
        spent_ns = time.monotonic_ns() - before_ns
        assert pauses.count == 2
        assert pauses.max_ns is not None
        assert 0 < pauses.max_ns < pauses.total_ns <= spent_ns
        assert [pauses.take_peak_ns(), pauses.take_peak_ns()] == [pauses.max_ns, 0]
        pauses.begin()
        assert [pauses.count, pauses.max_ns] == [0, None]
    finally:
        pauses.stop()
        pauses.stop()
    gc.collect()
    assert pauses.count == 0


def test_an_automatic_collection_is_counted_too() -> None:
    # Somebody's code in the worker may have switched the collector on again.
    thresholds, pauses = gc.get_threshold(), GcPauses()
    try:
        gc.enable()
        gc.set_threshold(50)
        kept = [[] for _ in range(10_000)]  # type: ignore[var-annotated]
        assert pauses.count > 0, len(kept)
    finally:
        gc.set_threshold(*thresholds)
        pauses.stop()


def test_a_probe_that_slept_through_a_stall_counts_for_each_time_it_was_due() -> None:
    lag = LagLog(10 * MS)
    lag.woken(-300)
    lag.woken(2 * MS)
    lag.woken(35 * MS)
    assert list(lag.samples_ns.kept) == [0, 2 * MS, 35 * MS, 25 * MS, 15 * MS, 5 * MS]
    assert [lag.take_peak_ns(), lag.take_peak_ns()] == [35 * MS, None]
    lag.begin()
    assert list(lag.samples_ns.kept) == []
