"""What other work on this machine does to a run: tests that are not about the client's own lateness put up with it."""

from __future__ import annotations

import re
import subprocess
from typing import Any

OF_A_BUSY_MACHINE = {"client_late", "client_cpu", "sends_late", "worker_stalled"}
"""Rules that may fire where something else runs beside the test."""


def measured(ended: subprocess.CompletedProcess[str]) -> bool:
    """Whether `loadgen run` ended well, or with levels that nothing but other work on this machine made invalid."""
    fired = {rule for rules in re.findall(r"INVALID: ([a-z_, ]+)$", ended.stderr, re.M) for rule in rules.split(", ")}
    return ended.returncode == 0 or (ended.returncode == 3 and bool(fired) and fired <= OF_A_BUSY_MACHINE)


def sound(level: dict[str, Any]) -> bool:
    """Whether nothing made a level invalid but other work on this machine."""
    return bool(level["valid"]) or {reason["rule"] for reason in level["reasons"]} <= OF_A_BUSY_MACHINE
