"""The text that a conversation carries on is what a chat client would have shown of the answer."""

from __future__ import annotations

import json

import pytest

from loadgen.wire.answer_text import answer_text
from loadgen.wire.exchange import Exchange
from tests.sse_events import DONE, FIN, RC, ROLE, TEXT, C, R, U, choice, chunk

STREAM = "text/event-stream; charset=utf-8"


def said(*parts: bytes, content_type: str = STREAM) -> str:
    exchange = Exchange(0, 0, 0, 0, "chat", 0, content_type=content_type)
    for k, part in enumerate(parts):
        exchange.add(part, k)
    return answer_text(exchange)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((ROLE, C("Hel"), C("lo "), C('"you"'), FIN("stop"), U(3, 4), DONE), 'Hello "you"'),
        ((b"".join([ROLE, C("a")])[:-5], b"".join([ROLE, C("a")])[-5:] + C("b") + DONE), "ab"),
        ((ROLE, R("let me think"), RC("more"), C("yes"), FIN("stop"), DONE), "yes"),
        ((TEXT(" one"), TEXT(" two", "length"), DONE), " one two"),
        ((ROLE, C("a"), DONE, C("behind it")), "a"),
        ((chunk(choice({"content": "first"}), choice({"content": "second"}, index=1)), DONE), "first"),
        ((ROLE, FIN("stop"), DONE), ""),
        ((b": comment\n\nevent: ping\ndata: x\n\ndata: {broken\n\n", C("a"), DONE), "a"),
        ((), ""),
    ],
)
def test_visible_text_of_the_first_choice_is_kept(parts: tuple[bytes, ...], text: str) -> None:
    assert said(*parts) == text


def test_halves_of_a_character_become_one_and_a_lonely_half_can_be_sent_all_the_same() -> None:
    halves = [b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n'] * 2
    assert said(halves[0], b'data: {"choices":[{"index":0,"delta":{"content":"\\ude42"}}]}\n\n', DONE) == "🙂"
    said(*halves, DONE).encode()


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"index": 0, "message": {"role": "assistant", "content": "whole", "reasoning": "why"}}, "whole"),
        ({"index": 0, "text": " as text"}, " as text"),
        ({"index": 0, "message": {"content": None}}, ""),
    ],
)
def test_an_answer_that_is_not_streamed_is_carried_too(choice: object, text: str) -> None:
    assert said(json.dumps({"choices": [choice]}).encode(), content_type="application/json") == text
    assert said(b"[]", content_type="application/json") == said(b"<html>", content_type="text/html") == ""
