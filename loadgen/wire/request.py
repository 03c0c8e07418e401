"""Bodies of requests: takes a prompt, gives the JSON bytes that ask for an answer of a forced or a free length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from loadgen.wire.exchange import Endpoint

_PROMPT = b'"@@prompt@@"'
_TOKENS = b'"@@tokens@@"'

OWN_KEYS = frozenset(
    {
        "model",
        "messages",
        "prompt",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "ignore_eos",
        "stream",
        "stream_options",
        "n",
    }
)
"""Keys of a body that nobody else may set: what is measured depends on them."""


_PROMPT_KEYS = frozenset(
    {
        "tools",
        "tool_choice",
        "functions",
        "function_call",
        "documents",
        "response_format",
        "structured_outputs",
        "chat_template",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "reasoning",
        "reasoning_effort",
        "thinking",
    }
)
"""Keys that a chat template may write into the prompt, or that choose what it writes."""

_STRUCTURES = frozenset(
    {
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "structural_tag",
        "json_schema",
        "grammar",
    }
)


def adds_to_prompt(extra: Mapping[str, Any]) -> bool:
    """Whether further keys of a body may change how many tokens its prompt has."""
    return not _PROMPT_KEYS.isdisjoint(extra)


def stands_ahead(extra: Mapping[str, Any]) -> bool:
    """Whether what further keys add to a prompt stands ahead of its words, where a prefix cache finds it again."""
    return not {"tools", "functions", "documents"}.isdisjoint(extra)


def structure_in(extra: Mapping[str, Any]) -> str | None:
    """The key of a body that gives its answer a form: JSON, a grammar, a call of a tool. None where there is none."""
    form = extra.get("response_format")
    if isinstance(form, Mapping) and form.get("type") not in (None, "text"):
        return "response_format"
    choice = extra.get("tool_choice")
    if choice == "required" or isinstance(choice, Mapping):
        return "tool_choice"
    return next((key for key in sorted(_STRUCTURES & set(extra)) if extra[key] is not None), None)


class BodyTemplate:
    """The body of every request of a kind but for its prompt and the length of its answer, encoded once."""

    def __init__(
        self,
        *,
        model: str,
        endpoint: Endpoint,
        ignore_eos: bool,
        continuous_usage: bool,
        extra: Mapping[str, Any] | None = None,
        stream: bool = True,
    ) -> None:
        """`extra` has further keys of the body, such as `temperature`; none of `OWN_KEYS`. Without `stream` the answer
        comes whole, with its usage in it."""
        body: dict[str, Any] = {"model": model}
        prompt = orjson.loads(_PROMPT)
        self._is_chat = endpoint == "chat"
        body["messages" if self._is_chat else "prompt"] = prompt
        body["max_tokens"] = orjson.loads(_TOKENS)
        body["stream"] = stream
        if stream:  # servers refuse the options without it
            body["stream_options"] = {"include_usage": True}
            if continuous_usage:
                body["stream_options"]["continuous_usage_stats"] = True
        if ignore_eos:
            body["ignore_eos"] = True
            body["min_tokens"] = orjson.loads(_TOKENS)
        # Our own placeholders come first and are taken in order, so that what stands in `extra` cannot be one.
        before, _, rest = orjson.dumps(body).partition(_PROMPT)
        self._before = before
        self._between = rest.split(_TOKENS)
        if extra:
            self._between[-1] = self._between[-1][:-1] + b"," + orjson.dumps(dict(extra))[1:]

    def body(self, prompt: str | bytes, output_tokens: int) -> bytes:
        """The JSON body for one prompt that asks for `output_tokens`; bytes are text that needs no escaping in JSON."""
        quoted = b'"' + prompt + b'"' if isinstance(prompt, bytes) else orjson.dumps(prompt)
        if self._is_chat:
            quoted = b'[{"role":"user","content":' + quoted + b"}]"
        return self.body_of(quoted, output_tokens)

    def body_of(self, prompt: bytes, output_tokens: int) -> bytes:
        """The same for the prompt's own JSON: a list of messages (chat) or a text in its quotation marks."""
        return self._before + prompt + (b"%d" % output_tokens).join(self._between)
