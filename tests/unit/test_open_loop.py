"""A worker's open loop on a real event loop: the schedule stands, whatever becomes of the requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from loadgen.worker.open_loop import OpenLoop

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = pytest.mark.alone

MS = 1_000_000


class Answers:
    """Sends nothing: a request ends after `take_s`, and is noted with what it was given."""

    def __init__(self, take_s: float) -> None:
        self.take_s = take_s
        self.sent: list[tuple[int, int, int]] = []
        """(scheduled, waited, when it was dispatched), in nanoseconds."""
        self.ended = 0
        self.cancelled = 0
        self.left_out = 0
        self.given_up: list[tuple[int, int]] = []
        self.in_flight = self.peak = 0

    async def request(self, user: int, *, scheduled_ns: int | None = None, waited_ns: int | None = None) -> None:
        assert scheduled_ns is not None and waited_ns is not None
        self.sent.append((scheduled_ns, waited_ns, time.monotonic_ns()))
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            await asyncio.sleep(self.take_s)
            self.ended += 1
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1

    def leave_out(self) -> None:
        self.left_out += 1

    def give_up_waiting(self, user: int, scheduled_ns: int, waited_ns: int) -> None:
        self.given_up.append((scheduled_ns, waited_ns))


def followed(
    answers: Any,
    offsets_s: Sequence[float],
    then: Callable[[OpenLoop, asyncio.Event, asyncio.Task[None]], Coroutine[Any, Any, None]],
    *,
    max_in_flight: int | None = None,
    drops: bool = False,
) -> int:
    """Follows the schedule while `then` is done to it; gives the start."""

    async def run() -> int:
        start_ns = time.monotonic_ns() + 20 * MS
        open_loop = OpenLoop(answers, iter(offsets_s), start_ns=start_ns, max_in_flight=max_in_flight, drops=drops)
        stopping = asyncio.Event()
        following = asyncio.create_task(open_loop.follow(0, stopping))
        await then(open_loop, stopping, following)
        await asyncio.wait_for(following, 5)
        return start_ns

    return asyncio.run(run())


async def seen(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def test_arrivals_are_sent_when_the_schedule_says_however_long_answers_take() -> None:
    answers = Answers(take_s=1)
    offsets = [0.0, 0.05, 0.05, 0.1, 0.2]

    async def then(open_loop: OpenLoop, stopping: asyncio.Event, following: Any) -> None:
        await seen(lambda: len(answers.sent) == 5)
        open_loop.end()

    start_ns = followed(answers, offsets, then)
    assert [scheduled - start_ns for scheduled, _, _ in answers.sent] == [round(at * 1e9) for at in offsets]
    assert answers.peak == 5 and answers.ended == 0
    for scheduled, waited, dispatched in answers.sent:
        assert waited == 0
        assert 0 <= dispatched - scheduled < 50 * MS


def test_beyond_the_most_in_flight_arrivals_wait_in_order_and_the_wait_is_told() -> None:
    answers = Answers(take_s=0.1)

    async def then(open_loop: OpenLoop, stopping: asyncio.Event, following: Any) -> None:
        await seen(lambda: answers.ended == 4)
        open_loop.end()

    start_ns = followed(answers, [0.0, 0.01, 0.02, 0.03], then, max_in_flight=1)
    assert answers.peak == 1
    assert [scheduled - start_ns for scheduled, _, _ in answers.sent] == [0, 10 * MS, 20 * MS, 30 * MS]
    for k, (scheduled, waited, dispatched) in enumerate(answers.sent):
        assert waited / MS == pytest.approx(90 * k, abs=40)
        # What is left is the worker's own delay.
        assert 0 <= dispatched - scheduled - waited < 50 * MS


def test_dropped_arrivals_are_counted_by_when_they_were_scheduled() -> None:
    answers = Answers(take_s=0.25)
    counted: list[int] = []

    async def then(open_loop: OpenLoop, stopping: asyncio.Event, following: Any) -> None:
        await seen(lambda: answers.left_out == 4)
        start_ns = answers.sent[0][0]
        counted.append(open_loop.take_dropped(start_ns + 20 * MS, start_ns + 40 * MS))
        counted.append(open_loop.take_dropped(start_ns, start_ns + 1000 * MS))
        open_loop.end()

    followed(answers, [0.0, 0.01, 0.02, 0.03, 0.04], then, max_in_flight=1, drops=True)
    assert counted == [2, 1], "those before the end of an earlier span are forgotten"
    assert len(answers.sent) == 1 and not answers.given_up


def test_a_stop_sends_nothing_more_and_awaits_what_is_under_way() -> None:
    answers = Answers(take_s=0.2)

    async def then(open_loop: OpenLoop, stopping: asyncio.Event, following: Any) -> None:
        await seen(lambda: len(answers.sent) == 2 and open_loop.waits_since_before(time.monotonic_ns()))
        stopping.set()

    followed(answers, [0.0, 0.01, 0.02, 0.03, 30.0], then, max_in_flight=2)
    assert answers.ended == 2 and answers.cancelled == 0
    assert len(answers.given_up) in (1, 2), "what waited for a place is told"


def test_the_next_level_cancels_what_is_open_and_takes_nothing_of_it() -> None:
    answers = Answers(take_s=30)

    async def then(open_loop: OpenLoop, stopping: asyncio.Event, following: Any) -> None:
        await seen(lambda: len(answers.sent) == 2)
        open_loop.end()

    followed(answers, [0.0, 0.01, 0.02, 0.1], then, max_in_flight=2)
    assert answers.cancelled == 2
    assert len(answers.sent) == 2 and not answers.given_up


def test_a_killed_user_has_cancelled_its_requests_when_it_is_gone() -> None:
    answers = Answers(take_s=30)

    async def then(open_loop: OpenLoop, stopping: asyncio.Event, following: Any) -> None:
        await seen(lambda: len(answers.sent) == 3)
        following.cancel()

    with pytest.raises(asyncio.CancelledError):
        followed(answers, [0.0, 0.0, 0.0, 30.0], then)
    assert answers.cancelled == 3 and answers.in_flight == 0


def test_what_still_waits_at_the_end_of_the_drain_is_given_up_in_order() -> None:
    answers = Answers(take_s=30)

    async def then(open_loop: OpenLoop, stopping: asyncio.Event, following: Any) -> None:
        await seen(lambda: len(answers.sent) == 1)
        start_ns = answers.sent[0][0]
        await seen(lambda: open_loop.waits_since_before(start_ns + 20 * MS))
        await asyncio.sleep(0.1)
        open_loop.give_up_before(start_ns + 25 * MS)
        assert not open_loop.waits_since_before(start_ns + 25 * MS)
        assert open_loop.waits_since_before(start_ns + 35 * MS)
        open_loop.end()

    start_ns = followed(answers, [0.0, 0.01, 0.02, 0.03], then, max_in_flight=1)
    assert [scheduled - start_ns for scheduled, _ in answers.given_up] == [10 * MS, 20 * MS]
    assert all(waited > 50 * MS for _, waited in answers.given_up)


def test_a_request_that_raises_does_not_stop_the_schedule() -> None:
    class Failing(Answers):
        async def request(self, user: int, *, scheduled_ns: int | None = None, waited_ns: int | None = None) -> None:
            self.left_out += 1
            raise OSError("disk full")

    failing = Failing(0)

    async def then(open_loop: OpenLoop, stopping: asyncio.Event, following: Any) -> None:
        await seen(lambda: failing.left_out == 3)
        open_loop.end()

    followed(failing, [0.0, 0.01, 0.02], then)


def test_a_schedule_that_ends_waits_for_the_next_level() -> None:
    answers = Answers(take_s=0.01)

    async def then(open_loop: OpenLoop, stopping: asyncio.Event, following: Any) -> None:
        await seen(lambda: answers.ended == 1)
        await asyncio.sleep(0.05)
        assert not following.done()
        open_loop.end()

    followed(answers, [0.0], then)


def test_a_schedule_that_cannot_be_read_on_ends_the_user_with_its_reason() -> None:
    def offsets() -> Any:
        yield 0.0
        raise ValueError("entry 2 of the trace is at 1 s, before the one ahead of it")

    answers = Answers(take_s=0.01)

    async def run() -> None:
        open_loop = OpenLoop(answers, offsets(), start_ns=time.monotonic_ns(), max_in_flight=None, drops=False)
        await asyncio.wait_for(open_loop.follow(0, asyncio.Event()), 5)

    with pytest.raises(ValueError, match="entry 2"):
        asyncio.run(run())
