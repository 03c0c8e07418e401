"""The data of one event: takes its bytes, gives the JSON value in them; never raises.

orjson reads nearly all of them. What it refuses is tried once more by the standard library, because servers do send it and
it means something: NaN among log probabilities, half of a surrogate pair (a character of two UTF-16 units cut between
two events), bytes that are no UTF-8 (which the WHATWG reads as U+FFFD).
"""

from __future__ import annotations

import json
from typing import Any

import orjson

DONE = b"[DONE]"

_DEEPEST = 500


def load(data: bytes) -> Any:
    """The JSON value; None when there is none, as for `null`."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return load_leniently(data)


def load_leniently(data: bytes) -> Any:
    """The same for data that orjson has refused."""
    if not data.strip() or is_done(data):  # frequent, and no JSON
        return None
    try:
        value = json.loads(data.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return None if _is_deep(value) else value


def _is_deep(value: Any) -> bool:
    """Whether lists and objects are nested further than any Python version reads from any depth of its own stack."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for holder in level
            if isinstance(holder, dict | list)
            for inner in (holder.values() if isinstance(holder, dict) else holder)
        ]
        if not level:
            return False
    return True


def is_done(data: bytes) -> bool:
    """Whether this is the mark of a complete stream; some servers put it between quotation marks."""
    return len(data) < 64 and data.strip().strip(b'"').strip() == DONE
