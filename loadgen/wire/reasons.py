"""Why a request failed, in the server's words: takes bodies and error events, gives short strings without ids or times.

Equal errors give equal strings, because reasons are counted and Locust keeps one entry for every distinct one.
"""

from __future__ import annotations

import re
from http import HTTPStatus

import orjson

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


def plain(text: str) -> str:
    """`text` on one line, ids and times replaced by `<id>` and `<time>`, cut to `LONGEST` characters.

    Short numbers stay: "maximum context length is 2048 tokens" is worth reading.
    """
    text = " ".join(text[: 20 * LONGEST].split())
    return _ID.sub("<id>", _TIME.sub("<time>", text))[:LONGEST]


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
    try:
        return plain(_message(orjson.loads(body)))
    except orjson.JSONDecodeError:
        text = body[: 100 * LONGEST].decode(errors="replace")
        title = _HTML_TITLE.search(text)
        return plain(title.group(1) if title else text)


def event_reason(event: object) -> str:
    """What an error event says, as `code type: message`; never empty.

    Shapes: `{"error": {"message", "type", "code"}}`, `{"error": "text"}`, `{"object": "error", "message"}`, text.
    """
    error = event.get("error") or event if isinstance(event, dict) else event
    labels = []
    if isinstance(event, dict):
        inner = error if isinstance(error, dict) else event
        labels = [str(v) for v in (inner.get("code"), inner.get("type")) if isinstance(v, str | int) and v]
    parts = (plain(" ".join(labels)), plain(_message(error)))
    return ": ".join(part for part in parts if part)[:LONGEST] or "an error event without a message"


def _message(error: object) -> str:
    """The text in `error`: itself, or its `error`, `message` or `detail`, as deep as it goes."""
    for _ in range(4):
        if isinstance(error, list):  # FastAPI: {"detail": [{"loc": …, "msg": …}]}
            error = error[0] if error else ""
        if not isinstance(error, dict):
            break
        error = next((error[key] for key in ("error", "message", "detail", "msg") if error.get(key)), "")
    return error if isinstance(error, str) else ""
