"""A worker that is held up shows it: a blocked loop, a blocked hub, a collection, a busy thread, each in its own figure."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from loadgen.record import WorkerHealth
from loadgen.worker.async_user import loop_thread
from loadgen.worker.health import HealthProbe
from loadgen.worker.hub_probe import HubProbe

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = pytest.mark.alone

MS = 1_000_000


class Worker:
    """The probes of a worker, on its real threads."""

    def __init__(self) -> None:
        self.thread = loop_thread()
        self.hub = HubProbe()
        self._greenlet = gevent.spawn(self.hub.run_forever)
        self.probe: HealthProbe = self.on_loop(lambda: HealthProbe(self.thread.loop, self.hub))

    def on_loop(self, function: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return function()

        return self.thread.wait(call(), timeout_s=10)

    def window(self, happens: Callable[[], object]) -> WorkerHealth:
        """The figures of a window of 0.3 s and the time that `happens` takes, in the hub."""
        gevent.sleep(0.1)
        self.on_loop(self.probe.begin)
        gevent.sleep(0.15)
        happens()
        gevent.sleep(0.15)
        figures: WorkerHealth = self.on_loop(
            lambda: self.probe.end(worker=3, level=2, clock_offset_ns=5, clock_error_ns=6)
        )
        return figures

    def stop(self) -> None:
        self.on_loop(self.probe.stop)
        self._greenlet.kill()


@pytest.fixture
def worker() -> Iterator[Worker]:
    gc.collect()
    gc.disable()
    started = Worker()
    yield started
    started.stop()
    gc.enable()


def test_a_window_in_which_nothing_happens_is_calm(worker: Worker) -> None:
    calm = worker.window(lambda: None)
    assert (calm.worker, calm.level, calm.clock_offset_ns, calm.clock_error_ns) == (3, 2, 5, 6)
    for value in (calm.loop_lag_p50_ms, calm.hub_lag_p50_ms):
        assert value is not None
        assert 0 <= value < 15
    assert (calm.read_delay_p50_ms, calm.read_delay_p99_ms, calm.read_delay_max_ms) == (None, None, None)
    assert (calm.gc_pauses, calm.gc_pause_total_ms, calm.gc_pause_max_ms) == (0, 0.0, None)
    assert calm.cpu_loop_thread is not None
    assert calm.cpu_process is not None
    assert 0 < calm.cpu_loop_thread <= calm.cpu_process < 0.8


def test_a_loop_that_is_blocked_for_80_ms_is_late_and_the_hub_is_not_to_blame(worker: Worker) -> None:
    # Sleeping gives the interpreter lock back: only the loop stands still.
    blocked = worker.window(lambda: worker.on_loop(lambda: time.sleep(0.08)))
    assert blocked.loop_lag_max_ms is not None
    assert blocked.loop_lag_p99_ms is not None
    assert blocked.hub_lag_max_ms is not None
    assert 69 < blocked.loop_lag_max_ms < 300
    # Late for a fifth of the window, so P99 over time must see it, although it is one late wake among thirty.
    assert blocked.loop_lag_p99_ms > 50
    assert blocked.hub_lag_max_ms < blocked.loop_lag_max_ms


def test_a_hub_that_is_blocked_for_80_ms_is_late_and_the_loop_is_not(worker: Worker) -> None:
    blocked = worker.window(lambda: time.sleep(0.08))
    assert blocked.hub_lag_max_ms is not None
    assert blocked.loop_lag_max_ms is not None
    assert 59 < blocked.hub_lag_max_ms < 300
    assert blocked.loop_lag_max_ms < blocked.hub_lag_max_ms


def test_a_thread_that_keeps_the_loop_busy_shows_as_its_cpu(worker: Worker) -> None:
    def burn() -> None:
        until_ns = time.thread_time_ns() + 200 * MS
        while time.thread_time_ns() < until_ns:
            pass

    busy = worker.window(lambda: worker.on_loop(burn))
    assert busy.cpu_loop_thread is not None
    assert busy.cpu_process is not None
    assert 0.1 < busy.cpu_loop_thread <= 1.0
    assert busy.cpu_process >= busy.cpu_loop_thread


def test_a_collection_inside_the_window_is_a_pause_and_one_before_it_is_not(worker: Worker) -> None:
    many: list[Any] = [[number] for number in range(300_000)]

    collected = worker.window(gc.collect)
    assert collected.gc_pauses == 1
    assert collected.gc_pause_max_ms is not None
    assert collected.gc_pause_max_ms > 1, len(many)
    assert collected.gc_pause_total_ms == collected.gc_pause_max_ms

    assert worker.window(lambda: None).gc_pauses == 0


def test_read_delays_of_answers_in_the_window_are_ranked(worker: Worker) -> None:
    def note() -> None:
        for delay_ms in range(1, 101):
            worker.probe.note_read_delay(delay_ms * MS)

    figures = worker.window(lambda: worker.on_loop(note))
    assert (figures.read_delay_p50_ms, figures.read_delay_p99_ms, figures.read_delay_max_ms) == (50, 99, 100)


def test_live_figures_are_the_worst_since_they_were_last_taken(worker: Worker) -> None:
    worker.window(lambda: worker.on_loop(lambda: time.sleep(0.08)))
    gc.collect()
    worker.on_loop(lambda: worker.probe.note_read_delay(7 * MS))
    first = worker.probe.take_live()
    assert first["loop_lag_ns"] > 69 * MS
    assert first["hub_lag_ns"] is not None
    assert first["read_delay_ns"] == 7 * MS
    assert first["gc_pause_ns"] > 0
    assert 0 < first["cpu_loop_thread"] <= first["cpu_process"]
    assert first["resident_bytes"] is None or first["resident_bytes"] > 1 << 20

    gevent.sleep(0.1)
    second = worker.probe.take_live()
    assert second["loop_lag_ns"] < first["loop_lag_ns"]
    assert (second["read_delay_ns"], second["gc_pause_ns"]) == (None, 0)
