"""Tokens that come as events without text: special tokens, and beginnings of characters. Only the count shows them."""

from __future__ import annotations

import pytest

from loadgen.wire.decode import decode
from loadgen.wire.sse import FirstToken
from tests.sse_events import CU, DONE, FIN, ROLE, SENT_NS, TEXT, C, Script, U, choice, chunk, event, exchange, usage

MS = 1_000_000


def role(count: int = 0) -> bytes:
    return chunk(choice({"role": "assistant", "content": ""}), usage=usage(9, count))


def arrivals_ms(script: Script) -> list[float]:
    return [(ns - SENT_NS) / MS for ns in decode(exchange(script)).arrivals_ns.tolist()]


def test_an_empty_text_with_a_higher_count_is_a_token() -> None:
    script: Script = [
        (10, role()),
        (50, CU("a", 1)),
        (60, CU("", 2)),
        (70, CU("b", 3)),
        (71, FIN("length") + U(9, 3) + DONE),
    ]
    assert arrivals_ms(script) == [50, 60, 70]
    request = decode(exchange(script))
    assert request.status == "ok"
    assert request.event_tokens is not None and request.event_tokens.tolist() == [1, 1, 1]


def test_a_leading_token_without_text_is_the_first_token_but_not_the_first_visible_output() -> None:
    script: Script = [(10, role()), (50, CU("", 1)), (60, CU("a", 2)), (61, FIN("stop") + U(9, 2) + DONE)]
    request = decode(exchange(script))
    assert request.first_token_ns == SENT_NS + 50 * MS
    assert request.first_visible_ns == SENT_NS + 60 * MS


def test_a_last_token_without_text_may_come_with_the_finish_reason() -> None:
    last = chunk(choice({"content": ""}, "length"), usage=usage(9, 2))
    script: Script = [(10, role()), (50, CU("a", 1)), (60, last), (61, U(9, 2) + DONE)]
    assert arrivals_ms(script) == [50, 60]


def test_a_first_completion_token_without_text_or_role_is_a_token() -> None:
    first = event({"choices": [{"index": 0, "text": "", "finish_reason": None}], "usage": usage(9, 1)})
    second = event({"choices": [{"index": 0, "text": "a", "finish_reason": "length"}], "usage": usage(9, 2)})
    assert arrivals_ms([(50, first), (60, second + U(9, 2) + DONE)]) == [50, 60]


def test_the_role_event_with_a_count_of_zero_is_no_token() -> None:
    assert arrivals_ms([(10, role(0)), (50, CU("a", 1)), (51, FIN("stop") + U(9, 1) + DONE)]) == [50]


@pytest.mark.parametrize("tail", [FIN("stop", usage=usage(9, 2)) + DONE, FIN("stop") + U(9, 2) + DONE])
def test_a_total_after_events_without_counts_is_no_token(tail: bytes) -> None:
    assert arrivals_ms([(10, ROLE), (50, C("a")), (60, C("b")), (600, tail)]) == [50, 60]


def test_a_total_with_the_finish_reason_of_an_answer_without_counts_or_text_is_no_token() -> None:
    request = decode(exchange([(10, ROLE), (500, FIN("stop", usage=usage(9, 7)) + DONE)]))
    assert request.status == "empty"


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_count_that_does_not_rise_with_the_text_is_a_placeholder(count: int) -> None:
    # DeepSeek and Kimi behind some gateways: the same count in every event, the real one beside the finish reason.
    script: Script = [(10, role()), (50, CU("a", count)), (60, CU("b", count))]
    request = decode(exchange([*script, (600, FIN("stop", usage=usage(9, 50)) + DONE)]))
    assert [(ns - SENT_NS) / MS for ns in request.arrivals_ns.tolist()] == [50, 60]
    assert (request.output_tokens, request.event_tokens) == (50, None)


def test_a_total_beside_an_empty_delta_after_the_finish_reason_is_no_token() -> None:
    total = chunk(choice({}), usage=usage(9, 2))
    assert decode(exchange([(10, ROLE), (20, FIN("stop")), (600, total + DONE)])).status == "empty"
    script: Script = [(50, CU("a", 1)), (60, FIN("stop")), (600, total + DONE)]
    request = decode(exchange(script))
    assert [(ns - SENT_NS) / MS for ns in request.arrivals_ns.tolist()] == [50]
    assert request.event_tokens is not None and request.event_tokens.tolist() == [2]


@pytest.mark.parametrize(
    "named",
    [
        {"token_ids": [7]},
        {"logprobs": {"content": [{"token": "<0xE4>", "logprob": -1.0}]}},
        {"logprobs": {"tokens": ["<0xE4>"], "token_logprobs": [-1.0]}},
    ],
)
def test_a_token_that_is_named_without_text_is_a_token(named: dict[str, object]) -> None:
    silent = chunk(choice({"content": ""}, **named))
    assert arrivals_ms([(10, ROLE), (50, silent), (60, C("a")), (61, FIN("stop") + U(9, 2) + DONE)]) == [50, 60]
    watch = FirstToken()
    assert [watch.feed(part) for part in (ROLE, silent)] == [False, True]


@pytest.mark.parametrize(
    "nothing", [{"token_ids": []}, {"token_ids": None, "logprobs": None}, {"logprobs": {"content": []}}]
)
def test_no_ids_and_no_log_probabilities_are_no_token(nothing: dict[str, object]) -> None:
    assert arrivals_ms([(10, chunk(choice({"content": ""}, **nothing))), (50, C("a") + FIN("stop") + DONE)]) == [50]


def test_the_end_token_beside_the_finish_reason_is_no_token_unless_it_is_counted() -> None:
    end = chunk(choice({"content": ""}, "stop", token_ids=[2]))
    assert arrivals_ms([(50, C("a")), (600, end + U(9, 2) + DONE)]) == [50]


def test_counts_of_several_choices_are_not_compared() -> None:
    both = chunk(choice({"content": ""}, index=0), choice({"content": ""}, index=1), usage=usage(9, 5))
    assert arrivals_ms([(50, both), (60, TEXT("a")), (61, FIN("stop") + DONE)]) == [60]


def test_the_hot_path_sees_the_same_first_token() -> None:
    watch = FirstToken()
    assert [watch.feed(part) for part in (role(), CU("", 1), CU("a", 2))] == [False, True, False]
    watch = FirstToken()
    assert [watch.feed(part) for part in (ROLE, FIN("stop", usage=usage(9, 7)))] == [False, False]
