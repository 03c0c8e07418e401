"""What is noted of a locustfile's run for its provenance; adds no figure."""

from __future__ import annotations

from typing import Any

import locust

from loadgen.locustfile.conditions import conditions_of
from loadgen.locustfile.users import is_open_loop, llm_users


def about_locustfile(environment: Any, *, warmup_s: float) -> dict[str, Any]:
    """The part `locustfile` of a run's provenance. Its names come as tasks use them."""
    classes = [one.__name__ for one in llm_users(environment)]
    return {
        "file": environment.locustfile,
        "locust": locust.__version__,
        "user_classes": classes,
        "shape": None if environment.shape_class is None else type(environment.shape_class).__name__,
        "names": [],
        "steps_left_out": 0,
        "conditions": conditions_of(
            environment.locustfile or "a locustfile",
            classes,
            open_loop=is_open_loop(environment),
            warmup_s=warmup_s,
        ),
    }
