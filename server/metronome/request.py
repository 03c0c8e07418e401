"""Takes the bytes that a connection has sent, gives its next whole HTTP request, or says that it is not one. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

MOST_BYTES = 64 << 20


class BadRequestError(Exception):
    """What came is not a request that can be answered; the connection is of no more use."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One whole request."""

    method: bytes
    path: bytes
    request_id: bytes
    """X-Request-Id; empty where there is none."""
    keep_alive: bool
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as an object. Raises BadRequestError."""
        try:
            content = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise BadRequestError(f"The body is not JSON: {error}") from None
        if not isinstance(content, dict):
            raise BadRequestError("The body is not a JSON object.")
        return content


def take_request(buffer: bytearray) -> HttpRequest | None:
    """Removes the first whole request from `buffer`; None while it is not all there. Raises BadRequestError."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        if len(buffer) > 65_536:
            raise BadRequestError("The head of the request is too long.")
        return None
    lines = bytes(buffer[:end]).split(b"\r\n")
    try:
        method, target, version = lines[0].split(b" ")
    except ValueError:
        raise BadRequestError("The first line is not that of an HTTP request.") from None
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    body, after = _body(buffer, end + 4, headers)
    if body is None:
        return None
    del buffer[:after]
    connection = headers.get(b"connection", b"").lower()
    keep_alive = connection != b"close" if version == b"HTTP/1.1" else connection == b"keep-alive"
    path = target.partition(b"?")[0]
    return HttpRequest(method, path, headers.get(b"x-request-id", b"")[:1000], keep_alive, body)


def awaits_continue(buffer: bytearray) -> bool:
    """Whether a request has come whose body is sent only when it is asked for."""
    end = buffer.find(b"\r\n\r\n")
    return end >= 0 and len(buffer) == end + 4 and b"\r\nexpect: 100-continue" in buffer[:end].lower()


def _body(buffer: bytearray, start: int, headers: dict[bytes, bytes]) -> tuple[bytes | None, int]:
    """(body, where the request ends), or (None, 0) while it is not all there."""
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        return _chunked_body(buffer, start)
    try:
        length = int(headers.get(b"content-length", b"0"))
    except ValueError:
        length = -1
    if not 0 <= length <= MOST_BYTES:
        raise BadRequestError("The length of the body is not to be understood, or too large.")
    after = start + length
    return (bytes(buffer[start:after]), after) if len(buffer) >= after else (None, 0)


def _chunked_body(buffer: bytearray, at: int) -> tuple[bytes | None, int]:
    parts: list[bytes] = []
    while (line_end := buffer.find(b"\r\n", at)) >= 0:
        try:
            size = int(bytes(buffer[at:line_end]).partition(b";")[0], 16)
        except ValueError:
            raise BadRequestError("A chunk of the body has no size.") from None
        after = line_end + 2 + size
        if not 0 <= size <= MOST_BYTES or after > MOST_BYTES:
            raise BadRequestError("The body is too large.")
        if len(buffer) < after + 2:
            break
        if size == 0:
            return b"".join(parts), after + 2
        parts.append(bytes(buffer[line_end + 2 : after]))
        at = after + 2
    return None, 0
