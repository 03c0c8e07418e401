"""Rows of text that are longer than the model takes are found before the run, and rows that surely fit are not counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from loadgen.datasets.dataset import Dataset
from loadgen.datasets.errors import DatasetError
from loadgen.datasets.long_rows import MOST_COUNTED, refuse_long_rows
from loadgen.datasets.survey import Source, survey
from loadgen.prompts.errors import PromptError
from loadgen.wire.exchange import Endpoint

ROOM = 400
OUTPUT = 20


class Words:
    """Counts words, and says how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def count_text(self, text: str) -> int:
        self.asked += 1
        return len(text.split())

    def count_chat(self, content: str) -> int:
        raise AssertionError("a row has messages")

    def count_messages(self, messages: Sequence[Mapping[str, str]]) -> int:
        return sum(5 + self.count_text(message["content"]) for message in messages)

    def describe(self) -> str:
        return "words"


class Nobody(Words):
    def count_text(self, text: str) -> int:
        self.asked += 1
        raise PromptError("the server has no /tokenize", "name a tokenizer")


Check = Callable[..., Words]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    def checked(rows: list[dict[str, Any]], counter: Words | None = None, endpoint: Endpoint = "chat") -> Words:
        path = tmp_path / "rows.jsonl"
        path.write_text("\n" + "".join(json.dumps(row) + "\n" for row in rows))
        source = Source(str(path))
        found = survey(source, tmp_path)
        counter = counter or Words()
        refuse_long_rows(
            Dataset(source, tmp_path),
            source.path,
            counter,
            endpoint=endpoint,
            output_tokens=OUTPUT,
            most_output_tokens=max(OUTPUT, found.most_output_tokens),
            max_model_len=ROOM,
        )
        return counter

    return checked


def row(words: int, **more: Any) -> dict[str, Any]:
    return {"prompt": "word " * words, **more}


def test_rows_with_fewer_bytes_than_there_is_room_for_are_not_counted(check: Check) -> None:
    assert check([row(30), row(50)]).asked == 0


def test_a_row_that_may_be_too_long_is_counted_and_fits(check: Check) -> None:
    assert check([row(30), row(375)]).asked == 1


@pytest.mark.parametrize(
    ("rows", "line", "arithmetic"),
    [
        ([row(30), row(376)], 3, "381 + 20 = 401 tokens, more than the 400"),
        ([row(376), row(30)], 2, "381 + 20 = 401"),
        ([row(340, output_tokens=60)], 2, "345 + 60 = 405"),
        ([row(20, output_tokens=390)], 2, "25 + 390 = 415"),
        (
            [{"messages": [{"role": "system", "content": "be kind " * 90}, {"role": "user", "content": "why " * 195}]}],
            2,
            "= 405",
        ),
        (
            [{"model": "x", "messages": [{"role": "user", "content": "why " * 300}], "max_tokens": 99}],
            2,
            "305 + 99 = 404",
        ),
    ],
    ids=["the second", "the first", "its own answer", "a long answer", "messages", "a body"],
)
def test_a_row_that_is_too_long_is_refused_with_its_line(
    check: Check, rows: list[dict[str, Any]], line: int, arithmetic: str
) -> None:
    with pytest.raises(DatasetError) as refused:
        check(rows)
    assert f"rows.jsonl:{line}: " in str(refused.value) and arithmetic in str(refused.value)


def test_the_prompt_of_a_completion_has_no_template(check: Check) -> None:
    check([row(380)], endpoint="completions")
    with pytest.raises(DatasetError, match=r"381 \+ 20 = 401"):
        check([row(381)], endpoint="completions")


def test_where_nobody_counts_nothing_is_refused(check: Check) -> None:
    assert check([row(900)], Nobody()).asked == 1


def test_prompts_that_are_not_only_text_are_left_to_the_server(check: Check) -> None:
    parts = [{"type": "text", "text": "why " * 500}, {"type": "image_url", "image_url": {"url": "data:"}}]
    assert check([{"model": "x", "messages": [{"role": "user", "content": parts}]}]).asked == 0


def test_only_the_largest_rows_are_counted(check: Check) -> None:
    assert check([row(300 + k % 60) for k in range(3 * MOST_COUNTED)]).asked == MOST_COUNTED
