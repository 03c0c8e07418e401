"""What is said of a locustfile's run where a scenario's own words would be wrong; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TASKS_DECIDE = "as the tasks ask"


def conditions_of(locustfile: str, user_classes: Sequence[str], *, open_loop: bool, warmup_s: float) -> dict[str, str]:
    """In place of `loadgen.outputs.conditions` of the same names."""
    users = f"{', '.join(user_classes)} of {locustfile}"
    loop = "open loop" if open_loop else "closed loop"
    return {
        "input": TASKS_DECIDE,
        "output": TASKS_DECIDE,
        "load": f"{loop}, users {users}",
        "window": "from all users spawned"
        + (f" and {warmup_s:g} s more" if warmup_s else "")
        + " to the next change or the stop",
    }


def names_of(provenance: Mapping[str, Any]) -> list[str] | None:
    """What the tasks of a locustfile's run have called their requests; None for a scenario's run."""
    return list(provenance["locustfile"]["names"]) if "locustfile" in provenance else None


def with_own_words(conditions: dict[str, Any], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions of a run, with a locustfile's own words where it was one."""
    return conditions | dict(provenance.get("locustfile", {}).get("conditions", {}))
