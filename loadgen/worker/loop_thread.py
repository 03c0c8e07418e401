"""One uvloop event loop in one real OS thread beside Locust's gevent hub, and the two ways across.

Right in a monkey-patched process too: the thread is started with the original primitives, and nothing here or on the
loop uses `threading`, executors or logging, which gevent may have replaced.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Coroutine
from typing import Any

import gevent
from gevent import monkey

from loadgen.wire.wire_loop import WireLoop

_start_new_thread = monkey.get_original("_thread", "start_new_thread")
_allocate_lock = monkey.get_original("_thread", "allocate_lock")


class LoopThread:
    """Must be made in the hub's thread, after any fork; runs until the process ends or `stop` is called."""

    def __init__(self) -> None:
        self._to_hub: collections.deque[Callable[[], object]] = collections.deque()
        self._hub_wake = gevent.get_hub().loop.async_()
        # The hub's loop may be idle between greenlets; the watcher must not keep an ending process alive.
        self._hub_wake.start(self._run_in_hub)
        self._hub_wake.ref = False
        self._started = _allocate_lock()
        self._started.acquire()
        self.loop = WireLoop()
        self.thread_id = 0
        _start_new_thread(self._run, ())
        self._started.acquire()

    def _run(self) -> None:
        import _thread

        self.thread_id = _thread.get_ident()
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._started.release)
        self.loop.run_forever()

    def on_loop(self, function: Callable[..., object], *arguments: Any) -> None:
        """Calls `function` on the loop soon. From any thread."""
        self.loop.call_soon_threadsafe(function, *arguments)

    def on_hub(self, function: Callable[[], object]) -> None:
        """Calls `function` in the hub soon, in a callback that must not block. From the loop's thread."""
        self._to_hub.append(function)
        self._hub_wake.send()

    def _run_in_hub(self) -> None:
        while self._to_hub:
            self._to_hub.popleft()()

    def wait(self, coroutine: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> Any:
        """Runs a coroutine on the loop while the calling greenlet waits; gives its result or raises its exception.

        Raises TimeoutError after `timeout_s`; the coroutine is then cancelled.
        """
        from gevent.event import AsyncResult

        outcome: AsyncResult = AsyncResult()
        tasks: list[asyncio.Task[Any]] = []

        def start() -> None:
            task = self.loop.create_task(coroutine)
            tasks.append(task)
            task.add_done_callback(lambda done: self.on_hub(lambda: finish(done)))

        def finish(task: asyncio.Task[Any]) -> None:
            if task.cancelled():
                outcome.set_exception(TimeoutError("the call on the event loop was cancelled"))
            elif (error := task.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set(task.result())

        self.on_loop(start)
        try:
            return outcome.get(timeout=timeout_s)
        except gevent.Timeout:
            self.on_loop(lambda: tasks[0].cancel() if tasks else None)
            raise TimeoutError(f"a call on the event loop took longer than {timeout_s:g} s") from None

    def stop(self) -> None:
        """Ends the loop; everything on it must have been closed before."""
        self.on_loop(self.loop.stop)
        self._hub_wake.stop()
