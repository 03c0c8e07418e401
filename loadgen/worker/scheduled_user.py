"""The open loop's user of a scenario: one a worker, it follows the schedule of one level after another."""

from __future__ import annotations

import itertools
from typing import Any

from locust import constant, task

from loadgen.worker import generator
from loadgen.worker.async_user import AsyncUser

# How soon it sees that a level has begun, whose schedule starts a second or so later.
_LOOK_S = 0.02

_numbers = itertools.count()


class ScheduledUser(AsyncUser):
    """Has the worker's share of the schedule sent. A second one on the same worker finds it taken, and waits."""

    wait_time = constant(0)

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.number = next(_numbers)

    @task
    async def follow(self) -> None:
        """One level, until the next begins or the user is asked to stop."""
        open_loop = generator.current().open_loop
        if open_loop is None or open_loop.taken:
            await self.sleep(_LOOK_S)
            return
        generator.current().holder = self
        await open_loop.follow(self.number, self.stop_asked)
