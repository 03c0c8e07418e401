"""Headers that a scenario adds to every request: which there may be, which values are secret, and where secrets are kept.

A secret stands in the environment and everywhere else as a reference to it, `${NAME}`. One that was written out is moved
there, so that no file and no message of the run holds it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from loadgen.errors import UsageError

VARIABLE_PREFIX = "LOADGEN_HEADER_"
"""Begins the environment variable of a secret that was written out: `LOADGEN_HEADER_X_API_KEY`."""

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2; neither `:` nor `=` is in it
_SECRET_NAME = re.compile(r"auth|cookie|key$|token|secret|passw|credential|signature|jwt", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"^(bearer|basic|digest)\s|^((sk|hf|pk|key|ghp)[-_][\w.=-]{6,}|eyJ[\w.=-]{16,})$", re.IGNORECASE
)
_SHORTEST_SECRET = 4
"""Shorter contents of variables are not cut out of texts: they stand in half the words."""

_OF_THE_CONNECTION = "it belongs to one connection, which the program opens and closes"
_REFUSED: Mapping[str, str] = {
    "connection": f"{_OF_THE_CONNECTION}; target.connections says how long it is kept",
    "keep-alive": _OF_THE_CONNECTION,
    "proxy-connection": _OF_THE_CONNECTION,
    "te": _OF_THE_CONNECTION,
    "trailer": _OF_THE_CONNECTION,
    "transfer-encoding": _OF_THE_CONNECTION,
    "upgrade": _OF_THE_CONNECTION,
    "proxy-authenticate": "only a proxy sends it",
    "proxy-authorization": "a proxy's user and password stand in target.proxy",
    "host": "it follows from target.base_url",
    "content-length": "it follows from the body",
    "content-type": "the body is JSON",
    "content-encoding": "the body is not compressed",
    "expect": "the request would wait for an answer before its body",
    "accept": "it says whether the answer is a stream; target.stream sets that",
    "accept-encoding": "a compressed stream arrives in lumps",
    "x-request-id": "each request has its own, by which server logs and records are matched",
}
"""Names, in lower case, that a scenario may not set, and why."""


def parse_headers(value: object) -> dict[str, str]:
    """Headers by name. `value`: a mapping, `Name: value` (or `Name=value`), or several of these in a list or on lines.

    Raises ValueError, whose text never holds a value.
    """
    if isinstance(value, Mapping):
        pairs = [(name, content) for name, content in value.items()]
    elif isinstance(value, str | list | tuple):
        lines = value.splitlines() if isinstance(value, str) else value
        pairs = [_pair(line) for line in lines if not isinstance(line, str) or line.strip()]
    else:
        raise ValueError("Headers are written as names with values, such as {X-Tenant: blue}.")
    headers: dict[str, str] = {}
    for name, content in pairs:
        _check_name(name)
        if _alike(name) in map(_alike, headers):
            raise ValueError(f"The header {name} is given twice.")
        headers[name] = _content(name, content)
    return headers


def _alike(name: str) -> str:
    # Many servers take both for the same.
    return name.lower().replace("_", "-")


def _pair(line: object) -> tuple[str, str]:
    parts = re.split("[:=]", line, maxsplit=1) if isinstance(line, str) else []
    if len(parts) != 2:
        raise ValueError("A header is written 'Name: value'.")
    return parts[0].strip(), parts[1]


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{str(name)[:40]!r} is no name of a header: it has letters, digits and - only.")
    if why := _REFUSED.get(name.lower()):
        raise ValueError(f"The header {name} cannot be set: {why}.")


def _content(name: str, content: object) -> str:
    if isinstance(content, bool) or not isinstance(content, str | int | float):
        raise ValueError(f"The value of the header {name} must be text: put it into quotes.")
    text = str(content).strip()
    if not text or not (text.isascii() and text.isprintable()):
        raise ValueError(
            f"The value of the header {name} must be one line of printable ASCII characters, at least one."
        )
    return text


def is_secret(name: str, content: str) -> bool:
    """Whether a header's value looks like a secret that was written out: by its name, or by what it begins with."""
    if _REFERENCE.search(content):  # `Bearer ${TOKEN}`: whoever knows of references keeps secrets in them
        return False
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(content))


def variable_of(name: str) -> str:
    """The environment variable that keeps the secret value of a header."""
    return VARIABLE_PREFIX + re.sub(r"\W", "_", name).upper()


def with_references(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers as they may be written down and sent to workers: references in place of secrets."""
    return {
        name: f"${{{variable_of(name)}}}" if is_secret(name, content) else content for name, content in headers.items()
    }


def secret_environment(headers: Mapping[str, str]) -> dict[str, str]:
    """The variables that those references name, where the secrets were written out."""
    return {variable_of(name): content for name, content in headers.items() if is_secret(name, content)}


def resolved(headers: Mapping[str, str], environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The headers as they are sent. Raises UsageError where a variable is not set, or holds what no header can carry."""
    known = os.environ if environment is None else environment

    def of(name: str, variable: str) -> str:
        content = known.get(variable, "")
        if not content or not (content.isascii() and content.isprintable()) or content != content.strip():
            what = "is not set" if not content else "has a character that no header can carry"
            raise UsageError(
                f"The header {name} of target.headers takes its value from the environment variable {variable}, which "
                f"{what}.",
                hint=f"set {variable} where the run and its workers are started",
            )
        return content

    return {
        name: _REFERENCE.sub(lambda found, name=name: of(name, found[1]), content)  # type: ignore[misc]
        for name, content in headers.items()
    }


def secrets_of(headers: Mapping[str, str], environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Every text that must not be shown: what references stand for and the values that hold them, longest first."""
    known = os.environ if environment is None else environment
    found: set[str] = set(secret_environment(headers).values())
    for content in headers.values():
        variables = _REFERENCE.findall(content)
        found |= {known.get(variable, "") for variable in variables}
    return tuple(sorted((text for text in found if len(text) >= _SHORTEST_SECRET), key=len, reverse=True))


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """`text` with the secrets cut out: servers repeat in their errors what they were sent."""
    for secret in secrets:
        text = text.replace(secret, "<secret>")
    return text
