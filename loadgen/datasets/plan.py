"""From a scenario's dataset to the workload: surveys the file before anything is started, refuses what cannot be sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.datasets.dataset import Dataset
from loadgen.datasets.errors import Place
from loadgen.datasets.long_rows import refuse_long_rows
from loadgen.datasets.survey import Source, Survey, survey
from loadgen.datasets.workload import DatasetWorkload, check_fits
from loadgen.prompts.pool import check_exact, make_recipe
from loadgen.prompts.recipe import PromptRecipe
from loadgen.prompts.tokenizers import TokenCounter
from loadgen.scenario.model import Scenario
from loadgen.workload.request_class import Independent

_SAMPLES = 8
"""Finished prompts that are counted whole before a workload is handed out."""


@dataclass(frozen=True, slots=True)
class SurveyedDataset:
    """A scenario's dataset, once it was read."""

    source: Source
    """With its format, which the scenario may leave open."""
    survey: Survey
    folder: Path
    """Where its index lies."""

    def in_words(self) -> str:
        """What was found, for people."""
        found = self.survey
        left_out = "".join(f"; left out: {count:,} with {reason}" for reason, count in found.left_out.items())
        span = "" if found.span_s is None or not found.timed else f" over {found.span_s:g} s"
        return f"dataset {self.source.path} ({found.format}): {found.rows:,} rows{span}{left_out}"

    def timestamps_s(self) -> tuple[float, ...]:
        """When each row was sent, in seconds after the first one. Raises DatasetError when the file does not say."""
        if not self.survey.timed:
            raise Place(self.source.path).refusal(
                "Its rows do not all say when they were sent, so they cannot be replayed.",
                "Give a trace with instants, or a load.request_rate.",
            )
        return tuple(Dataset(self.source, self.folder).timestamps_s().tolist())


def surveyed_dataset(
    scenario: Scenario, folder: Path, pause: Callable[[float], object] = lambda share: None
) -> SurveyedDataset | None:
    """Reads the scenario's dataset and puts its index into `folder`, which is made; None where there is no dataset.

    `pause` is called now and then with the share that has been read. Raises DatasetError, naming file and line.
    """
    asked = scenario.workload.dataset
    if asked.path is None:
        return None
    source = Source(asked.path, asked.format, asked.max_tokens, asked.block_tokens)
    folder.mkdir(exist_ok=True)
    endpoint = scenario.target.endpoint
    found = survey(source, folder, check=lambda row, place: check_fits(row, place, endpoint), pause=pause)
    return SurveyedDataset(replace(source, format=found.format), found, folder)


def plan_dataset(
    scenario: Scenario,
    dataset: SurveyedDataset,
    counter: TokenCounter,
    *,
    model: str,
    max_model_len: int | None,
) -> DatasetWorkload:
    """The workload of a surveyed dataset; made-up prompts are counted by `counter`, those of the file by nobody.

    Raises DatasetError when a row would be longer than `max_model_len`, `PromptError` when a prompt cannot be exact.
    """
    assert scenario.seed is not None, "the seed is drawn before the workload is planned"
    asked = scenario.workload
    lengths = asked.lengths()
    assert lengths is not None, "no file of lengths goes with a dataset"
    most_output = Independent(*lengths).longest[1]
    _refuse_too_long(dataset, most_output, max_model_len)
    if dataset.survey.longest is None and max_model_len is not None:
        refuse_long_rows(
            Dataset(dataset.source, dataset.folder),
            dataset.source.path,
            counter,
            endpoint=scenario.target.endpoint,
            output_tokens=most_output,
            most_output_tokens=max(most_output, dataset.survey.most_output_tokens),
            max_model_len=max_model_len,
        )
    recipe: PromptRecipe | None = None
    if dataset.survey.longest is not None:
        recipe = make_recipe(
            counter, endpoint=scenario.target.endpoint, seed=scenario.seed, prompt_set=asked.prompt_set
        )
    workload = DatasetWorkload(
        source=dataset.source,
        folder=str(dataset.folder.resolve()),
        digest=dataset.survey.digest,
        in_file_order=in_file_order(scenario),
        seed=scenario.seed,
        endpoint=scenario.target.endpoint,
        model=model,
        output_tokens=lengths[1],
        ignore_eos=asked.ignore_eos,
        continuous_usage=True,
        extra_body=asked.extra_body,
        recipe=recipe,
        stream=scenario.target.stream,
    )
    check_exact(counter, endpoint=scenario.target.endpoint, prompts=workload.made_up_samples(_SAMPLES))
    return workload


def in_file_order(scenario: Scenario) -> bool:
    """Whether request k is row k."""
    order = scenario.workload.dataset.order
    return order == "file" or (order == "auto" and scenario.load.replay_speed is not None)


def _refuse_too_long(dataset: SurveyedDataset, output_tokens: int, max_model_len: int | None) -> None:
    if dataset.survey.longest is None or max_model_len is None:
        return
    line, row_input, row_output = dataset.survey.longest
    needed = row_input + (row_output or output_tokens)
    if needed > max_model_len:
        raise Place(dataset.source.path, line).refusal(
            f"Prompt and answer have {row_input} + {row_output or output_tokens} = {needed} tokens, more than the "
            f"{max_model_len} of the server's max_model_len.",
            f"Leave such rows out with --dataset-max-tokens {max_model_len}, or serve the model with a longer one.",
        )


def provenance_of(dataset: SurveyedDataset, workload: DatasetWorkload) -> dict[str, Any]:
    """For the run's provenance: what was read, and how many rows could not be had exactly."""
    template = None if workload.recipe is None else workload.recipe.overhead_tokens
    return {
        "path": dataset.source.path,
        **dataset.survey.to_dict(),
        "order": "file" if workload.in_file_order else "shuffled",
        "raised_to_template": None
        if template is None
        else sum(rows for tokens, rows in dataset.survey.short_inputs.items() if tokens < template),
    }
