"""What a worker tells of its target for the guards: what was heard, what is owed, and how long first tokens took."""

from __future__ import annotations

from typing import Any

from loadgen.wire.exchange import Exchange
from loadgen.worker.live_answers import LiveAnswers
from tests.level_records import MS, request

NOW_MS = 100_000


def open_request(sent_ms: float, index: int = 0, **fields: Any) -> Exchange:
    sent_ns = round(sent_ms * MS)
    return Exchange(0, index, 0, 0, "chat", dispatched_ns=sent_ns, sent_ns=sent_ns, **fields)


def told(
    answers: LiveAnswers, *open_requests: Exchange, now_ms: float = NOW_MS, long_ms: float = 2000
) -> dict[str, Any]:
    said = answers.snapshot(open_requests, round(now_ms * MS), round(long_ms * MS))
    return {
        key.replace("_ns", "_ms"): value / MS if key.endswith("_ns") and value is not None else value
        for key, value in said.items()
    }


def test_before_the_first_request_nothing_is_owed_and_nothing_was_heard() -> None:
    said = told(LiveAnswers())
    assert said["owed_ms"] is None and said["heard_ago_ms"] is None
    assert (said["first_tokens"], said["waiting_long"]) == (0, 0)


def test_the_oldest_open_request_is_owed_since_it_was_sent_and_a_token_is_heard() -> None:
    answers = LiveAnswers()
    slow, fast = open_request(90_000, 0), open_request(99_000, 1)
    assert told(answers, slow, fast)["owed_ms"] == 10_000
    fast.first_token_ns = fast.last_event_ns = 99_500 * MS
    said = told(answers, slow, fast)
    assert (said["owed_ms"], said["heard_ago_ms"]) == (10_000, 500)
    assert (said["first_tokens"], said["ttft_ms"]) == (1, 500)
    assert (said["waiting_long"], said["waiting_long_ms"]) == (1, 10_000)


def test_a_first_token_is_counted_once_whether_its_request_is_open_or_over() -> None:
    answers = LiveAnswers()
    stream = open_request(1000, 7, first_token_ns=1300 * MS, last_event_ns=1300 * MS)
    for _ in range(3):
        assert told(answers, stream)["first_tokens"] == 1
    answers.add([request(1000, [1300, 1400], index=7), request(1000, [1100, 1400], index=8)])
    said = told(answers)
    assert (said["first_tokens"], said["ttft_ms"]) == (2, 400)


def test_an_answer_without_tokens_is_heard_and_a_timeout_is_not() -> None:
    answers = LiveAnswers()
    answers.add([request(1000, status="http_503", finished_ms=1010, reason="busy")])
    assert told(answers)["heard_ago_ms"] == NOW_MS - 1010
    answers.add([request(2000, status="timeout_first_token", finished_ms=7000, reason="no token")])
    answers.add([request(2000, status="connect", finished_ms=7000, reason="refused")])
    answers.add([request(2000, [3000], status="timeout_between_tokens", finished_ms=9000, reason="stalled")])
    assert told(answers)["heard_ago_ms"] == NOW_MS - 3000


def test_a_user_that_asks_again_after_a_timeout_goes_on_waiting() -> None:
    answers = LiveAnswers()
    for k in range(4):  # each gives up after five seconds, and the user waits up to one before the next
        answers.add(
            [request(70_000 + 6000 * k, status="timeout_first_token", finished_ms=75_000 + 6000 * k, reason="no")]
        )
    said = told(answers, open_request(94_000))
    assert said["owed_ms"] == 30_000 and said["heard_ago_ms"] is None
    answers.add([request(94_500, [96_000])])
    assert told(answers, open_request(99_000))["owed_ms"] == 1000


def test_a_pause_without_requests_is_no_wait() -> None:
    answers = LiveAnswers()
    answers.add([request(10_000, status="timeout_first_token", finished_ms=15_000, reason="no")])
    answers.add([request(10_000, status="cancelled", finished_ms=98_000, reason="the run ended")])
    assert told(answers, open_request(99_000))["owed_ms"] == 1000
    assert told(answers)["owed_ms"] is None


def test_a_whole_answer_has_no_first_token_to_wait_for() -> None:
    answers = LiveAnswers()
    said = told(answers, open_request(90_000, streamed=False))
    assert (said["waiting_long"], said["owed_ms"]) == (0, 10_000)
    answers.add([request(90_000, [99_000], streamed=False, first_token_ns=None)])
    said = told(answers)
    assert (said["first_tokens"], said["heard_ago_ms"]) == (0, 1000)
