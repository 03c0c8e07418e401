"""Bodies of requests: takes a prompt, gives the JSON bytes that ask for an answer of a forced or a free length."""

from __future__ import annotations

from typing import Any

import orjson

from loadgen.wire.exchange import Endpoint

_PROMPT = "@@prompt@@"


class BodyTemplate:
    """The body of every request of a run but for its prompt, encoded once."""

    def __init__(
        self,
        *,
        model: str,
        endpoint: Endpoint,
        output_tokens: int,
        ignore_eos: bool,
        continuous_usage: bool,
    ) -> None:
        body: dict[str, Any] = {"model": model}
        if endpoint == "chat":
            body["messages"] = [{"role": "user", "content": _PROMPT}]
        else:
            body["prompt"] = _PROMPT
        body["max_tokens"] = output_tokens
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
        if continuous_usage:
            body["stream_options"]["continuous_usage_stats"] = True
        if ignore_eos:
            body["ignore_eos"] = True
            body["min_tokens"] = output_tokens
        self._before, self._after = orjson.dumps(body).split(orjson.dumps(_PROMPT))

    def body(self, prompt: str) -> bytes:
        """The JSON body for one prompt."""
        return self._before + orjson.dumps(prompt) + self._after
