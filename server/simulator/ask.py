"""Reads request bodies as vLLM does: takes bytes, gives a checked request or an error in vLLM's words. No network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

Endpoint = Literal["chat", "completions"]

DEFAULT_COMPLETION_TOKENS = 16
"""`max_tokens` of /v1/completions when the client gives none (OpenAI's default)."""


class ApiError(Exception):
    """An answer other than 200, with vLLM's error body."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self._body = {"error": {"message": message, "type": kind, "param": param, "code": status}}

    def body(self) -> bytes:
        """The JSON to send."""
        return orjson.dumps(self._body)


@dataclass(frozen=True, slots=True)
class Ask:
    """A generation request that may be served; the prompt is a text, token ids, or chat messages."""

    endpoint: Endpoint
    prompt: str | list[int] | list[dict[str, Any]]
    add_special_tokens: bool
    add_generation_prompt: bool
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    stream_interval: int = 1
    faults: str = ""
    """What is to go wrong with it (`faults`)."""


@dataclass(frozen=True, slots=True)
class TokenizeAsk:
    """A request to /tokenize."""

    prompt: str | list[dict[str, Any]]
    add_special_tokens: bool
    add_generation_prompt: bool
    return_token_strs: bool


def read_generation(body: bytes, endpoint: Endpoint, *, model: str, max_model_len: int) -> Ask:
    """Check a body of /v1/chat/completions or /v1/completions; ApiError says what is wrong with it."""
    data = _object(body)
    _check_model(data, model)
    if _integer(data, "n", 1) != 1:
        raise ApiError("The simulator answers with one choice only; leave n out or set it to 1.", param="n")
    limit_name = "max_tokens"
    if endpoint == "chat":
        prompt: str | list[int] | list[dict[str, Any]] = _messages(data)
        if data.get("max_completion_tokens") is not None:
            limit_name = "max_completion_tokens"
        max_tokens = _integer(data, limit_name, None)
    else:
        prompt = _prompt(data.get("prompt"))
        max_tokens = _integer(data, limit_name, DEFAULT_COMPLETION_TOKENS)
    if max_tokens is not None and max_tokens < 1:
        raise ApiError(f"{limit_name} must be at least 1, got {max_tokens}.", param=limit_name)
    if max_tokens is not None and max_tokens > max_model_len:
        raise ApiError(
            f"{limit_name}={max_tokens} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            param=limit_name,
        )
    min_tokens = _integer(data, "min_tokens", 0)
    assert min_tokens is not None
    if min_tokens < 0 or (max_tokens is not None and min_tokens > max_tokens):
        raise ApiError(f"min_tokens must be between 0 and max_tokens={max_tokens}, got {min_tokens}.")
    stream = _flag(data, "stream", False)
    options = data.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise _invalid("stream_options", "a JSON object")
    if options and not stream:
        raise ApiError("Stream options can only be defined when `stream=True`.", param="stream_options")
    include_usage = _flag(options or {}, "include_usage", False)
    return Ask(
        endpoint=endpoint,
        prompt=prompt,
        add_special_tokens=_flag(data, "add_special_tokens", endpoint == "completions"),
        add_generation_prompt=_flag(data, "add_generation_prompt", True),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=_flag(data, "ignore_eos", False),
        stop=_stop(data.get("stop")),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and _flag(options or {}, "continuous_usage_stats", False),
        stream_interval=_at_least_one(data, "stream_interval"),
        faults=_text(data, "simulator_fault"),
    )


def read_tokenize(body: bytes, *, model: str) -> TokenizeAsk:
    """Check a body of /tokenize: it has a `prompt`, or `messages`."""
    data = _object(body)
    _check_model(data, model)
    chat = "messages" in data
    prompt: str | list[dict[str, Any]]
    if chat:
        prompt = _messages(data)
    else:
        text = data.get("prompt")
        if not isinstance(text, str):
            raise _invalid("prompt", "a string")
        prompt = text
    return TokenizeAsk(
        prompt=prompt,
        add_special_tokens=_flag(data, "add_special_tokens", not chat),
        add_generation_prompt=_flag(data, "add_generation_prompt", True),
        return_token_strs=_flag(data, "return_token_strs", False),
    )


def prompt_too_long(prompt_tokens: int, max_model_len: int) -> ApiError:
    """The refusal of a prompt that leaves no room for an output token."""
    if prompt_tokens == max_model_len:
        return ApiError("max_tokens must be at least 1, got 0.", param="max_tokens")
    return ApiError(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains {prompt_tokens} "
        "input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt.",
        param="input_tokens",
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(f"1 validation error:\n  JSON decode error: {error}", kind="Bad Request", param="body") from None
    if not isinstance(data, dict):
        raise _invalid("body", "a JSON object")
    return data


def _check_model(data: Mapping[str, Any], model: str) -> None:
    asked = data.get("model")
    if asked and asked != model:
        raise ApiError(f"The model `{asked}` does not exist.", status=404, kind="NotFoundError", param="model")


def _messages(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _invalid("messages", "a list of messages, at least one")
    plain = []
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _invalid(f"messages.{i}", "an object with a role")
        plain.append({**message, "content": _content(message.get("content"), i)})
    return plain


def _content(content: object, i: int) -> str:
    """Text parts are joined by newlines, as vLLM does for a template that takes strings; other parts are refused."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            return "\n".join(text for text in texts if isinstance(text, str))
    raise _invalid(f"messages.{i}.content", "a string or a list of text parts")


def _prompt(prompt: object) -> str | list[int]:
    """One text or one list of token ids, bare or as the only one of a list."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt and all(type(i) is int and i >= 0 for i in prompt):
        return prompt
    raise _invalid("prompt", "one string or one list of token ids")


def _stop(stop: object) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(end, str) and end for end in stops):
        raise _invalid("stop", "a string or a list of strings, none of them empty")
    return tuple(stops)


def _integer(data: Mapping[str, Any], name: str, default: int | None) -> int | None:
    value = data.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise _invalid(name, "an integer")
    return value


def _at_least_one(data: Mapping[str, Any], name: str) -> int:
    value = _integer(data, name, 1)
    assert value is not None
    if value < 1:
        raise ApiError(f"{name} must be at least 1, got {value}.", param=name)
    return value


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _invalid(name, "a string")
    return value


def _flag(data: Mapping[str, Any], name: str, default: bool) -> bool:
    value = data.get(name)
    if value is None:
        return default
    if type(value) is not bool:
        raise _invalid(name, "true or false")
    return value


def _invalid(name: str, wanted: str) -> ApiError:
    return ApiError(f"1 validation error:\n  {name}: must be {wanted}", kind="Bad Request", param=name)
