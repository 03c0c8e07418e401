"""Decides the reply to a request: takes its prompt and limits, gives every token's text and how it ends. Pure."""

from __future__ import annotations

import random
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MAX_NATURAL_TOKENS = 512
"""The longest reply of a model that ends by itself when the client set no limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """All tokens of one reply, known before the first is sent.

    `texts[i]` is what token i adds to the visible text; the end-of-sequence token of a natural ending is a token
    without text, as in vLLM, and so is one that completes a stop string.
    """

    texts: list[str]
    finish_reason: Literal["stop", "length"]
    stop_reason: str | None = None
    """The stop string that ended it."""


def plan_reply(
    words: Sequence[str],
    prompt_ids: Sequence[int],
    *,
    seed: int,
    max_tokens: int | None,
    context_left: int,
    min_tokens: int = 0,
    ignore_eos: bool = False,
    stop: Sequence[str] = (),
) -> Reply:
    """The reply to a prompt: the same prompt and seed give the same words and the same natural length.

    `ignore_eos` fills the limit (`max_tokens`, at most `context_left`); otherwise the length is drawn evenly from
    `min_tokens` to the limit, and only a reply of the full limit ends with `length`.
    """
    draw = random.Random(zlib.crc32(array("q", prompt_ids).tobytes(), seed & 0xFFFFFFFF))
    limit = context_left if max_tokens is None else min(max_tokens, context_left)
    length, natural = limit, False
    if not ignore_eos:
        longest = limit if max_tokens is not None else min(limit, MAX_NATURAL_TOKENS)
        shortest = min(max(1, min_tokens), limit)
        length = draw.randint(shortest, max(shortest, longest))
        natural = length < limit
    texts = draw.choices(words, k=length)
    if natural:
        texts[-1] = ""
    if stop:
        stopped = _stopped(texts, min_tokens, stop)
        if stopped is not None:
            return stopped
    return Reply(texts, "stop" if natural else "length")


def _stopped(texts: list[str], min_tokens: int, stop: Sequence[str]) -> Reply | None:
    """The reply cut where the first stop string is complete, its text not shown; None when none comes up."""
    text = ""
    longest = max(map(len, stop))
    for n, piece in enumerate(texts, 1):
        checked_from = max(0, len(text) - longest + 1)
        text += piece
        if n <= min_tokens:
            continue
        hits = [(at, end) for end in stop if (at := text.find(end, checked_from)) >= 0]
        if hits:
            at, end = min(hits)
            return Reply(_shown(texts[:n], at), "stop", end)
    return None


def _shown(texts: list[str], length: int) -> list[str]:
    """The pieces, of which only the first `length` characters together remain."""
    shown = []
    for piece in texts:
        shown.append(piece[:length])
        length -= len(shown[-1])
    return shown
