"""Takes values out of one parsed row and says which key holds something else than it should."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from loadgen.datasets.errors import Place

MOST_TOKENS = 1 << 30
"""Above this a length is no length of a text."""


def parsed_object(data: bytes, place: Place) -> dict[str, Any]:
    """The JSON object of one row. Raises DatasetError with the column where it is not one."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise place.refusal(
            f"It is not valid JSON: {error.msg.split(':')[0]}, in column {error.colno}.",
            "Mend the line or take it out.",
        ) from None
    if not isinstance(value, dict):
        raise place.refusal(
            f"It holds {shown(value)}, not an object.", 'Every line is an object such as {"prompt": "…"}.'
        )
    return value


def token_count(row: Mapping[str, Any], keys: Sequence[str], place: Place) -> int | None:
    """The whole number under the first of `keys` that is there and not null; None where none is."""
    for key in keys:
        value = row.get(key)
        if value is not None:
            if type(value) is not int or not 0 <= value <= MOST_TOKENS:
                raise place.refusal(
                    f"{key} is {shown(value)}, not a number of tokens.", "It must be a whole number, zero or more."
                )
            return value
    return None


def required_count(row: Mapping[str, Any], keys: Sequence[str], place: Place) -> int:
    count = token_count(row, keys, place)
    if count is None:
        raise place.refusal(f"It has no {keys[0]}.", "Every line of such a trace needs it.")
    return count


def instant_ms(row: Mapping[str, Any], place: Place) -> float | None:
    """`timestamp` in seconds, which such files give in milliseconds; None where it is not there."""
    value = row.get("timestamp")
    if value is None:
        return None
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise place.refusal(
            f"timestamp is {shown(value)}, not an instant.", "It must be a number of milliseconds, zero or more."
        )
    return float(value) / 1e3


def chat_messages(value: Any, place: Place) -> list[dict[str, Any]]:
    """A chat's messages: objects with a role, at least one. Their content is the server's to judge."""
    if not isinstance(value, list) or not value:
        raise place.refusal(
            f"messages is {shown(value)}, not a list of messages.",
            'Write for example {"messages": [{"role": "user", "content": "…"}]}.',
        )
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise place.refusal(
                "messages holds something that is not a message.", "Every message is an object with role and content."
            )
    return value


def prompt_text(row: Mapping[str, Any], key: str, place: Place) -> str:
    value = row[key]
    if not isinstance(value, str) or not value:
        raise place.refusal(f"{key} is {shown(value)}, not a text.", "It must be a text that is not empty.")
    return value


def shown(value: object) -> str:
    """A value on one line and short; texts are cut, since they may be long and are the user's."""
    if isinstance(value, str):
        return "empty" if not value else f"the text {value[:20]!r}{'…' if len(value) > 20 else ''}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "null" if value is None else str(value).lower()
