"""Refuses a dataset with a prompt longer than the model takes: has only those counted whose size leaves it open.

A token of a text stands for at least one byte of it, so a row with fewer bytes than there is room for fits, uncounted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from loadgen.datasets.dataset import Dataset
from loadgen.datasets.errors import Place
from loadgen.datasets.rows import Row
from loadgen.prompts.errors import PromptError
from loadgen.prompts.tokenizers import TokenCounter
from loadgen.wire.exchange import Endpoint

MOST_COUNTED = 64
"""Of the rows that might be too long, so many of the largest are counted: a server is asked once for each."""

_TEMPLATE_TOKENS = 64
"""A chat template hardly puts more around a message, its own system message included."""

Prompt = str | list[dict[str, Any]]


def refuse_long_rows(
    dataset: Dataset,
    path: str,
    counter: TokenCounter,
    *,
    endpoint: Endpoint,
    output_tokens: int,
    most_output_tokens: int,
    max_model_len: int,
) -> None:
    """Raises DatasetError, naming the line, where a row of text does not fit into `max_model_len` with its answer.

    `output_tokens`: the most that is asked for where a row does not say; `most_output_tokens`: where it does, too. Where nobody
    can count, nothing is refused.
    """
    room = max_model_len - most_output_tokens - _TEMPLATE_TOKENS
    in_doubt = sorted(
        _in_doubt(dataset, room, endpoint, output_tokens, max_model_len), key=lambda one: (-one[0], one[1])
    )
    for _, number, prompt, asked in in_doubt[:MOST_COUNTED]:
        try:
            counted = counter.count_text(prompt) if isinstance(prompt, str) else counter.count_messages(prompt)
        except PromptError:  # the server will say what it makes of it
            continue
        if counted + asked > max_model_len:
            raise Place(path, dataset.line(number)).refusal(
                f"Prompt and answer have {counted} + {asked} = {counted + asked} tokens, more than the {max_model_len} of "
                "the server's max_model_len.",
                "Take such rows out, ask for shorter answers, or serve the model with a longer one.",
            )


def _in_doubt(
    dataset: Dataset, room: int, endpoint: Endpoint, output_tokens: int, max_model_len: int
) -> Iterator[tuple[int, int, Prompt, int]]:
    """(bytes of prompt and tokens of answer, number of the row, its prompt, tokens asked for) of every row that might be too
    long. A row in the file has at least the bytes of its prompt, and with no more than `room` of them it fits."""
    for number in np.flatnonzero(dataset.row_bytes() > room).tolist():
        row = dataset.row(number)
        prompt = _prompt(row, endpoint)
        if prompt is None:
            continue
        messages = 1 if isinstance(prompt, str) else len(prompt)
        size = sum(len(text.encode()) for text in _texts(prompt))
        asked = output_tokens if row.most_output_tokens is None else row.most_output_tokens
        if size + messages * _TEMPLATE_TOKENS + asked > max_model_len:
            yield size + asked, number, prompt, asked


def _prompt(row: Row, endpoint: Endpoint) -> Prompt | None:
    """What the row says, as it will be sent; None for a prompt that is made up, of token ids, or not only of text."""
    if row.text is not None:
        if endpoint == "completions":
            return row.text if row.system is None else f"{row.system}\n\n{row.text}"
        ahead = [] if row.system is None else [{"role": "system", "content": row.system}]
        return [*ahead, {"role": "user", "content": row.text}]
    body = row.body or {}
    prompt = row.messages if row.messages is not None else body.get("messages", body.get("prompt"))
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not all(isinstance(one, dict) for one in prompt):
        return None
    return prompt if all(isinstance(one.get("content"), str) for one in prompt) else None


def _texts(prompt: Prompt) -> list[str]:
    return [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
