"""JSON Lines: a prompt, a chat or a whole request body on each line.

{"prompt": "…"}  {"text": "…"}  {"messages": […]}            with output_tokens and timestamp (ms) if you like
{"model": "…", "messages": […], "temperature": 0.2, …}       a whole body: everything in it is sent
"""

from __future__ import annotations

from typing import Any

from loadgen.datasets.errors import Place
from loadgen.datasets.fields import chat_messages, instant_ms, parsed_object, prompt_text, shown, token_count
from loadgen.datasets.rows import LeftOut, Row

OUTPUT_KEYS = ("output_tokens", "output_length", "max_completion_tokens", "max_tokens")
_PROMPT_KEYS = ("messages", "prompt", "text")


def looks_like(row: dict[str, Any]) -> bool:
    """Whether a first line is of this format."""
    return any(key in row for key in _PROMPT_KEYS)


def parse(data: bytes, place: Place) -> Row | LeftOut:
    """The row of one line. Raises DatasetError."""
    row = parsed_object(data, place)
    line = place.line or 0
    if "model" in row:
        return Row(line, body=whole_body(row, place), output_tokens=body_tokens(row, place))
    keys = [key for key in _PROMPT_KEYS if row.get(key) is not None]
    if len(keys) != 1:
        raise place.refusal(
            f"It has {' and '.join(keys) if keys else 'neither messages nor prompt nor text'}.",
            'Every line has one of them, such as {"prompt": "…"}; a whole request body has `model` too.',
        )
    output_tokens, timestamp_s = token_count(row, OUTPUT_KEYS, place), instant_ms(row, place)
    if output_tokens == 0:
        return LeftOut("an answer of no tokens")
    if keys == ["messages"]:
        messages = chat_messages(row["messages"], place)
        return Row(line, messages=messages, output_tokens=output_tokens, timestamp_s=timestamp_s)
    text = prompt_text(row, keys[0], place)
    return Row(line, text=text, output_tokens=output_tokens, timestamp_s=timestamp_s)


def whole_body(body: dict[str, Any], place: Place) -> dict[str, Any]:
    """A body that asks for one answer to one prompt; anything else about it is the server's to judge."""
    if body.get("messages") is not None:
        chat_messages(body["messages"], place)
    elif isinstance(prompts := body.get("prompt"), list):
        # Token ids are one prompt, a list of anything else is several.
        if not prompts or any(type(token) is not int for token in prompts):
            raise place.refusal(
                f"prompt is {shown(prompts)} of prompts, and a request here has one.", "Give each prompt its own line."
            )
    elif "prompt" in body:
        prompt_text(body, "prompt", place)
    else:
        raise place.refusal(
            "The body has neither messages nor prompt.",
            "Only bodies of /v1/chat/completions and /v1/completions can be sent.",
        )
    for key in ("n", "best_of"):
        if body.get(key) not in (None, 1):
            raise place.refusal(
                f"{key} is {shown(body[key])}, and the tokens of several answers cannot be told apart.",
                f"Take {key} out of the line.",
            )
    return body


def body_tokens(body: dict[str, Any], place: Place) -> int | None:
    """How long an answer the body allows; None where it does not say."""
    tokens = token_count(body, ("max_completion_tokens", "max_tokens"), place)
    if tokens == 0:
        raise place.refusal("The body allows an answer of no tokens.", "Give max_tokens at least 1, or leave it out.")
    return tokens
