"""Where the bytes of a body lie in the bytes of an HTTP/1.1 answer: pure, for the audit; aiohttp does the real parsing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_HEADERS_END = b"\r\n\r\n"


def body_ends_in_answer(answer: bytes, body_ends: Sequence[int]) -> NDArray[np.int64] | None:
    """Bytes of `answer` up to each of `body_ends` (bytes of the body, ascending); None when it is not such an answer.

    `answer` is everything that the connection brought, headers (RFC 9112: interim answers before them) and framing
    included; it may break off. An end that lies beyond it makes the answer None too.
    """
    start = _body_start(answer)
    if start is None:
        return None
    ends = np.asarray(body_ends, np.int64)
    if not _is_chunked(answer[:start]):
        found = ends + start
        return found if not len(found) or found[-1] <= len(answer) else None
    body_starts, raw_starts, body = [], [], 0
    at = start
    while (line_end := answer.find(b"\r\n", at)) >= 0:
        try:
            size = int(answer[at:line_end].partition(b";")[0], 16)
        except ValueError:
            return None
        if size <= 0:
            break
        body_starts.append(body)
        raw_starts.append(line_end + 2)
        body += size
        at = line_end + 2 + size + 2
    if len(ends) and (not body_starts or ends[-1] > body):
        return None
    # The chunk in which the last byte lies: an end at a chunk's very end belongs to it, not to the next one.
    chunk = np.searchsorted(np.array(body_starts, np.int64), ends, side="left") - 1
    found = np.array(raw_starts, np.int64)[chunk] + ends - np.array(body_starts, np.int64)[chunk]
    return found if not len(found) or found[-1] <= len(answer) else None


def _body_start(answer: bytes) -> int | None:
    at = 0
    while (end := answer.find(_HEADERS_END, at)) >= 0:
        status = answer[at:end].split(None, 2)[1:2]
        at = end + len(_HEADERS_END)
        if not status or not status[0].startswith(b"1"):
            return at
    return None


def _is_chunked(head: bytes) -> bool:
    lines = head.lower().split(b"\r\n")
    return any(line.startswith(b"transfer-encoding:") and b"chunked" in line for line in lines)
