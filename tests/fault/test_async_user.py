"""The life of an asynchronous user under Locust: graceful and forced stops, think time, failing tasks, `StopUser`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from locust import constant, task
from locust.env import Environment
from locust.exception import StopUser

from loadgen.worker.async_user import AsyncUser


class Log:
    """What the users of a test did."""

    def __init__(self) -> None:
        self.started = 0
        self.ended = 0
        self.cancelled = 0
        self.on_stop = 0


def user_class(log: Log, body: Callable[[AsyncUser], Any], wait_s: float = 0) -> type[AsyncUser]:
    class TestedUser(AsyncUser):
        wait_time = constant(wait_s)

        @task
        async def work(self) -> None:
            log.started += 1
            try:
                await body(self)
            except asyncio.CancelledError:
                log.cancelled += 1
                raise
            log.ended += 1

        async def on_stop(self) -> None:
            log.on_stop += 1

    return TestedUser


def until(condition: Callable[[], bool]) -> None:
    with gevent.Timeout(10):
        while not condition():
            gevent.sleep(0.01)


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    def start(kind: type[AsyncUser], users: int, stop_timeout: float) -> Any:
        environment = Environment(user_classes=[kind], stop_timeout=stop_timeout)
        runner = environment.create_local_runner()
        request.addfinalizer(runner.quit)
        runner.start(users, spawn_rate=users)
        return runner

    return start


async def one_second(_: AsyncUser) -> None:
    await asyncio.sleep(1)


def test_a_graceful_stop_lets_requests_end_and_starts_no_other(run: Callable[..., Any]) -> None:
    log = Log()
    runner = run(user_class(log, one_second), 3, stop_timeout=10)
    until(lambda: log.started == 3)
    began = time.monotonic()
    runner.stop()
    assert 0.3 < time.monotonic() - began < 5
    assert (log.started, log.ended, log.cancelled, log.on_stop) == (3, 3, 0, 3)
    assert runner.user_count == 0


def test_a_forced_stop_cancels_requests_and_waits_until_they_are_cancelled(run: Callable[..., Any]) -> None:
    log = Log()
    runner = run(user_class(log, one_second), 3, stop_timeout=0)
    until(lambda: log.started == 3)
    began = time.monotonic()
    runner.stop()
    assert time.monotonic() - began < 0.9
    # Already so when Locust believes that the users are gone: its count never runs ahead of the sockets.
    assert (log.ended, log.cancelled, log.on_stop) == (0, 3, 3)


def test_a_stop_timeout_that_runs_out_becomes_a_forced_stop(run: Callable[..., Any]) -> None:
    log = Log()
    runner = run(user_class(log, lambda _: asyncio.sleep(60)), 2, stop_timeout=0.3)
    until(lambda: log.started == 2)
    runner.stop()
    assert (log.ended, log.cancelled) == (0, 2)


def test_think_time_ends_at_once_when_a_user_is_to_stop(run: Callable[..., Any]) -> None:
    log = Log()
    runner = run(user_class(log, lambda _: asyncio.sleep(0), wait_s=60), 2, stop_timeout=30)
    until(lambda: log.ended == 2)
    gevent.sleep(0.1)
    began = time.monotonic()
    runner.stop()
    assert time.monotonic() - began < 5
    assert log.started == 2


def test_users_are_taken_away_one_by_one_when_the_load_goes_down(run: Callable[..., Any]) -> None:
    log = Log()
    runner = run(user_class(log, lambda _: asyncio.sleep(0.05)), 5, stop_timeout=5)
    until(lambda: log.started >= 5)
    runner.start(2, spawn_rate=5)
    until(lambda: runner.user_count == 2)
    assert (log.on_stop, log.cancelled) == (3, 0)


def test_a_task_that_raises_is_reported_and_the_user_goes_on(run: Callable[..., Any]) -> None:
    log, errors = Log(), []

    async def fail(_: AsyncUser) -> None:
        await asyncio.sleep(0.01)
        raise RuntimeError("broken task")

    runner = run(user_class(log, fail), 1, stop_timeout=5)
    runner.environment.events.user_error.add_listener(lambda exception, **_: errors.append(str(exception)))
    until(lambda: log.started > 3 and len(errors) > 2)
    assert set(errors) == {"broken task"}


def test_a_user_that_stops_itself_is_gone(run: Callable[..., Any]) -> None:
    log = Log()

    async def stop(_: AsyncUser) -> None:
        raise StopUser

    runner = run(user_class(log, stop), 2, stop_timeout=5)
    until(lambda: log.on_stop == 2 and runner.user_count == 0)
    assert (log.started, log.on_stop) == (2, 2)
