"""What the events of a stream carry: takes their parsed JSON, gives generated text and usage; knows no bytes, no time.

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


class TokenWatch:
    """Says of each event of one stream, in order, whether it brings a generated token.

    Text in any channel is one. So is a count that goes up without text: servers send special tokens, and the beginnings
    of characters that take several tokens, as events with an empty text, and only `usage.completion_tokens` of
    `continuous_usage_stats` shows them. That is believed only while every token-carrying event has had a count, so the
    total that comes with or after the last token is not taken for one.
    """

    __slots__ = ("_counted", "_known")

    def __init__(self) -> None:
        self._known: int | None = 0
        """Tokens so far, as counted; None once an event with text came without a count."""
        self._counted = False

    def carries(self, *, text: bool, finish: bool, choices: int, count: int | None) -> bool:
        """`text`: any choice has some; `finish`: any has a finish reason; `count`: the event's `completion_tokens`."""
        known = self._known
        if choices > 1:  # each choice has its own count
            self._known = None
        elif count is not None:
            carried = text or (choices == 1 and known is not None and count > known and (self._counted or not finish))
            self._known = None if known is None else count
            self._counted = True
            return carried
        elif text:
            self._known = None
        return text

    def carries_token(self, event: object) -> bool:
        """The same, of a whole event."""
        choices = event.get("choices") if type(event) is dict else None
        if type(event) is not dict or type(choices) is not list:
            return False
        found = [choice for choice in choices if type(choice) is dict]
        usage = event.get("usage")
        return self.carries(
            text=any(generated(choice) != NOTHING for choice in found),
            finish=any(choice.get("finish_reason") for choice in found),
            choices=len(found),
            count=token_count(usage.get("completion_tokens")) if type(usage) is dict else None,
        )


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
