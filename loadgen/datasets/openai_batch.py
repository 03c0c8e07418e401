"""OpenAI batch files: a line is `{"custom_id", "method", "url", "body"}`; the body is what is sent."""

from __future__ import annotations

from typing import Any

from loadgen.datasets.errors import Place
from loadgen.datasets.fields import parsed_object, shown
from loadgen.datasets.jsonl import body_tokens, whole_body
from loadgen.datasets.rows import LeftOut, Row

_KEY_OF_URL = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}


def looks_like(row: dict[str, Any]) -> bool:
    """Whether a first line is of this format."""
    return isinstance(row.get("body"), dict) and ("url" in row or "custom_id" in row)


def parse(data: bytes, place: Place) -> Row | LeftOut:
    """The row of one line. Raises DatasetError."""
    row = parsed_object(data, place)
    if row.get("method", "POST") != "POST":
        raise place.refusal(f"method is {shown(row['method'])}, not POST.", "Take the line out.")
    url = row.get("url")
    needed = _KEY_OF_URL.get(url) if isinstance(url, str) else None
    if needed is None:
        raise place.refusal(
            f"url is {shown(url)}, which is no API that can be loaded.", f"It must be {' or '.join(_KEY_OF_URL)}."
        )
    body = row.get("body")
    if not isinstance(body, dict):
        raise place.refusal(f"body is {shown(body)}, not an object.", "Every line holds a whole request body.")
    if needed not in body:
        raise place.refusal(f"The body has no {needed}, which {url} needs.", "Mend the body, or the url of the line.")
    return Row(place.line or 0, body=whole_body(body, place), output_tokens=body_tokens(body, place))
