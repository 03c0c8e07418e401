"""Runs the engine against the real clock on an absolute schedule: takes answers, calls for their tokens when due.

A step begins where the last one was planned to end, so lateness never adds up. A driver that is late goes on without
sleeping, but gives the loop a turn after every step so that requests and disconnects are still read.
"""

from __future__ import annotations

import asyncio
import time

from server.simulator.alarm import Alarm
from server.simulator.answer import Answer
from server.simulator.engine import Engine, Request, Step
from server.simulator.metrics import EngineMetrics


class Driver:
    """The one that steps the engine; everything happens on the loop's thread."""

    def __init__(self, engine: Engine, metrics: EngineMetrics, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._metrics = metrics
        self._loop = loop
        self._alarm = Alarm(loop, self._deliver)
        self._answers: dict[int, Answer] = {}
        self._step: Step | None = None
        self._end_ns = 0
        self._closed = False
        self._some_left = False

    def submit(self, answer: Answer) -> None:
        """Queue a request; an idle engine starts on it at once, a closed driver cancels it at once."""
        if self._closed:
            answer.done.cancel()
            return
        self._engine.add(answer.request)
        self._answers[answer.request.id] = answer
        if self._step is None:
            self._begin(time.monotonic_ns())

    def cancel(self, answer: Answer) -> bool:
        """Forget a request whose client is gone; False when it had got all its tokens."""
        if self._answers.pop(answer.request.id, None) is None:
            return False
        self._some_left = True
        # The engine may have finished it in the step that is on; then there is nothing left to cancel there.
        self._engine.cancel(answer.request.id)
        return True

    def close(self) -> None:
        """Stop stepping and let every waiting handler go."""
        self._closed = True
        self._alarm.close()
        for answer in self._answers.values():
            answer.done.cancel()

    def _begin(self, start_ns: int) -> None:
        self._step = step = self._engine.step()
        if step is None:
            self._metrics.idle()
            return
        self._metrics.began(step, start_ns)
        self._end_ns = start_ns + step.duration_ns
        if self._end_ns > time.monotonic_ns():
            self._alarm.set(self._end_ns)
        else:
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        step = self._step
        if step is None or self._closed:
            return
        if self._some_left:
            step = self._without_those_that_left(step)
        now_ns = time.monotonic_ns()
        finished: list[tuple[Request, str]] = []
        answers = self._answers
        for request, tokens, last in step.emissions:
            answer = answers[request.id]
            answer.emit(tokens)
            if last:
                del answers[request.id]
                finished.append((request, answer.reply.finish_reason))
        self._metrics.ended(step, now_ns, finished, planned_ns=self._end_ns)
        self._begin(self._end_ns)

    def _without_those_that_left(self, step: Step) -> Step:
        """Nobody gets the tokens of a client that is gone, so nobody counts them."""
        self._some_left = False
        stays = [emission[0].id in self._answers for emission in step.emissions]
        emissions = [emission for emission, here in zip(step.emissions, stays, strict=True) if here]
        return step._replace(emissions=emissions, decoding=sum(stays[: step.decoding]))
