"""Takes the level object of a soak that ended early, says whether it stands as a shorter one, and why it is in doubt; pure.

The rules are in `validity`. Another level that was interrupted counts for nothing; a soak is windows, and those before its end are whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.stats.soak_trend import FEWEST

Level = Mapping[str, Any]

TOO_SHORT = f"As a shorter soak it would count from {FEWEST} windows without a mark on, for which its drift is judged."


def is_shorter_soak(level: Level) -> bool:
    """Whether a soak was ended early by its user, or by the loss of its controller, when its drift could be judged: what was
    measured until then stands. Where the server or a guard was the reason, it does not."""
    soak = level["soak"]
    return bool(level["interrupted"] and not level["interrupted_by"] and soak is not None and _is_judged(soak))


def _is_judged(soak: Mapping[str, Any]) -> bool:
    return any(figure is not None for figure in soak["figures"].values())


def soak_cut_short(level: Level) -> str | None:
    if not is_shorter_soak(level):
        return None
    told = f"The soak was ended early; it is judged as a shorter one, by its {len(level['soak']['windows'])} whole windows."
    watched = any(worker["loop_lag_p99_ms"] is not None for worker in level["client"]["workers"])
    return told if watched else f"{told} Workers tell at a level's end how late they were, so nobody knows it here."
