"""What holds for the workers of one level: that somebody is left who can keep what it measures, and whose clock has moved."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.controller.fleet import Fleet
from loadgen.controller.worker import Worker
from loadgen.errors import LoadgenError


def clock_change_ns(fleet: Fleet, participants: Sequence[Worker]) -> int | None:
    """Most by which a worker's clock moved against ours since the level began; None where all share one."""
    began = [(w, w.offset_ns, w.error_ns) for w in participants if not w.same_clock]
    if not began:
        return None
    fleet.measure_clocks()
    change_ns = max(abs(worker.offset_ns - offset_ns) for worker, offset_ns, _ in began)
    for worker, offset_ns, error_ns in began:  # those by which the window was told are the level's
        worker.offset_ns, worker.error_ns = offset_ns, error_ns
    return change_ns


def check_workers(fleet: Fleet, participants: Sequence[Worker]) -> None:
    """Raises LoadgenError when nobody is left, or somebody cannot keep what it measures."""
    for worker in fleet.workers.values():
        if worker.problem is not None:
            raise LoadgenError(
                f"Worker {worker.index} ({worker.hello.host}) gave up: {worker.problem}.",
                hint="what was measured before is in the run folder; mend that, and run again",
            )
    if not participants or all(worker.lost for worker in participants):
        raise LoadgenError("Every worker is gone.", hint="their output is in run.log in the run folder")
