"""The workload of a file: request k of a level is the row that the order gives it, as a body for the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import orjson

from loadgen.datasets.dataset import Dataset
from loadgen.datasets.errors import Place
from loadgen.datasets.made_up import MadeUpPrompts
from loadgen.datasets.order import InFileOrder, Order, Shuffled
from loadgen.datasets.rows import LENGTH_KEYS, Row
from loadgen.datasets.survey import Source
from loadgen.prompts.recipe import PromptRecipe
from loadgen.wire.exchange import Endpoint
from loadgen.workload.draws import Draws
from loadgen.workload.lengths import Distribution, distribution
from loadgen.workload.planned import PlannedRequest


def check_fits(row: Row, place: Place, endpoint: Endpoint) -> None:
    """Raises DatasetError when the row is for the other endpoint."""
    is_chat = row.messages is not None or (row.body is not None and row.body.get("messages") is not None)
    is_text = row.body is not None and not is_chat
    if (is_chat and endpoint == "completions") or (is_text and endpoint == "chat"):
        other = "chat" if is_chat else "completions"
        raise place.refusal(
            f"It holds {'messages' if is_chat else 'a body with a prompt'}, which the {endpoint} endpoint does not take.",
            f"Set target.endpoint to {other}.",
        )


@dataclass(frozen=True)
class DatasetWorkload:
    """Requests out of a file that was surveyed."""

    source: Source
    folder: str
    """Where the survey put its index on this host."""
    digest: str
    """Of the file that was surveyed."""
    in_file_order: bool
    """Row k is request k, in every level; else the seed shuffles them."""
    seed: int
    endpoint: Endpoint
    model: str
    output_tokens: Distribution
    """For rows that do not say how long the answer is."""
    ignore_eos: bool
    """Whether the server is made to give exactly the tokens asked for. Whole bodies say that for themselves."""
    continuous_usage: bool
    extra_body: Mapping[str, Any]
    recipe: PromptRecipe | None = None
    """For rows that give lengths only; None where there are none."""
    stream: bool = True
    """Whether answers are asked for as streams."""
    counted: bool = True
    """Whether prompts that are made up have the tokens that they were made for by the server's own count."""

    kinds: ClassVar[int] = 1
    """Number of its classes."""

    def model_of(self, kind: int) -> str:
        """The model that its requests are for."""
        return self.model

    def extra_body_of(self, kind: int) -> Mapping[str, Any]:
        """Further keys of its bodies."""
        return self.extra_body

    def with_template_tokens(self, kind: int, more: int) -> Self:
        """The same where prompts that are made up have `more` tokens beside their words, and are as long as they were."""
        if self.recipe is None:
            return self
        return replace(self, recipe=replace(self.recipe, overhead_tokens=self.recipe.overhead_tokens + more))

    def uncounted(self, kind: int) -> Self:
        """The same where nobody knows the tokens of prompts that are made up."""
        return replace(self, counted=False)

    def probe(
        self, level: int, k: int, kind: int, *, most_output_tokens: int, shortest: bool = False
    ) -> PlannedRequest:
        """Request `k` of `level`, with few output tokens, to try it on the server."""
        return self.build(level, k, most_output_tokens=most_output_tokens)

    def build(self, level: int, k: int, *, most_output_tokens: int | None = None) -> PlannedRequest:
        """Request `k` of `level`; for a probe of the server it may ask for fewer tokens than the row does."""
        row = self._dataset.row(self._order.row(level, k))
        if row.body is not None:
            return self._whole(row.body, level, k, most_output_tokens)
        input_tokens: int | None = None
        if row.messages is not None:
            prompt: dict[str, Any] = {"messages": row.messages}
        elif row.text is not None:
            prompt = self._prompt(row.text, row.system)
        else:
            passes = k // len(self._dataset)
            text, input_tokens = self._made_up.build(row, level=level, k=k, passes=passes)
            prompt = self._prompt(text.decode("ascii"))
        output_tokens = self._output_tokens(row.output_tokens, level, k, most_output_tokens)
        body: dict[str, Any] = {"model": self.model, **prompt, "max_tokens": output_tokens, **self._streamed}
        if self.ignore_eos:
            body |= {"ignore_eos": True, "min_tokens": output_tokens}
        counted = input_tokens if self.counted else None
        asked = orjson.dumps({**body, **self.extra_body})
        return PlannedRequest(k, asked, 0, counted, output_tokens, self.ignore_eos, self.stream)

    def made_up_samples(self, count: int) -> list[tuple[str, int]]:
        """Some prompts that were made up for the lengths of rows, each with its tokens; none where rows have prompts."""
        samples: list[tuple[str, int]] = []
        for k in range(0 if self.recipe is None else 4 * count):
            row = self._dataset.row(self._order.row(0, k))
            if row.input_tokens is not None and len(samples) < count:
                text, tokens = self._made_up.build(row, level=0, k=k, passes=0)
                samples.append((text.decode("ascii"), tokens))
        return samples

    def _whole(self, body: dict[str, Any], level: int, k: int, most: int | None) -> PlannedRequest:
        """A body as it stands in the file, with the target's model, as a stream that says how many tokens it has."""
        key = next((key for key in LENGTH_KEYS if body.get(key) is not None), "max_tokens")
        output_tokens = self._output_tokens(body.get(key), level, k, most)
        asked = {**body, "model": self.model, key: output_tokens, **self._streamed, **self.extra_body}
        if not self.stream:
            asked.pop("stream_options", None)  # the file's; servers refuse them without a stream
        # A longest length is not a length: only a server that is told so goes on after its end-of-sequence token.
        forced = bool(asked.get("ignore_eos")) and not asked.get("stop") and not asked.get("stop_token_ids")
        if forced:
            asked["min_tokens"] = output_tokens
        return PlannedRequest(k, orjson.dumps(asked), 0, None, output_tokens, forced, self.stream)

    def _prompt(self, text: str, system: str | None = None) -> dict[str, Any]:
        if self.endpoint == "completions":
            return {"prompt": text if system is None else f"{system}\n\n{text}"}
        ahead = [] if system is None else [{"role": "system", "content": system}]
        return {"messages": [*ahead, {"role": "user", "content": text}]}

    def _output_tokens(self, asked: int | None, level: int, k: int, most: int | None) -> int:
        tokens = self.output_tokens.at(self._draws.at(level, k)) if asked is None else asked
        return tokens if most is None else min(tokens, most)

    @cached_property
    def _streamed(self) -> dict[str, Any]:
        if not self.stream:
            return {"stream": False}
        options: dict[str, Any] = {"include_usage": True}
        if self.continuous_usage:
            options["continuous_usage_stats"] = True
        return {"stream": True, "stream_options": options}

    @cached_property
    def _dataset(self) -> Dataset:
        return Dataset(self.source, Path(self.folder))

    @cached_property
    def _order(self) -> Order:
        rows = len(self._dataset)
        return InFileOrder(rows) if self.in_file_order else Shuffled(rows, self.seed)

    @cached_property
    def _draws(self) -> Draws:
        return Draws(self.seed, "output_tokens")

    @cached_property
    def _made_up(self) -> MadeUpPrompts:
        assert self.recipe is not None, "a file with rows of lengths only comes with a recipe"
        return MadeUpPrompts(self.recipe, self.source.block_tokens)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON and msgpack carry; `from_dict` reads it back."""
        return {
            "source": asdict(self.source),
            "folder": self.folder,
            "digest": self.digest,
            "in_file_order": self.in_file_order,
            "seed": self.seed,
            "endpoint": self.endpoint,
            "model": self.model,
            "output_tokens": self.output_tokens.to_dict(),
            "ignore_eos": self.ignore_eos,
            "continuous_usage": self.continuous_usage,
            "extra_body": dict(self.extra_body),
            "recipe": None if self.recipe is None else self.recipe.to_dict(),
            "stream": self.stream,
            "counted": self.counted,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DatasetWorkload:
        """The workload that `to_dict` described, on a host where its file is at hand (`loadgen.datasets.at_hand`)."""
        return cls(
            source=Source(**data["source"]),
            folder=data["folder"],
            digest=data["digest"],
            in_file_order=data["in_file_order"],
            seed=data["seed"],
            endpoint=data["endpoint"],
            model=data["model"],
            output_tokens=distribution(data["output_tokens"]),
            ignore_eos=data["ignore_eos"],
            continuous_usage=data["continuous_usage"],
            extra_body=data["extra_body"],
            recipe=None if data["recipe"] is None else PromptRecipe.from_dict(data["recipe"]),
            stream=data["stream"],
            counted=data["counted"],
        )
