"""The target of a locustfile, before any load: what a scenario's run asks of it, but that texts of one's own need no tokenizer."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from loadgen.controller.target import Target, inspect
from loadgen.datasets.plan import surveyed_dataset
from loadgen.datasets.workload import DatasetWorkload
from loadgen.errors import UsageError
from loadgen.locustfile.workload import TaskWorkload
from loadgen.prompts.errors import PromptError
from loadgen.scenario.model import Scenario
from loadgen.workload.synthetic import SyntheticWorkload

_log = logging.getLogger("loadgen")

# The probe's request: short, for a model of any length; what the tasks will ask for is not known.
_INPUT_TOKENS, _OUTPUT_TOKENS = 64, 4


def inspect_target(scenario: Scenario, pause: Callable[[float], object]) -> tuple[Target, TaskWorkload]:
    """The server, proved to stream, and what workers need to write requests. Raises LoadgenError as `inspect` does."""
    base_url = scenario.target.base_url
    assert base_url is not None and scenario.seed is not None
    why = ""
    lengths = {"input_tokens": _INPUT_TOKENS, "output_tokens": _OUTPUT_TOKENS, "ignore_eos": False}
    probing = _with_workload(scenario, lengths)
    try:
        target = inspect(probing, base_url, tell=_log.info, pause=pause)
    except UsageError as error:
        if not isinstance(error.__context__, PromptError) or scenario.workload.tokenizer is not None:
            raise
        why = str(error)
        target = _inspect_without_counting(probing, base_url, pause)
    probed = cast(SyntheticWorkload | DatasetWorkload, target.workload)
    workload = TaskWorkload(
        model=target.model,
        endpoint=scenario.target.endpoint,
        continuous_usage=probed.continuous_usage,
        seed=scenario.seed,
        recipe=probed.recipe,
        why_no_recipe=why,
    )
    return target, workload


def _inspect_without_counting(scenario: Scenario, base_url: str, pause: Callable[[float], object]) -> Target:
    """The same with a request whose tokens nobody counts."""
    with tempfile.TemporaryDirectory(prefix="loadgen-") as folder:
        request = Path(folder) / "request.jsonl"
        request.write_text(json.dumps({"prompt": "Say hello.", "output_tokens": _OUTPUT_TOKENS}) + "\n")
        probing = _with_workload(scenario, {"dataset": {"path": str(request)}, "ignore_eos": False})
        dataset = surveyed_dataset(probing, Path(folder) / "index")
        return inspect(probing, base_url, dataset=dataset, tell=_log.info, pause=pause)


def _with_workload(scenario: Scenario, workload: Mapping[str, object]) -> Scenario:
    given = {name: getattr(scenario.workload, name) for name in ("tokenizer", "prompt_set")}
    kind = type(scenario.workload)
    return scenario.model_copy(update={"workload": kind.model_validate({**given, **workload})})
