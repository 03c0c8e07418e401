"""How often a level went through its dataset: takes the plan and the records, gives a number of passes."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.record import LevelPlan, RequestRecord


def dataset_passes(plan: LevelPlan, records: Sequence[RequestRecord]) -> float | None:
    """Requests of the level so far over rows of the dataset, warm-up included; above 1, rows came again.

    Requests are numbered in the order in which rows are taken, so the highest number tells. None without a dataset.
    """
    if plan.dataset_rows is None:
        return None
    latest = max((record.index for record in records if record.level == plan.level), default=-1)
    return (latest + 1) / plan.dataset_rows
