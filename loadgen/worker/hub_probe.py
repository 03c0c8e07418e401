"""How late the gevent hub runs: a greenlet that sleeps and looks at the clock; it never touches the event loop.

The hub builds prompts, writes the spool and talks to the controller. No stamp passes through it, but it shares the
interpreter lock with the loop's thread, so each wake of this probe costs the loop a little; hence its longer period.
"""

from __future__ import annotations

import time

import gevent

from loadgen.worker.lag import LagLog

_PERIOD_S = 0.02


class HubProbe:
    """Measures as long as `run_forever` runs in a greenlet of the hub."""

    def __init__(self) -> None:
        self.lag = LagLog(round(_PERIOD_S * 1e9))

    def run_forever(self) -> None:
        """Until the greenlet is killed."""
        while True:
            due_ns = time.monotonic_ns() + self.lag.period_ns
            gevent.sleep(_PERIOD_S)
            self.lag.woken(time.monotonic_ns() - due_ns)
