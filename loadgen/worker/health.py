"""How well the worker itself keeps up: a probe of the event loop's lag and the CPU used, over the window of a level."""

from __future__ import annotations

import asyncio
import time
from array import array

import numpy as np

from loadgen.record import WorkerHealth
from loadgen.stats.percentile import nearest_rank
from loadgen.wire.transport import WireLoop

_PROBE_S = 0.01


class HealthProbe:
    """Lives on the event loop, whose thread it measures; `begin` and `end` bracket a window."""

    def __init__(self, loop: WireLoop) -> None:
        self._loop = loop
        self._lag_ns = array("q")
        self._read_delay_ns = array("q")
        self._kernel_stamps = False
        self._probe = loop.create_task(self._measure())
        self._wall_ns = self._thread_ns = self._process_ns = 0
        self.latest_lag_ns = 0
        """The latest probe's lag, for live display."""
        self.begin()

    def begin(self) -> None:
        """Forgets what was measured so far."""
        self._lag_ns = array("q")
        self._read_delay_ns = array("q")
        self._wall_ns = time.monotonic_ns()
        self._thread_ns = time.thread_time_ns()
        self._process_ns = time.process_time_ns()
        self._refused = self._loop.kernel_clock.refused

    def note_read_delay(self, delay_ns: int) -> None:
        """The longest read delay of one answer whose reads carried kernel stamps."""
        self._read_delay_ns.append(delay_ns)

    def end(self, *, worker: int, level: int, clock_offset_ns: int, clock_error_ns: int) -> WorkerHealth:
        """The figures since `begin`; on the loop's own thread, since its CPU clock is read."""
        lag_p50, lag_p99, lag_max = _percentiles_ms(self._lag_ns, (50, 99, 100))
        (read_delay_p99,) = _percentiles_ms(self._read_delay_ns, (99,))
        wall_ns = max(1, time.monotonic_ns() - self._wall_ns)
        return WorkerHealth(
            worker=worker,
            level=level,
            loop_lag_p50_ms=lag_p50,
            loop_lag_p99_ms=lag_p99,
            loop_lag_max_ms=lag_max,
            read_delay_p99_ms=read_delay_p99,
            cpu_loop_thread=(time.thread_time_ns() - self._thread_ns) / wall_ns,
            cpu_process=(time.process_time_ns() - self._process_ns) / wall_ns,
            refused_stamps=self._loop.kernel_clock.refused - self._refused,
            clock_offset_ns=clock_offset_ns,
            clock_error_ns=clock_error_ns,
        )

    async def _measure(self) -> None:
        while True:
            due_ns = time.monotonic_ns() + int(_PROBE_S * 1e9)
            await asyncio.sleep(_PROBE_S)
            self.latest_lag_ns = max(0, time.monotonic_ns() - due_ns)
            self._lag_ns.append(self.latest_lag_ns)

    def stop(self) -> None:
        """Ends the probe."""
        self._probe.cancel()


def _percentiles_ms(values_ns: array[int], percents: tuple[int, ...]) -> list[float | None]:
    ranked = nearest_rank(np.frombuffer(values_ns, np.int64), percents)
    return [None if value is None else value / 1e6 for value in ranked]
