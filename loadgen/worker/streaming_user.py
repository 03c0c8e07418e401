"""The closed-loop user of a scenario: one request after another, for as long as Locust lets it live."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

from locust import constant, task

from loadgen import record
from loadgen.worker import generator
from loadgen.worker.async_user import AsyncUser
from loadgen.worker.converse import converse

# A target that refuses at once must not be asked thousands of times a second by a closed loop that never waits.
BACKOFF_S = 0.05
BACKOFF_MAX_S = 1.0
# Multiples of the golden ratio modulo one: any first n of them are spread evenly, and no two users start in step.
GOLDEN_RATIO = 0.618_033_988_749_895

_numbers = itertools.count()


class StreamingUser(AsyncUser):
    """Sends the prompts of the current level, each as soon as the answer before it has ended."""

    wait_time = constant(0)

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.number = next(_numbers)
        self._failures_in_a_row = 0
        self._random = random.Random()
        self._phase = 0.0
        """Between 0 and 1, spread evenly over the users of all workers."""
        self._conversed_in = -1
        """The level of its latest conversation."""

    async def on_start(self) -> None:
        """Opens a connection in the first half of the ramp and lets the first request wait for the second half.

        A closed loop that starts in step stays in step, and a burst of connects would make the loop late.
        """
        load = generator.current()
        if load.think_time is not None:
            self._random.seed(f"{load.think_time.seed}/{load.plan.worker}/{self.number}")
        half_s = load.ramp_ns / 2e9
        phase = self._phase = (self.number * load.plan.workers + load.plan.worker) * GOLDEN_RATIO % 1.0
        began = time.monotonic()
        await self.sleep(phase * half_s)
        await load.client.open_connection()
        await self.sleep(began + (1 + phase) * half_s - time.monotonic())

    @task
    async def request(self) -> None:
        """One request, or one conversation, then the think time; after failures in a row at least 50 ms, 100 ms, … 1 s
        before the next."""
        if self.stopping:
            return
        load = generator.current()
        request = await (self._converse(load) if load.holds_conversations else load.request(self.number))
        if load.think_time is not None:
            await self.sleep(load.think_time.next_s(self._random))
        if not record.is_failure(request.status):
            self._failures_in_a_row = 0
            return
        self._failures_in_a_row += 1
        await self.sleep(min(BACKOFF_MAX_S, BACKOFF_S * 2 ** min(self._failures_in_a_row - 1, 10)))

    async def _converse(self, load: generator.Generator) -> record.RequestRecord:
        """One conversation; of the first one in a level only a part, so that not all users are in the same turn for good.

        Each begins at its first turn, since the server must have seen what the later ones carry."""
        conversation = load.next_conversation()
        turns = conversation.turns
        if self._conversed_in != load.level:
            turns = 1 + int(self._phase * turns)
        self._conversed_in = load.level
        return await converse(load, self, conversation, most_turns=turns)
