"""Runs the engine against the real clock on an absolute schedule: takes answers, calls for their tokens when due.

A step begins where the last one was planned to end, so lateness never adds up. A driver that is late goes on without
sleeping, but gives the loop a turn after every step so that requests and disconnects are still read.
"""

from __future__ import annotations

import asyncio
import time

from server.simulator.alarm import Alarm
from server.simulator.answer import Answer
from server.simulator.engine import Engine, Step
from server.simulator.metrics import Metrics


class Driver:
    """The one that steps the engine; everything happens on the loop's thread."""

    def __init__(self, engine: Engine, metrics: Metrics, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._metrics = metrics
        self._loop = loop
        self._alarm = Alarm(loop, self._deliver)
        self._answers: dict[int, Answer] = {}
        self._step: Step | None = None
        self._end_ns = 0
        self._closed = False

    @property
    def running(self) -> int:
        """Sequences in the step that is on now."""
        return self._step.running if self._step is not None else 0

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
            return
        for request in step.admitted:
            self._answers[request.id].admitted_ns = start_ns
        self._end_ns = start_ns + step.duration_ns
        if self._end_ns > time.monotonic_ns():
            self._alarm.set(self._end_ns)
        else:
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        step = self._step
        if step is None or self._closed:
            return
        now_ns = time.monotonic_ns()
        tokens = 0
        for request, _, finished in step.emissions:
            answer = self._answers.get(request.id)
            if answer is None:
                continue
            answer.emit()
            tokens += 1
            if len(answer.token_ns) == 1:
                self._metrics.first_token(answer)
            if finished:
                del self._answers[request.id]
                self._metrics.finished(answer)
        self._metrics.step(tokens=tokens, decoding=step.decoding, now_ns=now_ns, planned_ns=self._end_ns)
        self._begin(self._end_ns)
