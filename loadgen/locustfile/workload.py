"""What workers of a locustfile need to write requests: the model, how the server counts, and the recipe of prompts.

What is asked for stands in the tasks, so there is no request by number here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from loadgen.locustfile.prompt import Messages, Prompt
from loadgen.prompts.errors import PromptError
from loadgen.prompts.recipe import PromptRecipe
from loadgen.wire.exchange import Endpoint
from loadgen.wire.request import OWN_KEYS

_LEVEL = 0
"""Of every prompt: the number of a request is unique in a level only, the number of a prompt in the run."""


@dataclass(frozen=True)
class TaskWorkload:
    """Plain data on its way to the workers."""

    model: str
    endpoint: Endpoint
    continuous_usage: bool
    """Whether the server takes `continuous_usage_stats`."""
    seed: int
    recipe: PromptRecipe | None
    """None where nobody counts tokens."""
    why_no_recipe: str = ""

    def prompt(self, k: int, input_tokens: int) -> Prompt:
        """Prompt `k` of the run, with exactly so many tokens as the server counts them, template included.

        Raises PromptError when it cannot be so short, or nobody counts tokens.
        """
        if self.recipe is None:
            raise PromptError(
                f"self.prompt() needs to count tokens, and nobody does: {self.why_no_recipe}",
                "name the model's tokenizer with --loadgen-tokenizer",
            )
        return Prompt(self.recipe.build(_LEVEL, k, input_tokens), input_tokens)

    def body(
        self,
        prompt: str | Messages,
        output_tokens: int | None,
        *,
        ignore_eos: bool,
        model: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The JSON of one request. Raises TypeError or ValueError when it cannot be asked for."""
        if own := sorted(OWN_KEYS & set(extra_body or ())):
            raise ValueError(f"{', '.join(own)} cannot stand in extra_body: what is measured depends on it.")
        body: dict[str, Any] = {"model": model or self.model}
        if self.endpoint == "completions":
            if not isinstance(prompt, str):
                raise TypeError("The completions endpoint takes a text, not messages.")
            body["prompt"] = str(prompt)
        else:
            body["messages"] = [{"role": "user", "content": str(prompt)}] if isinstance(prompt, str) else list(prompt)
        if output_tokens is not None:
            body["max_tokens"] = output_tokens
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
        if self.continuous_usage:
            body["stream_options"]["continuous_usage_stats"] = True
        if output_tokens is not None and ignore_eos:
            body |= {"ignore_eos": True, "min_tokens": output_tokens}
        return orjson.dumps(body | dict(extra_body or {}))

    def to_dict(self) -> dict[str, Any]:
        """Plain data that msgpack carries; `from_dict` reads it back."""
        return {
            "model": self.model,
            "endpoint": self.endpoint,
            "continuous_usage": self.continuous_usage,
            "seed": self.seed,
            "recipe": None if self.recipe is None else self.recipe.to_dict(),
            "why_no_recipe": self.why_no_recipe,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TaskWorkload:
        """The workload that `to_dict` described."""
        recipe = data["recipe"]
        return cls(
            model=data["model"],
            endpoint=data["endpoint"],
            continuous_usage=data["continuous_usage"],
            seed=data["seed"],
            recipe=None if recipe is None else PromptRecipe.from_dict(recipe),
            why_no_recipe=data["why_no_recipe"],
        )
