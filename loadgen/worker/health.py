"""How well the worker itself keeps up, over the window of a level and live: lags, read delay, pauses, CPU, memory.

Lives on the event loop, whose thread it measures; never judges. What the records tell of the worker (send lag, send gap,
coalescing) is computed from them, in `loadgen.stats.client`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any, NamedTuple

import numpy as np

from loadgen.record import WorkerHealth
from loadgen.stats.percentile import nearest_rank
from loadgen.wire.wire_loop import WireLoop
from loadgen.worker.gc_pauses import GcPauses
from loadgen.worker.hub_probe import HubProbe
from loadgen.worker.lag import LagLog
from loadgen.worker.memory import resident_bytes
from loadgen.worker.samples import Samples

_PROBE_S = 0.01
_PROBES_A_CPU = 10


class HealthProbe:
    """`begin` and `end` bracket a window; `take_live` gives what came since it was last asked, window or not."""

    def __init__(self, loop: WireLoop, hub: HubProbe) -> None:
        self._loop = loop
        self._hub_lag = hub.lag
        self._lag = LagLog(round(_PROBE_S * 1e9))
        self._gc = GcPauses()
        self._read_delay_ns = Samples()
        self._read_delay_peak_ns: int | None = None
        self._cpu = self._cpu_live = _Cpu.now()
        self._cpu_latest = self._cpu
        self._probe = loop.create_task(self._measure())
        self.begin()

    def begin(self) -> None:
        """Forgets what was measured so far."""
        self._lag.begin()
        self._hub_lag.begin()
        self._gc.begin()
        self._read_delay_ns = Samples()
        self._cpu = _Cpu.now()
        self._refused = self._loop.kernel_clock.refused

    def note_read_delay(self, delay_ns: int) -> None:
        """The longest read delay of one answer whose reads carried kernel stamps."""
        self._read_delay_ns.append(delay_ns)
        self._read_delay_peak_ns = max(self._read_delay_peak_ns or 0, delay_ns)

    def end(self, *, worker: int, level: int, clock_offset_ns: int, clock_error_ns: int) -> WorkerHealth:
        """The figures since `begin`; on the loop's own thread, since its CPU clock is read."""
        cpu_loop_thread, cpu_process = _Cpu.now().since(self._cpu)
        gc_max_ns = self._gc.max_ns
        return WorkerHealth(
            worker=worker,
            level=level,
            **_percentiles_ms("loop_lag", self._lag.samples_ns),
            **_percentiles_ms("hub_lag", self._hub_lag.samples_ns),
            **_percentiles_ms("read_delay", self._read_delay_ns),
            cpu_loop_thread=cpu_loop_thread,
            cpu_process=cpu_process,
            gc_pauses=self._gc.count,
            gc_pause_total_ms=self._gc.total_ns / 1e6,
            gc_pause_max_ms=None if gc_max_ns is None else gc_max_ns / 1e6,
            resident_bytes=resident_bytes(),
            refused_stamps=self._loop.kernel_clock.refused - self._refused,
            clock_offset_ns=clock_offset_ns,
            clock_error_ns=clock_error_ns,
            dropped=None,
        )

    def take_live(self) -> dict[str, Any]:
        """The worst since the last call, in nanoseconds, CPU as a mean over that time, memory now; None: not known.

        In the hub: what the loop notes at that very moment may be missed or come with the next call.
        """
        earlier, self._cpu_live = self._cpu_live, self._cpu_latest
        cpu_loop_thread, cpu_process = self._cpu_live.since(earlier)
        read_delay_ns, self._read_delay_peak_ns = self._read_delay_peak_ns, None
        return {
            "loop_lag_ns": self._lag.take_peak_ns(),
            "hub_lag_ns": self._hub_lag.take_peak_ns(),
            "read_delay_ns": read_delay_ns,
            "gc_pause_ns": self._gc.take_peak_ns(),
            "cpu_loop_thread": cpu_loop_thread,
            "cpu_process": cpu_process,
            "resident_bytes": resident_bytes(),
        }

    async def _measure(self) -> None:
        for probe in itertools.count():
            due_ns = time.monotonic_ns() + self._lag.period_ns
            await asyncio.sleep(_PROBE_S)
            self._lag.woken(time.monotonic_ns() - due_ns)
            if probe % _PROBES_A_CPU == 0:  # the process's clock is the sum over its threads, and dear
                self._cpu_latest = _Cpu.now()

    def stop(self) -> None:
        """Ends the probe."""
        self._probe.cancel()
        self._gc.stop()


class _Cpu(NamedTuple):
    """CPU clocks of the calling thread and of the process, beside the wall's."""

    wall_ns: int
    thread_ns: int
    process_ns: int

    @classmethod
    def now(cls) -> _Cpu:
        return cls(time.monotonic_ns(), time.thread_time_ns(), time.process_time_ns())

    def since(self, earlier: _Cpu) -> tuple[float | None, float | None]:
        """(CPU of the thread, of the process) as shares of the time between; None when none has passed."""
        wall_ns = self.wall_ns - earlier.wall_ns
        if wall_ns <= 0:
            return None, None
        return (self.thread_ns - earlier.thread_ns) / wall_ns, (self.process_ns - earlier.process_ns) / wall_ns


def _percentiles_ms(figure: str, samples_ns: Samples) -> dict[str, float | None]:
    """`{figure}_p50_ms`, `…_p99_ms` (nearest rank) and `…_max_ms`; None without a value."""
    ranked = nearest_rank(np.array(samples_ns.kept, np.int64), (50, 99))
    names = (f"{figure}_{statistic}_ms" for statistic in ("p50", "p99", "max"))
    values_ns = [*ranked, samples_ns.max]
    return {name: None if value is None else value / 1e6 for name, value in zip(names, values_ns, strict=True)}
