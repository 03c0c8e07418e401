"""Takes the cores that this process may use, gives one to the server and another to the worker; moves processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Cores:
    """Who runs where. None: there is one core only, and everybody shares it."""

    server: int | None
    worker: int | None
    others: tuple[int, ...]
    """Cores of the controller; the worker's own where there are no more."""
    same_physical_core: bool
    """Whether server and worker share one core's execution units (hyper-threads of one core)."""

    @property
    def separated(self) -> bool:
        """Whether the server cannot take time from the worker."""
        return self.server is not None and not self.same_physical_core

    def describe(self) -> dict[str, Any]:
        return {
            "server": self.server,
            "worker": self.worker,
            "controller": list(self.others),
            "same_physical_core": self.same_physical_core,
            "separated": self.separated,
        }


def choose(allowed: Collection[int], siblings: dict[int, frozenset[int]]) -> Cores:
    """The last core for the server; for the worker the first that is no hyper-thread of the same core, if any.

    `siblings`: for each core those that share its execution units, as far as it is known.
    """
    cores = sorted(allowed)
    if len(cores) < 2:
        return Cores(None, None, (), same_physical_core=False)
    server = cores[-1]
    beside = siblings.get(server, frozenset())
    apart = [core for core in cores[:-1] if core not in beside]
    worker = (apart or cores)[0]
    kin = siblings.get(worker, frozenset()) | beside
    rest = [core for core in cores if core not in (server, worker)]
    # The controller best disturbs neither: not even from the other hyper-thread.
    others = [core for core in rest if core not in kin] or rest or [worker]
    return Cores(server, worker, tuple(others), same_physical_core=not apart)


def known_siblings(allowed: Collection[int]) -> dict[int, frozenset[int]]:
    """What the kernel says of hyper-threads (Linux); nothing where it does not say."""
    found = {}
    for core in allowed:
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        with contextlib.suppress(OSError, ValueError):
            found[core] = frozenset(_core_list(path.read_text())) - {core}
    return found


def _core_list(text: str) -> list[int]:
    """`0,4-6` as numbers."""
    cores: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


def move(pid: int, cores: Collection[int]) -> None:
    """Has every thread of a process run on `cores`; one that ends meanwhile is let go."""
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)
