"""Builds the prompts of a worker's levels ahead of their sending: takes the workload as configured, fills each level's queue.

Runs in the hub, a moment at a time, so that the controller hears of the worker however long a file takes to read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent

from loadgen.datasets.at_hand import DatasetsAtHand
from loadgen.datasets.errors import DatasetError
from loadgen.messages import Level
from loadgen.worker.prompt_queue import PromptQueue
from loadgen.workload.carried import carried
from loadgen.workload.conversation import Conversation
from loadgen.workload.planned import PlannedRequest, Workload
from loadgen.workload.sessions import SessionWorkload

_IDLE_FILL_S = 0.02


class PromptSupply:
    """The workload of one worker and the queue of its current level."""

    def __init__(self, tell_problem: Callable[[str], object]) -> None:
        """`tell_problem` gets a sentence when a dataset was changed in the midst of a run."""
        self._tell_problem = tell_problem
        self._datasets = DatasetsAtHand(lambda share: gevent.sleep(0))
        self._workload: Workload | None = None
        self._prompts: PromptQueue[Any] | None = None
        self._dataset_changed = False

    @property
    def workload(self) -> Workload | None:
        """As the controller has sent it; None before."""
        return self._workload

    def configure(self, workload: dict[str, Any]) -> str | None:
        """Takes the workload that the controller has sent; gives why it cannot be used, if it cannot."""
        try:
            self._workload = carried(self._datasets.localised(workload))
        except (DatasetError, OSError) as error:
            remedy = f" {error.hint}" if isinstance(error, DatasetError) else ""
            return f"it cannot use the dataset: {error}{remedy}".rstrip(".")
        return None

    def begin_level(
        self, level: Level, *, worker: int, workers: int
    ) -> tuple[PromptQueue[PlannedRequest] | None, PromptQueue[Conversation] | None]:
        """The level's queue, filled: of single requests, or of conversations; the other is None."""
        assert self._workload is not None
        share = {"level": level.level, "worker": worker, "workers": workers}
        requests: PromptQueue[PlannedRequest] | None = None
        conversations: PromptQueue[Conversation] | None = None
        if isinstance(self._workload, SessionWorkload):
            depth = self._workload.sessions_of(level.depth)
            self._prompts = conversations = PromptQueue(self._workload.conversation, **share, depth=depth)
        else:
            self._prompts = requests = PromptQueue(self._workload.build, **share, depth=level.depth)
        while not self._fill(self._prompts):
            gevent.sleep(0)
        return requests, conversations

    def fill_forever(self) -> None:
        """Keeps the queue full."""
        while True:
            prompts = self._prompts
            gevent.sleep(0 if prompts is not None and not self._fill(prompts) else _IDLE_FILL_S)

    def _fill(self, prompts: PromptQueue[Any]) -> bool:
        """Builds prompts for a moment; True when there are enough, or can be no more, since a dataset was changed."""
        if self._dataset_changed:
            return True
        try:
            return prompts.fill()
        except DatasetError as error:
            self._dataset_changed = True
            self._tell_problem(str(error).rstrip("."))
            return True

    def close(self) -> None:
        """Lets go of the files."""
        self._datasets.close()
