"""Bytes of answers: takes what a request asks for, gives a stream's HTTP chunks ready to send. No I/O, no clock.

A stream's text is the same for all requests of one shape, so it is built once a shape; a request only has its own id
put in, and a token then costs a slice.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from server.metronome.request import BadRequestError
from server.simulator.frames import Frames, whole_answer

Endpoint = Literal["chat", "completions"]

MAX_MODEL_LEN = 131_072
CHAT_TOKENS = 4
"""What a chat template adds to a prompt here."""

WORDS = (" the", " and", " for", " you", " was", " are", " not", " but", " all", " can", " had", " her", " one", " our")
_ID_MARK = "@" * 16
_MOST_SHAPES = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides the text of a stream but for its id."""

    endpoint: Endpoint
    model: str
    prompt_tokens: int
    """0 where the stream does not tell."""
    tokens: int
    include_usage: bool
    continuous_usage: bool


@dataclass(frozen=True, slots=True)
class Script:
    """A stream: `opening` comes just before the first token; token i is `body[ends[i]:ends[i + 1]]`, and the last one
    brings the end of the stream with it."""

    opening: bytes
    body: bytes
    ends: list[int]


def read_shape(endpoint: Endpoint, asked: dict[str, Any], *, default_model: str, default_tokens: int) -> Shape:
    """What a body asks for; fields that are not known are ignored. Raises BadRequestError."""
    tokens = asked.get("max_completion_tokens") or asked.get("max_tokens") or default_tokens
    if type(tokens) is not int or not 0 < tokens < MAX_MODEL_LEN:
        raise BadRequestError(f"max_tokens must be from 1 to {MAX_MODEL_LEN - 1}, got {tokens!r}.")
    options = asked.get("stream_options")
    options = options if isinstance(options, dict) else {}
    include_usage = options.get("include_usage") is True
    streamed = asked.get("stream") is True
    return Shape(
        endpoint=endpoint,
        model=str(asked.get("model") or default_model),
        prompt_tokens=count_prompt(asked) if include_usage or not streamed else 0,
        tokens=tokens,
        include_usage=include_usage,
        continuous_usage=include_usage and options.get("continuous_usage_stats") is True,
    )


def count_prompt(asked: dict[str, Any]) -> int:
    """Tokens of the prompt or the messages: every word between white space is one."""
    messages = asked.get("messages")
    if isinstance(messages, list):
        return CHAT_TOKENS + sum(_count(message.get("content")) for message in messages if isinstance(message, dict))
    return _count(asked.get("prompt"))


def _count(text: Any) -> int:
    if isinstance(text, str):
        return len(text.split())
    if isinstance(text, dict):
        return _count(text.get("text"))
    if isinstance(text, list):
        return sum(1 if isinstance(part, int) else _count(part) for part in text)
    return 0


class Scripts:
    """Keeps the streams that were built, by shape."""

    def __init__(self, created_s: int) -> None:
        self._created_s = created_s
        self._built: dict[Shape, Script] = {}

    def script(self, shape: Shape, number: int) -> Script:
        """The stream of request `number`."""
        built = self._built.get(shape)
        if built is None:
            if len(self._built) == _MOST_SHAPES:
                self._built.clear()
            built = self._built[shape] = self._build(shape)
        mark, own = _ID_MARK.encode(), b"%016x" % number
        return Script(built.opening.replace(mark, own), built.body.replace(mark, own), built.ends)

    def _build(self, shape: Shape) -> Script:
        frames = Frames(
            shape.endpoint,
            response_id=_response_id(shape.endpoint, _ID_MARK),
            created_s=self._created_s,
            model=shape.model,
            prompt_tokens=shape.prompt_tokens,
            include_usage=shape.include_usage,
            continuous_usage=shape.continuous_usage,
        )
        words = itertools.cycle(word.encode() for word in WORDS)
        chunks = [frames.token(next(words), n) for n in range(1, shape.tokens)]
        chunks.append(frames.last(next(words), shape.tokens, "length", None) + b"0\r\n\r\n")
        return Script(frames.opening(), b"".join(chunks), list(itertools.accumulate(map(len, chunks), initial=0)))

    def whole(self, shape: Shape, number: int) -> bytes:
        """The JSON of an answer that is not streamed."""
        texts = list(itertools.islice(itertools.cycle(WORDS), shape.tokens))
        content = whole_answer(
            shape.endpoint,
            response_id=_response_id(shape.endpoint, f"{number:016x}"),
            created_s=self._created_s,
            model=shape.model,
            prompt_tokens=shape.prompt_tokens,
            texts=texts,
            finish_reason="length",
            stop_reason=None,
        )
        return orjson.dumps(content)


def _response_id(endpoint: Endpoint, own: str) -> str:
    return ("chatcmpl-" if endpoint == "chat" else "cmpl-") + own
