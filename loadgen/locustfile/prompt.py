"""A prompt that knows how many tokens it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Messages = Sequence[Mapping[str, Any]]
"""Messages of a chat, as the API takes them."""


class Prompt(str):
    """A text with the number of tokens that the server will count; as part of another text it is one like any other."""

    __slots__ = ("input_tokens",)
    input_tokens: int

    def __new__(cls, text: str, input_tokens: int) -> Prompt:
        prompt = super().__new__(cls, text)
        prompt.input_tokens = input_tokens
        return prompt
