"""The part of a scenario's workload that names a file of requests; it does not look at the file."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from loadgen.scenario.quantities import Count, FileName, Kind
from loadgen.scenario.section import Section

# What vLLM's --dataset-name and aiperf's --custom-dataset-type call them.
_OTHER_NAMES = {
    "random": "auto",
    "custom": "jsonl",
    "single_turn": "jsonl",
    "single-turn": "jsonl",
    "random_pool": "jsonl",
    "openai_batch": "openai-batch",
    "mooncake_trace": "mooncake",
    "timed_trace": "mooncake",
    "burst_gpt": "burstgpt",
    "burst_gpt_trace": "burstgpt",
    "azure_trace": "azure",
}


def _own_name(value: object) -> object:
    return _OTHER_NAMES.get(value, value) if isinstance(value, str) else value


class DatasetSettings(Section):
    """A file of requests, in place of made-up ones of the lengths above. See docs/datasets.md."""

    path: FileName | None = Field(
        None,
        description="File of requests to send, also packed with gzip; relative to the scenario's folder, on the command "
        "line to the current one. Null makes requests up.",
    )
    format: Annotated[
        Literal["auto", "sharegpt", "jsonl", "openai-batch", "mooncake", "azure", "burstgpt"],
        BeforeValidator(_own_name),
        Kind("auto|sharegpt|jsonl|openai-batch|mooncake|azure|burstgpt"),
    ] = Field("auto", description="Format of the file; auto tells it by the first line.")
    order: Annotated[Literal["auto", "shuffled", "file"], Kind("auto|shuffled|file")] = Field(
        "auto",
        description="Rows shuffled by the seed, or as they stand in the file; auto is as they stand for a replayed trace, "
        "else shuffled.",
    )
    max_tokens: Count | None = Field(
        None, description="Leave out rows of traces whose prompt and answer together are longer; the run says how many."
    )
    block_tokens: Count = Field(512, description="Tokens of a block of a Mooncake trace's hash_ids.")

    @model_validator(mode="before")
    @classmethod
    def _random_is_no_file(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("format") == "random" and data.get("path") is not None:
            raise ValueError("The dataset `random` is made up, so workload.dataset.path has no effect: keep one.")
        return data

    @model_validator(mode="after")
    def _there_is_a_file(self) -> Self:
        for name, field in type(self).model_fields.items():
            if self.path is None and getattr(self, name) != field.default:
                raise ValueError(f"workload.dataset.path is not given, so workload.dataset.{name} has no effect.")
        return self
