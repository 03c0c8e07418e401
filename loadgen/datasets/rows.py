"""What one line of a dataset asks for, whatever its format: a prompt or the lengths of one, and perhaps an instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LENGTH_KEYS = ("max_completion_tokens", "max_tokens")
"""Keys of a body that limit its answer, the newer one first."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a file. Exactly one of `text`, `messages`, `body` and `input_tokens` is there."""

    line: int
    """Where it begins in the file, from 1."""
    text: str | None = None
    """The prompt, or the one message of the user."""
    system: str | None = None
    """What the system says ahead of `text`."""
    messages: list[dict[str, Any]] | None = None
    """The messages of a chat."""
    body: dict[str, Any] | None = None
    """A whole body as an OpenAI API takes it."""
    input_tokens: int | None = None
    """Length of a prompt that has to be made up."""
    output_tokens: int | None = None
    """Length of the answer; None leaves it to the scenario."""
    timestamp_s: float | None = None
    """When it was sent, in seconds from an origin that all rows of the file share."""
    hash_ids: tuple[int, ...] = ()
    """Ids of the prompt's blocks from the first on: equal ids are equal tokens. Only with `input_tokens`."""

    @property
    def most_output_tokens(self) -> int | None:
        """Tokens that its answer may have, by its body too; None leaves it to the scenario."""
        if self.body is None:
            return self.output_tokens
        return next((self.body[key] for key in LENGTH_KEYS if self.body.get(key) is not None), None)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that is in order and yet no request that could be sent."""

    reason: str
    """What such rows have in common; without numbers, since rows are counted by it."""
