"""The dataset of a run before anything is started: read whole, indexed in the run folder, told about."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from loadgen.datasets.plan import SurveyedDataset, surveyed_dataset
from loadgen.scenario.model import Scenario

_READ_BYTES_PER_S = 2e6
"""No slower is a dataset read, checks included."""
_SILENT_S = 5.0


def read_dataset(
    scenario: Scenario, folder: Path, console: Console, pause: Callable[[float], object]
) -> SurveyedDataset | None:
    """What the scenario's dataset holds, its index in `folder`; None without one.

    `pause` lets others work, and raises when the run is to end. Raises DatasetError, naming file and line.
    """
    silent_until_s = time.monotonic() + _SILENT_S

    def tell(share: float) -> None:
        nonlocal silent_until_s
        pause(0)
        if time.monotonic() > silent_until_s:
            silent_until_s = time.monotonic() + _SILENT_S
            console.print(f"reading the dataset: {share:.0%}", highlight=False)

    dataset = surveyed_dataset(scenario, folder, tell)
    if dataset is not None:
        console.print(dataset.in_words(), highlight=False, soft_wrap=True)
    return dataset


def reading_s(dataset: SurveyedDataset | None) -> float:
    """How long a worker that does not see the index may take to read the file itself."""
    return 0.0 if dataset is None else dataset.survey.size_bytes / _READ_BYTES_PER_S
