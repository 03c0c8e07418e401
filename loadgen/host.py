"""Facts about this machine and the programs on it, for a run's provenance and for telling clocks apart."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import sys
from pathlib import Path
from typing import Any

from loadgen import __version__

_PROGRAMS = ("locust", "gevent", "aiohttp", "uvloop", "orjson", "numpy", "pydantic")


def boot_id() -> str:
    """Names the running kernel: processes with the same one share CLOCK_MONOTONIC. The process's own id elsewhere."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"process {os.getpid()}"


def raised_descriptor_limit() -> int:
    """Raises this process's limit of open files to what the system allows it; gives the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def ephemeral_ports() -> int | None:
    """How many ports the system has for outgoing connections to one address; None where it does not tell."""
    with contextlib.suppress(OSError, ValueError):
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(last) - int(first) + 1
    return None


def die_with_parent_option() -> list[str]:
    """The option by which a program of ours ends with the process that started it, where the system can do that."""
    return ["--die-with-parent", str(os.getpid())] if sys.platform == "linux" else []


def describe() -> dict[str, Any]:
    """Machine and versions, without the machine's name or address."""
    return {
        "loadgen": __version__,
        "python": platform.python_version(),
        "programs": {name: importlib.metadata.version(name) for name in _PROGRAMS},
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def _cpu_model() -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return None
