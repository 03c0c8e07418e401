"""What one event of a stream carries: takes its parsed JSON, gives generated text and usage; knows no bytes, no time.

This is the only definition of "a token arrived", used on the hot path (`sse.FirstToken`) and afterwards (`decode`).
"""

from __future__ import annotations

from typing import Any

NOTHING = ("", "")

MOST_TOKENS = 2**31 - 1
"""A larger count is not a count; it would not fit `RequestRecord.event_tokens` either."""


def generated(choice: dict[str, Any]) -> tuple[str, str]:
    """The (visible, reasoning) text that one entry of `choices` brings; `NOTHING` when it carries no token.

    Visible: `delta.content`, names and arguments of `delta.tool_calls`, `text` of completions.
    Reasoning: `delta.reasoning`, or `delta.reasoning_content`, its older name (some vLLM versions send both, equal).
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

    calls = delta.get("tool_calls")
    if type(calls) is list:
        for call in calls:
            function = call.get("function") if type(call) is dict else None
            if type(function) is dict:
                for part in (function.get("name"), function.get("arguments")):
                    if type(part) is str:
                        visible += part

    for reasoning in (delta.get("reasoning"), delta.get("reasoning_content")):
        if type(reasoning) is str and reasoning:
            return visible, reasoning
    return visible, ""


def carries_token(event: object) -> bool:
    """Whether an event brings at least one generated token, in any channel of any choice."""
    choices = event.get("choices") if type(event) is dict else None
    if type(choices) is not list:
        return False
    return any(type(choice) is dict and generated(choice) != NOTHING for choice in choices)


def is_error(event: dict[str, Any]) -> bool:
    """Whether an event inside a stream says that generation failed; `"error": null` or `""` does not."""
    return bool(event.get("error")) or event.get("object") == "error"


def late_usage(event: dict[str, Any], choice: dict[str, Any]) -> object:
    """The usage that some servers put elsewhere in the event that brings the finish reason.

    `choices[0].usage` (Moonshot) and `x_groq.usage` (Groq).
    """
    beside = event.get("x_groq")
    return choice.get("usage") or (beside.get("usage") if type(beside) is dict else None)


def token_count(value: object) -> int | None:
    """A usage figure, or None for what is not one: null, a negative or broken number, true, a string."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None
