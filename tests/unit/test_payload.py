"""The data of an event as JSON: what servers send and orjson refuses is read all the same, and nothing raises."""

import math

import pytest

from loadgen.wire.decode import decode
from loadgen.wire.payload import is_done, load
from tests.sse_events import END, C, exchange


def test_numbers_that_json_does_not_have_are_read() -> None:
    assert load(b'{"a":-Infinity,"b":1}') == {"a": -math.inf, "b": 1}
    assert math.isnan(load(b"[NaN]")[0])


def test_half_of_a_surrogate_pair_is_read() -> None:
    assert load(b'"\\ud83d"') == "\ud83d"


def test_bytes_that_are_no_utf8_are_read_as_the_standard_says() -> None:
    assert load(b'"\xe4\xb8"') == "\ufffd"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"null",
        b"{",
        b"\xff",
        b"[DONE]",
        b"[" * 100_000,
        b'{"a":' * 5_000,
        b"[" * 2_000 + b"]" * 2_000,
        b"{'a':1}",
        b"-",
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_no_json_is_nothing(data: bytes) -> None:
    assert load(data) is None


def test_what_is_nested_deeply_is_refused_by_every_python_alike() -> None:
    assert load(b"[" * 400 + b"NaN" + b"]" * 400) is not None
    assert load(b"[" * 600 + b"NaN" + b"]" * 600) is None


def test_a_number_of_any_length_does_not_raise() -> None:
    assert load(b"9" * 10_000) is None or load(b"9" * 10_000) == math.inf


@pytest.mark.parametrize("data", [b"[DONE]", b" [DONE]\t", b'"[DONE]"', b' " [DONE] " '])
def test_the_end_is_found_with_spaces_and_between_quotation_marks(data: bytes) -> None:
    assert is_done(data)


@pytest.mark.parametrize("data", [b"", b"DONE", b"[done]", b"[DONE] x", b"[[DONE]]", b'"' * 1_000_000])
def test_other_words_are_not_the_end(data: bytes) -> None:
    assert not is_done(data)


def test_a_character_of_two_halves_in_two_events_is_counted_as_one() -> None:
    texts: list[str] = []
    halves = C("1").replace(b'"1"', b'"\\ud83d"') + C("2").replace(b'"2"', b'"\\ude00"')
    body = halves + END(2).replace(b'"completion_tokens":2', b'"completion_tokens":0')
    decode(exchange([(1, body)]), count_tokens=lambda text: texts.append(text) or 1)
    assert texts == ["😀"]
