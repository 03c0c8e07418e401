"""A Locust user whose tasks are coroutines: Locust owns its life, the process's one event loop runs it.

Usable in any locustfile: subclass `AsyncUser`, write `@task async def …`. Tags, weights, `wait_time`, events, stop
timeouts and the web UI work as Locust documents them; `self.emit(...)` reports a request to Locust's own statistics.
"""

from __future__ import annotations

import asyncio
import collections
import inspect
import logging
import random
from functools import partial
from typing import Any

import gevent
import locust
from gevent.event import Event
from locust import User
from locust.exception import InterruptTaskSet, RescheduleTask, StopTest, StopUser
from locust.user.task import LOCUST_STATE_RUNNING, LOCUST_STATE_STOPPING

from loadgen.worker.loop_thread import LoopThread

# Finished requests cross to the hub in batches: one wake-up every so often, not one a request.
_EMIT_S = 0.1
# A killed user waits this long for its task to be cancelled, so Locust's count cannot run ahead of the sockets.
_CANCEL_S = 5.0
_EVENTS_BEFORE_YIELD = 64
# A task that raises at once must not spin.
_AFTER_ERROR_S = 0.1

_log = logging.getLogger(__name__)

_loop_thread: LoopThread | None = None
_events: collections.deque[tuple[Any, dict[str, Any]]] = collections.deque()
_emit_scheduled = False


def loop_thread() -> LoopThread:
    """The process's event loop; made at the first call, so never before `--processes` has forked."""
    global _loop_thread
    if _loop_thread is None:
        _loop_thread = LoopThread()
    return _loop_thread


class AsyncUser(User):  # type: ignore[misc]
    """A user whose `on_start`, `on_stop` and tasks may be coroutines; they run on `loop_thread().loop`."""

    abstract = True

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._stopping: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._killed = False

    def run(self) -> None:
        """The greenlet: starts the coroutine, waits for its end, and on a kill cancels it and waits again."""
        thread = loop_thread()
        self._state = LOCUST_STATE_RUNNING
        ended = Event()

        def start() -> None:
            if self._killed:
                thread.on_hub(ended.set)
                return
            self._stopping = asyncio.Event()
            if self._state == LOCUST_STATE_STOPPING:
                self._stopping.set()
            self._task = thread.loop.create_task(self._live())
            self._task.add_done_callback(lambda _: thread.on_hub(ended.set))

        def cancel() -> None:
            self._killed = True
            if self._task is not None:
                self._task.cancel()

        thread.on_loop(start)
        try:
            ended.wait()
        except BaseException:  # GreenletExit, or a timeout thrown into the greenlet
            thread.on_loop(cancel)
            with gevent.Timeout(_CANCEL_S, False):
                ended.wait()
            raise
        assert self._task is not None
        error = None if self._task.cancelled() else self._task.exception()
        if isinstance(error, StopTest):
            raise error
        if error is not None:  # of on_start or on_stop: the user is gone
            self._tell_error(error)

    def stop(self, force: bool = False) -> bool:
        """Graceful: ends think time at once, a request never. Forced: cancels the request and waits for that."""
        if force or self._state is None:
            self._group.killone(self._greenlet)
            return True
        if self._state == LOCUST_STATE_RUNNING:
            self._state = LOCUST_STATE_STOPPING
            loop_thread().on_loop(lambda: self._stopping.set() if self._stopping else None)
        return False

    @property
    def stopping(self) -> bool:
        """Whether the user has been asked to stop: no further request is to be started."""
        return bool(self._state == LOCUST_STATE_STOPPING)

    @property
    def stop_asked(self) -> asyncio.Event:
        """Set once the user is asked to stop. On the loop, from `on_start` on."""
        assert self._stopping is not None
        return self._stopping

    async def sleep(self, seconds: float) -> None:
        """Think time: ends early when the user is asked to stop."""
        assert self._stopping is not None
        if seconds > 0 and not self._stopping.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._stopping.wait()
            except TimeoutError:
                pass

    def emit(self, **event: Any) -> None:
        """Reports a finished request to Locust (`events.request`), from the loop; the hub fires it within 0.1 s."""
        global _emit_scheduled
        _events.append((self.environment, event))
        if not _emit_scheduled:
            _emit_scheduled = True
            loop_thread().loop.call_later(_EMIT_S, _hand_over)

    async def _live(self) -> None:
        try:
            await _maybe_await(self.on_start())
            await self._perform_tasks()
        except StopUser:
            pass
        finally:
            await _maybe_await(self.on_stop())

    async def _perform_tasks(self) -> None:
        """One task after another, until the user is asked to stop."""
        while not self.stopping:
            await self._perform(random.choice(self.tasks))
            wait = self.wait_time()
            if wait:
                await self.sleep(wait)

    async def _perform(self, task: Any) -> None:
        try:
            await _maybe_await(task(self))
        except (RescheduleTask, InterruptTaskSet):
            pass
        except (StopUser, StopTest):
            raise
        except Exception as error:
            # In a greenlet: a listener may have to wait, as that of a worker does, which tells its master.
            loop_thread().on_hub(partial(gevent.spawn, self._tell_error, error))
            await self.sleep(_AFTER_ERROR_S)

    def _tell_error(self, error: BaseException) -> None:
        """As Locust tells of what a task raises. In the hub."""
        _log.error("%s in %s", type(error).__name__, type(self).__name__, exc_info=error)
        self.environment.events.user_error.fire(user_instance=self, exception=error, tb=error.__traceback__)


async def _maybe_await(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


def _hand_over() -> None:
    global _emit_scheduled
    _emit_scheduled = False
    loop_thread().on_hub(lambda: gevent.spawn(fire_events))


def fire_events() -> None:
    """Fires the waiting request events, in the hub, giving other greenlets their turn."""
    fired = 0
    while _events:
        environment, event = _events.popleft()
        environment.events.request.fire(**event)
        fired += 1
        if fired % _EVENTS_BEFORE_YIELD == 0:
            gevent.sleep(0)


# Registered at import and so before Locust's own serialiser: a report holds every request that ended before it.
# Firing without a yield here would hold up the report; the events are few, since they are fired ten times a second.
@locust.events.report_to_master.add_listener
def _before_report(**_: Any) -> None:
    fire_events()


@locust.events.test_stop.add_listener
def _at_the_end(**_: Any) -> None:
    fire_events()
