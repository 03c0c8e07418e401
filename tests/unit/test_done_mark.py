"""`[DONE]` is noticed while the answer is read, by the read that completes its line, however the reads are cut."""

from __future__ import annotations

import pytest

from loadgen.wire.exchange import Exchange
from tests.sse_events import DONE, FIN, C, U, exchange

BEFORE = C("a") + FIN("stop") + U(9, 1)


def done_at(pieces: list[bytes]) -> int | None:
    """Number of the read that was taken for the end."""
    seen: Exchange = exchange([])
    for k, piece in enumerate(pieces):
        seen.add(piece, k)
        seen.note_chunks(k)
    return seen.done_ns


@pytest.mark.parametrize(
    "mark", [DONE, b"data:[DONE]\n\n", b'data: "[DONE]"\n\n', b"data:  [DONE] \r\n\r\n", b"data: [DONE]\r\r"]
)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 13, 31, 32, 33, 1000])
def test_it_is_noticed_with_the_end_of_its_line(mark: bytes, size: int) -> None:
    body = BEFORE + mark
    pieces = [body[k : k + size] for k in range(0, len(body), size)]
    line_end = len(BEFORE) + min(at for at in (mark.find(b"\n"), mark.find(b"\r")) if at >= 0)
    assert done_at(pieces) == line_end // size


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    "body",
    [C("data: [DONE]\n\n"), b": [DONE]\n\n", b"[DONE]\n\n", b"data: [DONE", b"data: x[DONE]\n\n", b"data: [DONE]"],
)
def test_other_places_of_the_word_are_not_the_end(body: bytes, size: int) -> None:
    assert done_at([body[k : k + size] for k in range(0, len(body), size)]) is None


def test_the_first_end_is_the_end() -> None:
    assert done_at([BEFORE, DONE, DONE]) == 1


@pytest.mark.parametrize("gap", range(60))
def test_a_line_that_only_ends_like_the_mark_is_not_the_end_wherever_the_reads_cut(gap: int) -> None:
    comment = b": the mark is data: [DONE]\n"
    assert done_at([C("a") + comment + b"y" * gap, b"\n" + C("more text")]) is None
    assert done_at([C("a") + comment + b"y" * gap + b"\n", C("more text")]) is None


def test_a_mark_that_is_cut_in_two_is_noticed_however_much_comes_behind_it() -> None:
    assert done_at([BEFORE + b"data: [DO", b"NE]\n\n: bye, and thanks for all the fish\n\n"]) == 1


def test_a_whole_answer_that_quotes_the_mark_on_a_line_of_its_own_is_not_ended_by_it() -> None:
    body = b'{"choices": [{"message":\n  {"content":\n "data: [DONE]"\n' + b" " * 40 + b"}}]}"
    quoted = body.find(b"data:")
    for cut in range(quoted, len(body)):
        assert done_at([body[:cut], body[cut:]]) is None, cut
