"""The target's API key: read from the environment where it is needed, kept out of everything that is written."""

from __future__ import annotations

import os

from loadgen.errors import UsageError

REDACTED = "<key>"


def read_api_key(variable: str) -> str | None:
    """The key in an environment variable, None where it is unset or empty.

    Raises UsageError for what cannot be a key (a line end at its end, say), naming the variable, never the value.
    """
    key = os.environ.get(variable)
    if not key:
        return None
    if not (key.isascii() and key.isprintable()) or key != key.strip():
        raise UsageError(
            f"The API key in {variable} has a character that no header can carry, such as a space or line end around it.",
            hint=f"set {variable} again, without what surrounds the key",
        )
    return key


def without_key(text: str, key: str | None) -> str:
    """`text` with the key cut out: servers repeat it in their errors."""
    return text.replace(key, REDACTED) if key else text
