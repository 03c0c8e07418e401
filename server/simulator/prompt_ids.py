"""Turns the prompt of a request into token ids: takes a checked request, gives ids or vLLM's refusal; a long one in a thread."""

from __future__ import annotations

import asyncio
from typing import Any

from server.simulator.ask import ApiError, Ask, TokenizeAsk
from server.simulator.prompt import PromptTokens

_INLINE_CHARS = 16_384
"""Longer prompts are tokenised in a thread, so that they do not hold up everyone's tokens."""


class PromptIds:
    """The prompts of one server."""

    def __init__(self, tokens: PromptTokens) -> None:
        self._tokens = tokens

    async def of_request(self, ask: Ask) -> list[int]:
        """At least one; ApiError for an empty prompt and for messages that the template refuses."""
        prompt = ask.prompt
        if isinstance(prompt, str):
            text = prompt
        elif isinstance(prompt[0], dict):
            text = self._rendered(prompt, ask.add_generation_prompt)
        else:
            return [i for i in prompt if isinstance(i, int)]
        ids = await self._encoded(text, ask.add_special_tokens)
        if not ids:
            raise ApiError("The decoder prompt cannot be empty")
        return ids

    async def of_tokenize(self, ask: TokenizeAsk) -> list[int]:
        """What /tokenize answers, which may be nothing."""
        text = ask.prompt if isinstance(ask.prompt, str) else self._rendered(ask.prompt, ask.add_generation_prompt)
        return await self._encoded(text, ask.add_special_tokens)

    async def _encoded(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) <= _INLINE_CHARS:
            return self._tokens.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self._tokens.encode, text, add_special_tokens=add_special_tokens)

    def _rendered(self, messages: Any, add_generation_prompt: bool) -> str:
        try:
            return self._tokens.render(messages, add_generation_prompt=add_generation_prompt)
        except ValueError as error:
            raise ApiError(str(error)) from error
