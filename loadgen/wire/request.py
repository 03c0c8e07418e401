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
    ) -> None:
        """`extra` has further keys of the body, such as `temperature`; none of `OWN_KEYS`."""
        body: dict[str, Any] = {"model": model}
        prompt = orjson.loads(_PROMPT)
        if endpoint == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        body["max_tokens"] = orjson.loads(_TOKENS)
        body["stream"] = True
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
        return self._before + quoted + (b"%d" % output_tokens).join(self._between)
