"""From the instants of a trace to the schedule of a level that replays them; pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadgen.arrivals.schedule import Schedule
from loadgen.scenario.load_section import Load

_BUSIEST_S = 1.0


def replayed(load: Load, timestamps_s: Sequence[float], speed: float, *, seed: int, level: int) -> Schedule:
    """`timestamps_s`: ascending, the first one is offset 0. With a duration given, what comes after it is left off."""
    instants = np.asarray(timestamps_s)
    if load.duration is not None:
        # Requests go on coming while those of the window end.
        until_s = (load.given_warmup_s or 0.0) + load.duration + load.drain_timeout
        instants = instants[: max(1, int(np.searchsorted(instants, instants[0] + until_s * speed, "right")))]
    ahead = np.searchsorted(instants, instants + _BUSIEST_S * speed, "right") - np.arange(instants.size)
    return Schedule(
        pattern="constant",
        burstiness=1.0,
        times_s=(0.0,),
        # The rate of its busiest second, by which requests are built ahead.
        rates=(float(ahead.max()) / _BUSIEST_S,),
        seed=seed,
        level=level,
        timestamps_s=tuple(instants.tolist()),
        speed=speed,
    )


def replay_length_s(schedule: Schedule) -> float:
    """How long a replay is measured: to its last arrival, and as long again as its arrivals are apart on average.

    So the last arrival lies within, and arrivals over length is the trace's rate. A trace of one instant is a second.
    """
    count = len(schedule.timestamps_s or ())
    return schedule.length_s * count / (count - 1) if schedule.length_s else 1.0
