"""One worker's share of an open loop: every arrival is sent when the schedule says, however long earlier answers take.

Runs on the event loop. An arrival that finds as many requests in flight as may be waits for its turn or is dropped; how
long it waited is kept apart from the worker's own delay. What the target does never moves the schedule.
"""

from __future__ import annotations

import asyncio
import collections
import time
from array import array
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import Protocol

_END_S = 4.0


class Sender(Protocol):
    """Who sends; `loadgen.worker.generator.Generator`."""

    def request(self, user: int, *, scheduled_ns: int | None = None, waited_ns: int | None = None) -> Awaitable[object]:
        """One request from its dispatch to its end."""
        ...

    def leave_out(self) -> None:
        """The next planned request is not sent."""
        ...

    def give_up_waiting(self, user: int, scheduled_ns: int, waited_ns: int) -> None:
        """Records the next planned request as one that was never sent."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """An arrival without a place."""

    scheduled_ns: int
    since_ns: int
    """When the worker came to it."""


class OpenLoop:
    """Follows one level's schedule from its start until `end`."""

    def __init__(
        self, sender: Sender, offsets_s: Iterator[float], *, start_ns: int, max_in_flight: int | None, drops: bool
    ) -> None:
        """`offsets_s`: this worker's arrivals, ascending, after `start_ns` of its own monotonic clock."""
        self._sender = sender
        self._offsets_s = offsets_s
        self._start_ns = start_ns
        self._most = max_in_flight
        self._drops = drops
        self._user = 0
        self._over = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        self._waiting: collections.deque[Waiting] = collections.deque()
        self._dropped_ns = array("q")
        self.taken = False
        """Whether a user follows it."""

    async def follow(self, user: int, stopping: asyncio.Event) -> None:
        """Sends until `end`, or until `stopping` is set: then nothing more is sent, and what is under way is awaited.

        Raises CancelledError after every request under way was cancelled and has its record.
        """
        self.taken, self._user = True, user
        pump = asyncio.ensure_future(self._pump())
        pump.add_done_callback(self._pumped)
        stopped = asyncio.ensure_future(stopping.wait())
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({stopped, over}, return_when=asyncio.FIRST_COMPLETED)
            pump.cancel()
            if stopped.done() and not over.done():
                self.give_up_before(time.monotonic_ns())
                if self._open:
                    await asyncio.wait(self._open)
        finally:
            if not self._over.is_set():
                self.give_up_before(time.monotonic_ns())
                self._over.set()
            for task in (pump, stopped, over, *self._open):
                task.cancel()
            if self._open:
                # Each keeps its record as it is cancelled; a bound, so that one that does not end cannot hold the user.
                await asyncio.wait(self._open, timeout=_END_S)
        if pump.done() and not pump.cancelled() and (error := pump.exception()) is not None:
            raise error

    def end(self) -> None:
        """The level is over: its last requests are cancelled, whose latencies belong to no window."""
        self._waiting.clear()
        self._over.set()

    async def _pump(self) -> None:
        for offset_s in self._offsets_s:
            scheduled_ns = self._start_ns + round(offset_s * 1e9)
            while (early_ns := scheduled_ns - time.monotonic_ns()) > 0:
                await asyncio.sleep(early_ns / 1e9)
            self._arrive(scheduled_ns)

    def _pumped(self, pump: asyncio.Future[None]) -> None:
        """A schedule that is over leaves its requests to end; one that cannot be read on ends the level."""
        if not pump.cancelled() and pump.exception() is not None:
            self._over.set()

    def _arrive(self, scheduled_ns: int) -> None:
        if self._over.is_set():
            return
        if self._most is None or len(self._open) < self._most:
            self._send(scheduled_ns, 0)
        elif self._drops:
            self._dropped_ns.append(scheduled_ns)
            self._sender.leave_out()
        else:
            self._waiting.append(Waiting(scheduled_ns, time.monotonic_ns()))

    def _send(self, scheduled_ns: int, waited_ns: int) -> None:
        task = asyncio.create_task(self._request(scheduled_ns, waited_ns))
        self._open.add(task)
        task.add_done_callback(self._ended)

    async def _request(self, scheduled_ns: int, waited_ns: int) -> None:
        if not self._over.is_set():  # else the next level has begun, and it would be counted there
            await self._sender.request(self._user, scheduled_ns=scheduled_ns, waited_ns=waited_ns)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        if not task.cancelled():
            task.exception()  # its record tells; nobody awaits it
        if self._waiting and not self._over.is_set():
            first = self._waiting.popleft()
            self._send(first.scheduled_ns, time.monotonic_ns() - first.since_ns)

    def waits_since_before(self, instant_ns: int) -> bool:
        """Whether an arrival that was scheduled before then still has no place."""
        return bool(self._waiting) and self._waiting[0].scheduled_ns < instant_ns

    def give_up_before(self, instant_ns: int) -> None:
        """Records the arrivals scheduled before then that still have no place, as never sent."""
        while self.waits_since_before(instant_ns):
            first = self._waiting.popleft()
            waited_ns = time.monotonic_ns() - first.since_ns
            self._sender.give_up_waiting(self._user, first.scheduled_ns, waited_ns)

    def take_dropped(self, start_ns: int, end_ns: int) -> int:
        """How many arrivals scheduled in [start, end) were dropped; forgets those until then."""
        counted = sum(start_ns <= at < end_ns for at in self._dropped_ns)
        self._dropped_ns = array("q", (at for at in self._dropped_ns if at >= end_ns))
        return counted
