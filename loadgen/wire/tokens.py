"""What the events of a stream carry: takes their parsed JSON, gives generated text and usage; knows no bytes, no time.

This is the only definition of "a token arrived", used on the hot path (`sse.FirstToken`) and afterwards (`decode`).
"""

from __future__ import annotations

import json
import operator
from typing import Any

NOTHING = ("", "")

MOST_TOKENS = 2**31 - 1
"""A larger count is not a count; it would not fit `RequestRecord.event_tokens` either."""

_NOT_AN_END = frozenset({"null", "none", "not_finished"})
"""Finish reasons that some servers put in events that end nothing (DashScope, TensorRT-LLM)."""


def generated(choice: dict[str, Any]) -> tuple[str, str]:
    """The (visible, reasoning) text that one entry of `choices` brings; `NOTHING` when it carries none.

    Visible: `delta.content`, `delta.refusal`, names and arguments of `delta.tool_calls` and of the older
    `delta.function_call`, `text` of completions. Reasoning: `delta.reasoning`, or `delta.reasoning_content`, its older
    name (some vLLM versions send both, equal). Content may be a list of parts (Mistral).
    White space is text; an empty string, null, a missing key or a value of another type is not.
    """
    delta = choice.get("delta")
    if type(delta) is not dict:
        text = choice.get("text")
        return (text, "") if type(text) is str else NOTHING

    content = delta.get("content")
    visible: str = content if type(content) is str else ""
    if visible and len(delta) == 1:  # nine events in ten
        return visible, ""

    reasoning = ""
    for text in (delta.get("reasoning"), delta.get("reasoning_content")):
        if type(text) is str and text:
            reasoning = text
            break
    if type(content) is list:
        visible, thoughts = _of_parts(content)
        reasoning = reasoning or thoughts

    refusal = delta.get("refusal")
    if type(refusal) is str:
        visible += refusal
    calls = delta.get("tool_calls")
    for call in calls if type(calls) is list else ():
        if type(call) is dict:
            visible += _call_text(call.get("function")) or _call_text(call.get("custom"))
    if "function_call" in delta:
        visible += _call_text(delta["function_call"])
    return visible, reasoning


def _of_parts(parts: list[Any]) -> tuple[str, str]:
    """(visible, reasoning) text of a content that is a list of typed parts; thoughts are lists of parts themselves."""
    visible = reasoning = ""
    for part in parts:
        if type(part) is dict:
            text, thoughts = part.get("text"), part.get("thinking")
            if type(text) is str:
                visible += text
            if type(thoughts) is str:
                reasoning += thoughts
            for thought in thoughts if type(thoughts) is list else ():
                if type(thought) is dict and type(thought.get("text")) is str:
                    reasoning += thought["text"]
    return visible, reasoning


def _call_text(function: object) -> str:
    """Name and arguments, or a part of them, of one call; some servers give the arguments as an object."""
    text = ""
    if type(function) is dict:
        for part in (function.get("name"), function.get("arguments"), function.get("input")):
            if type(part) is str:
                text += part
            elif type(part) is dict and part:
                try:
                    text += json.dumps(part, ensure_ascii=False)
                except RecursionError:
                    text += "{…}"
    return text


def has_tokens_without_text(choice: dict[str, Any]) -> bool:
    """Whether a choice names tokens though it has no text: by `token_ids` (vLLM) or their log probabilities."""
    ids = choice.get("token_ids")
    if type(ids) is list and ids:
        return True
    logprobs = choice.get("logprobs")
    if type(logprobs) is not dict:
        return False
    return any(type(logprobs.get(key)) is list and logprobs[key] for key in ("content", "tokens"))


def finish_reason(choice: dict[str, Any]) -> str | None:
    """Why a choice has ended, or None while it goes on."""
    reason = choice.get("finish_reason")
    return reason if reason and type(reason) is str and reason.lower() not in _NOT_AN_END else None


class TokenWatch:
    """Says of each event of one stream, in order, whether it brings a generated token.

    Text in any channel is one, and so are tokens that are named without text in an event that ends nothing. So is a
    count that goes up without text: servers send special tokens, and the beginnings of characters that take several
    tokens, as events with an empty text, and only `usage.completion_tokens` of `continuous_usage_stats` shows them. That
    is believed only while every token-carrying event has had a count higher than the one before, and before the finish
    reason: so the total that comes with or after the last token is not taken for one, whatever stood in its place before.
    """

    __slots__ = ("_counted", "_finished", "_known")

    def __init__(self) -> None:
        self._known: int | None = 0
        """Tokens so far, as counted; None once the counts are not to be believed."""
        self._counted = False
        self._finished = False

    def carries(self, *, text: bool, finish: bool, choices: int, count: int | None) -> bool:
        """`text`: any choice has some; `finish`: any has a finish reason; `count`: the event's `completion_tokens`."""
        known = self._known
        carried = text
        if choices > 1:  # each choice has its own count
            self._known = None
        elif count is None:
            if text:
                self._known = None
        else:
            if known is not None:
                if text or count < known:
                    self._known = count if count > known else None
                elif count > known:
                    self._known = count
                    carried = choices == 1 and not self._finished and (self._counted or not finish)
            self._counted = self._counted or choices == 1
        if finish:
            self._finished = True
        return carried

    def pass_texts(self, counts: list[int] | None) -> None:
        """The same for events that have text, one choice and no finish reason, all with a count or (None) all without."""
        if counts is None:
            self._known = None
            return
        known = self._known
        rising = known is not None and all(map(operator.lt, [known, *counts], counts))
        self._known = counts[-1] if rising else None
        self._counted = True

    def carries_token(self, event: object) -> bool:
        """The same, of a whole event."""
        if type(event) is not dict:
            return False
        choices = event.get("choices")
        found = [choice for choice in choices if type(choice) is dict] if type(choices) is list else []
        finish = any(finish_reason(choice) for choice in found)
        text = any(generated(choice) != NOTHING for choice in found)
        usage = event.get("usage")
        return self.carries(
            text=text or (not finish and any(has_tokens_without_text(choice) for choice in found)),
            finish=finish,
            choices=len(found),
            count=token_count(usage.get("completion_tokens")) if type(usage) is dict else None,
        )


def is_error(event: dict[str, Any]) -> bool:
    """Whether an event inside a stream says that generation failed; `"error": null` or `""` does not."""
    error = event.get("error")
    if error:
        return type(error) is not dict or any(error.values())  # {"code": null, "message": ""} says nothing
    return not event.get("choices") and _is_bare_error(event)


def _is_bare_error(event: dict[str, Any]) -> bool:
    """The same for an event without choices, where an error need not be called so.

    OpenAI's `{"type": "error"}`, FastAPI's `{"detail"}`, FastChat's `{"text", "error_code"}`, `{"code", "message"}`, and
    `{"error": {}}`, which is how Go writes most of its errors.
    """
    kinds = [kind for key in ("object", "type", "status") if type(kind := event.get(key)) is str]
    if "error" in kinds or event.get("error") == {}:
        return True
    if any(event.get(key) for key in ("detail", "errors", "error_code", "error_type", "error_message")):
        return True
    code = event.get("code") or event.get("status_code")
    failed = bool(code) and code not in (200, "200", "ok")
    failed = failed or any("error" in kind.lower() for kind in kinds)  # not a heartbeat with a message
    return failed and any(type(event.get(key)) is str and event[key] for key in ("message", "details"))


def late_usage(event: dict[str, Any], choice: dict[str, Any]) -> object:
    """The usage that some servers put elsewhere in the event that brings the finish reason.

    `choices[0].usage` (Moonshot) and `x_groq.usage` (Groq).
    """
    beside = event.get("x_groq")
    return choice.get("usage") or (beside.get("usage") if type(beside) is dict else None)


def token_count(value: object) -> int | None:
    """A usage figure, or None for what is not one: null, a negative or broken number, true, a string."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None
