"""Builds the bytes of a reply in vLLM's shape: an HTTP chunk with one SSE event a token. Takes texts, sends nothing."""

from __future__ import annotations

from typing import Any

import orjson

from server.simulator.ask import Endpoint

_DONE = b"data: [DONE]\n\n"


class Frames:
    """The events of one stream. Prefix and suffix are built once; a token costs three concatenations."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        response_id: str,
        created_s: int,
        model: str,
        prompt_tokens: int,
        include_usage: bool,
        continuous_usage: bool,
    ) -> None:
        self._chat = endpoint == "chat"
        self._prompt_tokens = prompt_tokens
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        name = "chat.completion.chunk" if self._chat else "text_completion"
        envelope = {"id": response_id, "object": name, "created": created_s, "model": model}
        self._envelope = b"data: " + orjson.dumps(envelope)[:-1]
        before, after = (b'"delta":{"content":"', b'"}') if self._chat else (b'"text":"', b'"')
        self._head = self._envelope + b',"choices":[{"index":0,' + before
        self._after_text = after + b',"logprobs":null,"finish_reason":'
        tail = self._after_text + (b"null" if self._chat else b'null,"stop_reason":null') + b',"token_ids":null}]'
        self._tail = tail + (b"" if continuous_usage else b"}\n\n")
        self._framed_heads: dict[int, bytes] = {}

    def opening(self) -> bytes:
        """What comes before the first token: the role event of a chat, nothing for a completion."""
        if not self._chat:
            return b""
        choice = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        usage = b"," + self._usage(0) if self._continuous_usage else b""
        nulls = b',"prompt_token_ids":null,"prompt_text":null}\n\n'
        return _chunk(self._envelope + b',"choices":[' + choice + b"]" + usage + nulls)

    def token(self, text: bytes, n: int) -> bytes:
        """The event of token n (from 1) that is not the last; `text` is JSON-escaped."""
        if self._continuous_usage:
            return _chunk(self._head + text + self._tail + b"," + self._usage(n) + b"}\n\n")
        head = self._framed_heads.get(len(text))
        if head is None:
            head = b"%x\r\n" % (len(self._head) + len(text) + len(self._tail)) + self._head
            self._framed_heads[len(text)] = head
        return head + text + self._tail + b"\r\n"

    def last(self, text: bytes, n: int, finish_reason: str, stop_reason: str | None) -> bytes:
        """The event of the last token, the usage event if asked for, and `[DONE]`; without the end of the body."""
        reasons = orjson.dumps(finish_reason) + b',"stop_reason":' + orjson.dumps(stop_reason)
        event = self._head + text + self._after_text + reasons + b',"token_ids":null}]'
        if self._continuous_usage:
            event += b"," + self._usage(n)
        frames = _chunk(event + b"}\n\n")
        if self._include_usage:
            frames += _chunk(self._envelope + b',"choices":[],' + self._usage(n) + b"}\n\n")
        return frames + _chunk(_DONE)

    def _usage(self, n: int) -> bytes:
        p = self._prompt_tokens
        return b'"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (p, p + n, n)


def whole_answer(
    endpoint: Endpoint,
    *,
    response_id: str,
    created_s: int,
    model: str,
    prompt_tokens: int,
    texts: list[str],
    finish_reason: str,
    stop_reason: str | None,
) -> dict[str, Any]:
    """The JSON of an answer that is not streamed."""
    text, n = "".join(texts), len(texts)
    ending = {"logprobs": None, "finish_reason": finish_reason, "stop_reason": stop_reason, "token_ids": None}
    if endpoint == "chat":
        message = {"role": "assistant", "content": text, "refusal": None, "function_call": None, "reasoning": None}
        choice = {"index": 0, "message": message, **ending}
    else:
        choice = {"index": 0, "text": text, **ending}
    return {
        "id": response_id,
        "object": "chat.completion" if endpoint == "chat" else "text_completion",
        "created": created_s,
        "model": model,
        "choices": [choice],
        "system_fingerprint": None,
        "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + n, "completion_tokens": n},
    }


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)
