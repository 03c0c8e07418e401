"""Why a request failed, in the server's words: takes bodies and error events, gives short strings without ids or times.

Equal errors give equal strings, because reasons are counted and Locust keeps one entry for every distinct one. They can
be written anywhere: on one line, without control characters, valid as UTF-8.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

from loadgen.wire.payload import load
from loadgen.wire.tokens import is_error

LONGEST = 200
"""Characters kept of a reason."""

_TIME = re.compile(
    r"""(?<![\w.])(?:
        \d{4}-\d\d-\d\d(?:[T\ ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?:\ ?Z|\ ?UTC|[+-]\d\d:?\d\d)?
      | \d{1,2}:\d\d:\d\d(?:[.,]\d+)?
      | \d+(?:\.\d+)?\ ?(?:ns|us|µs|ms|s|secs?|seconds?|mins?|minutes?|milliseconds?)
    )(?!\w)""",
    re.VERBOSE | re.ASCII,
)
_ID = re.compile(
    r"""(?<![A-Za-z0-9])(?:
        [0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}
      | (?:chatcmpl|cmpl|req|request|resp|response|msg|call|trace|span|session|task|job|run|id)[-_](?=[\w-]*\d)[\w-]+
      | 0x[0-9a-fA-F]+
      | (?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}
      | (?=[A-Za-z]*\d)[A-Za-z0-9]{16,}
      | \d{7,}
    )(?![A-Za-z0-9])""",
    re.VERBOSE | re.ASCII,
)
_HTML_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
# `Error: engine died`, `[ERROR] engine died`, `"error: engine died"`; not `errors are common`.
_ERROR_WORD = re.compile(rb"""[\s"'\[({]*error\b["'\])}]*[\s:]*""", re.IGNORECASE)

_MESSAGE_KEYS = (
    "error",
    "errors",
    "message",
    "detail",
    "details",
    "msg",
    "error_message",
    "title",
    "text",
)
_LABEL_KEYS = ("code", "status_code", "error_code", "type", "error_type")


def plain(text: str) -> str:
    """`text` on one line, ids and times replaced by `<id>` and `<time>`, cut to `LONGEST` characters.

    Short numbers stay: "maximum context length is 2048 tokens" is worth reading.
    """
    text = " ".join(text[: 20 * LONGEST].split())
    return printable(_ID.sub("<id>", _TIME.sub("<time>", text)))


def printable(text: str) -> str:
    """`text` cut to `LONGEST` characters, with U+FFFD for what no terminal, table or file should be given."""
    text = text[:LONGEST]
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


def http_reason(code: int, body: bytes) -> str:
    """Why an answer other than 200 came: the server's message, else the name of the code."""
    message = answered_message(body)
    if message:
        return message
    try:
        phrase = HTTPStatus(code).phrase
    except ValueError:
        phrase = "not a code of the standard"
    return f"the server answered {code} ({phrase}) without a message"


def answered_message(body: bytes) -> str:
    """The error message in an answer's body: from JSON of the usual shapes, a page's title, or the text itself.

    Empty when there is none.
    """
    answer = load(body)
    if answer is not None or body.strip() == b"null":
        return plain(_message(answer))
    text = body[: 100 * LONGEST].decode(errors="replace")
    title = _HTML_TITLE.search(text)
    return plain(title.group(1) if title else text)


def event_reason(event: object) -> str:
    """What an error event says, as `code type: message`; never empty.

    Shapes: `{"error": {"message", "type", "code"}}`, `{"error": "text"}`, `{"object": "error", "message"}`, text.
    """
    error = event.get("error") or event if isinstance(event, dict) else event
    parts = (plain(" ".join(_labels(event, error))), plain(_message(error)))
    return ": ".join(part for part in parts if part)[:LONGEST] or "an error event without a message"


def _labels(event: object, error: object) -> list[str]:
    """Code and type of an error, without `error` itself, which is no type."""
    if not isinstance(event, dict):
        return []
    inner: dict[str, Any] = error if isinstance(error, dict) else event
    values = [inner.get(key) for key in _LABEL_KEYS]
    return [str(v) for v in values if type(v) in (str, int) and v and v != "error"]


def spoken_error(data: bytes) -> str | None:
    """What a piece of text says if it is an error, or None: JSON that says so, or words that begin with `error`."""
    said = load(data)
    if isinstance(said, dict):
        return event_reason(said) if is_error(said) else None
    begun = _ERROR_WORD.match(data)
    if begun is None:
        return None
    rest = data[begun.end() :]
    return event_reason(load(rest) or rest[: 100 * LONGEST].decode(errors="replace").rstrip("\"' \r\n"))


def _message(error: object) -> str:
    """The text in `error`: itself, or its `error`, `message` or `detail`, as deep as it goes."""
    for _ in range(5):
        if isinstance(error, list):  # FastAPI: {"detail": [{"loc": …, "msg": …}]}
            error = error[0] if error else ""
        if not isinstance(error, dict):
            break
        error = next((error[key] for key in _MESSAGE_KEYS if error.get(key)), "")
    return error if isinstance(error, str) else ""
