"""Settings of a server that we start, each a value or a sweep; it starts nothing."""

from __future__ import annotations

import itertools
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from loadgen.scenario.quantities import Counts, Numbers
from loadgen.scenario.section import Section
from server.simulator.settings import SimulatorSettings


def _default(name: str) -> tuple[Any, ...]:
    return (SimulatorSettings.model_fields[name].default,)


class ServerSettings(Section):
    """Settings of a server that we start. A list is swept, outside of the sweep of the load."""

    max_num_seqs: Counts = Field(_default("max_num_seqs"), description="Sequences that the server runs at once.")
    max_num_batched_tokens: Counts = Field(
        _default("max_num_batched_tokens"), description="Tokens that the server takes into one step."
    )
    max_model_len: Counts = Field(
        _default("max_model_len"), description="Longest sequence of the server, prompt and output together."
    )
    step_overhead_ms: Numbers = Field(
        _default("step_overhead_ms"), description="Simulator: milliseconds of every step, whatever is in it."
    )
    prefill_time_per_token_ms: Numbers = Field(
        _default("prefill_time_per_token_ms"), description="Simulator: milliseconds of a step for each prompt token."
    )
    decode_base_ms: Numbers = Field(
        _default("decode_base_ms"), description="Simulator: milliseconds of a step in which any sequence decodes."
    )
    decode_time_per_seq_ms: Numbers = Field(
        _default("decode_time_per_seq_ms"),
        description="Simulator: milliseconds of a step for each sequence that decodes in it.",
    )

    @model_validator(mode="after")
    def _server_takes_them(self) -> Self:
        for settings in self.combinations():
            try:
                SimulatorSettings(**settings)
            except ValidationError as error:
                reason = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise ValueError(f"The simulator cannot run so: {reason}.") from None
        return self

    def combinations(self) -> list[dict[str, Any]]:
        """One dictionary of all settings for each step of the sweep; the key that is declared first varies slowest."""
        names = list(type(self).model_fields)
        return [
            dict(zip(names, values, strict=True)) for values in itertools.product(*(getattr(self, n) for n in names))
        ]
