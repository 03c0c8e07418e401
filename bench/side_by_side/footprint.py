"""What a process and all its descendants use: processor time and memory, sampled from /proc (Linux).

As a program, `python -m bench.side_by_side.footprint PID FILE CPU` samples from outside until the process has ended:
one JSON line a sample. At low priority: where it shares a core, the other goes first.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE_S = 1.0
PSS_EVERY = 3
"""Proportional set sizes are dear to read: only at every so many samples."""
_NICE = 10
_TRIES = 5
_LONG_NS = 20_000_000
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/PID/stat."""

    parent: int
    cpu_ns: int
    """User and system time of the process and of the children it has waited for."""
    started: int
    """Tells it from a later process of the same number."""
    rss_bytes: int
    zombie: bool


def read_process(pid: int) -> Process | None:
    """None when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return Process(
        parent=int(fields[1]),
        cpu_ns=(own + waited) * _TICK_NS,
        started=int(fields[19]),
        rss_bytes=int(fields[21]) * _PAGE,
        zombie=fields[0] == "Z",
    )


class Tree:
    """A process and its descendants, also those whose parent has ended since."""

    def __init__(self, root: int) -> None:
        self._members = {root: read_process(root)}

    def alive(self) -> dict[int, Process]:
        """Those that live now, new ones and those not yet waited for among them."""
        now = {int(name): read_process(int(name)) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208
        known = {
            pid
            for pid, before in self._members.items()
            if before is not None and (found := now.get(pid)) is not None and found.started == before.started
        }
        grown = True
        while grown:
            children = {pid for pid, found in now.items() if found is not None and found.parent in known}
            grown = not children <= known
            known |= children
        self._members.update({pid: now[pid] for pid in known})
        return {pid: found for pid in known if (found := now[pid]) is not None}


class Meter:
    """Adds up what the tree has used, ended members included."""

    def __init__(self, root: int) -> None:
        self._tree = Tree(root)
        self._used_ns: dict[tuple[int, int], int] = {}
        self._parents: dict[tuple[int, int], int] = {}

    def sample(self, *, pss: bool) -> dict[str, Any] | None:
        """{t_ns, cpu_ns, rss_mb, and with `pss` pss_mb and largest_pss_mb, members}; None when the last member has ended."""
        for _ in range(_TRIES):
            begun_ns = time.monotonic_ns()
            alive = self._tree.alive()
            t_ns = time.monotonic_ns()
            if t_ns - begun_ns < _LONG_NS:  # else it was interrupted, and the readings are of different instants
                break
        if all(process.zombie for process in alive.values()):
            return None
        living = {(pid, process.started) for pid, process in alive.items()}
        # A child that was waited for is in its parent's time from then on: it must not be counted twice.
        for gone in [key for key in self._used_ns if key not in living]:
            if self._parents[gone] in alive:
                del self._used_ns[gone]
        for pid, process in alive.items():
            self._used_ns[pid, process.started] = process.cpu_ns
            self._parents[pid, process.started] = process.parent
        sizes = [_pss_bytes(pid) for pid in alive] if pss else []
        return {
            "t_ns": t_ns,
            "cpu_ns": sum(self._used_ns.values()),
            "rss_mb": round(sum(process.rss_bytes for process in alive.values()) / 1e6, 2),
            "pss_mb": round(sum(sizes) / 1e6, 2) if sizes else None,
            "largest_pss_mb": round(max(sizes) / 1e6, 2) if sizes else None,
            "members": sorted(living),
        }


def _pss_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def read_samples(path: Path) -> list[dict[str, Any]]:
    """The samples of a file; a torn last line is left out."""
    return list(_complete_lines(path))


def _complete_lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def cpu_s(samples: list[dict[str, Any]], from_ns: int, until_ns: int) -> float | None:
    """Processor time used between two instants, interpolated; None when the samples do not span them."""
    if not samples or samples[0]["t_ns"] > from_ns or samples[-1]["t_ns"] < until_ns:
        return None
    return (_at(samples, until_ns) - _at(samples, from_ns)) / 1e9


def _at(samples: list[dict[str, Any]], t_ns: int) -> float:
    before = samples[0]
    for sample in samples:
        if sample["t_ns"] >= t_ns:
            span_ns = sample["t_ns"] - before["t_ns"]
            share = (t_ns - before["t_ns"]) / span_ns if span_ns else 0.0
            return float(before["cpu_ns"] + share * (sample["cpu_ns"] - before["cpu_ns"]))
        before = sample
    return float(before["cpu_ns"])


def peak_mb(samples: list[dict[str, Any]], kind: str) -> float | None:
    """Largest `rss_mb`, `pss_mb` or `largest_pss_mb`; None when it was never read."""
    return max((sample[kind] for sample in samples if sample[kind] is not None), default=None)


def main(argv: list[str]) -> int:
    root, path, cpu = int(argv[0]), Path(argv[1]), int(argv[2])
    os.sched_setaffinity(0, {cpu})
    os.nice(_NICE)
    meter = Meter(root)
    with path.open("w", buffering=1) as file:
        number = 0
        while (sample := meter.sample(pss=number % PSS_EVERY == 1)) is not None:
            file.write(json.dumps(sample) + "\n")
            number += 1
            time.sleep(SAMPLE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
