"""The two user classes for people's own locustfiles: Locust owns their life, every request goes through our client.

from loadgen import LLMUser
from locust import between, task

class ChatUser(LLMUser):
    wait_time = between(1, 3)

    @task
    async def ask(self):
        await self.stream(self.prompt(512), output_tokens=128)
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from locust import constant
from locust.exception import StopTest, StopUser

from loadgen import record
from loadgen.arrivals.pattern import Pattern
from loadgen.arrivals.schedule import Schedule
from loadgen.locustfile import sender
from loadgen.locustfile.prompt import Messages, Prompt
from loadgen.locustfile.sender import Sender
from loadgen.record import OK, RequestRecord
from loadgen.wire.client import PATHS
from loadgen.worker.async_user import AsyncUser
from loadgen.worker.open_loop import OpenLoop
from loadgen.worker.streaming_user import BACKOFF_MAX_S, BACKOFF_S, GOLDEN_RATIO

# A user that is there before its worker has been told of the test looks this often.
_LOOK_S = 0.05
# Draws of users' schedules are none of a scenario's levels, of which there are fewer.
_FIRST_DRAW = 1 << 12

_numbers = itertools.count()


@dataclass(slots=True)
class _Arrival:
    """What is known of the task that runs."""

    task: str
    scheduled_ns: int | None = None
    waited_ns: int | None = None


_arrival: ContextVar[_Arrival] = ContextVar("arrival")


class LLMUser(AsyncUser):
    """A closed loop: one task after another, with `wait_time` between them. Its tasks are `async def`.

    Tags, weights, `on_start`, `on_stop` (both may be coroutines), `fixed_count`, shapes and the web UI work as Locust
    documents them; nested TaskSets do not. A task must not block: it shares the event loop with all users of its worker.
    """

    abstract = True
    wait_time = constant(0)

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.number = next(_numbers)
        self._failures_in_a_row = 0

    async def stream(
        self,
        prompt: str | Messages,
        *,
        output_tokens: int | None = None,
        name: str | None = None,
        ignore_eos: bool = True,
        extra_body: Mapping[str, Any] | None = None,
        model: str | None = None,
        on_text: Callable[[str], object] | None = None,
    ) -> RequestRecord:
        """Sends one request and gives its record when its stream has ended.

        `prompt`: a text (of `self.prompt` or any other), or the messages of a chat. `output_tokens`: how many to ask for,
        and, with `ignore_eos`, to get; None leaves the length to the model. `name`: the class of requests that it belongs to
        in the results and in Locust's statistics; the task's name without one. `extra_body`: further keys of the body, such
        as `temperature`. `model`: another one than the run's. `on_text` is given what the answer said, for a next message.

        What the target does wrong is in the record (`status`, `reason`), never an exception. Raises TypeError or ValueError
        for what cannot be asked.
        """
        send = await self._sender()
        arrival = _arrival.get(None) or _Arrival(type(self).__name__)
        scheduled_ns, waited_ns = arrival.scheduled_ns, arrival.waited_ns
        arrival.scheduled_ns = arrival.waited_ns = None  # a task's further requests were not scheduled
        name = name or arrival.task
        request = await send.send(
            self.number,
            name,
            prompt,
            output_tokens,
            ignore_eos=ignore_eos,
            model=model,
            extra_body=extra_body,
            scheduled_ns=scheduled_ns,
            waited_ns=waited_ns,
            on_text=on_text,
            ended=partial(self._tell_locust, name, PATHS[send.workload.endpoint]),
        )
        await self._back_off(request)
        return request

    def prompt(self, input_tokens: int) -> Prompt:
        """A prompt of exactly so many tokens as the server counts them, chat template included; no two of a run are alike.

        Raises PromptError when it cannot be so short, or nobody counts tokens.
        """
        send = sender.current()
        if send is None:
            raise RuntimeError("There is no prompt before the test has begun: ask for it in a task or in on_start.")
        return send.prompt(input_tokens)

    async def _live(self) -> None:
        try:
            await self._sender()  # on_start may ask for a prompt
        except StopUser:
            return
        await super()._live()

    async def _perform(self, task: Any) -> None:
        _arrival.set(_Arrival(task.__name__))
        await super()._perform(task)

    async def _sender(self) -> Sender:
        while (send := sender.current()) is None:
            if self.stopping:
                raise StopUser
            await self.sleep(_LOOK_S)
        return send

    async def _back_off(self, request: RequestRecord) -> None:
        """After failures in a row at least 50 ms, 100 ms, … 1 s: a target that refuses at once is not to be hammered."""
        if not record.is_failure(request.status):
            self._failures_in_a_row = 0
            return
        self._failures_in_a_row += 1
        await self.sleep(min(BACKOFF_MAX_S, BACKOFF_S * 2 ** min(self._failures_in_a_row - 1, 10)))

    def _tell_locust(self, name: str, path: str, request: RequestRecord) -> None:
        if request.status in record.UNDECIDED:  # we ended it: neither a success nor a failure of the target
            return
        self.emit(
            request_type="SSE",
            name=name,
            response_time=(request.finished_ns - request.dispatched_ns) / 1e6,
            response_length=request.response_bytes,
            exception=None if request.status == OK else RuntimeError(f"{request.status}: {request.reason}"),
            context=self.context(),
            url=path,
            response=request,
        )


class OpenLoopLLMUser(LLMUser):
    """An open loop: tasks begin when a schedule says, `request_rate` a second for each user, whatever the answers take.

    Ten users of 0.5 a second are 5 a second; with poisson arrivals that is one Poisson process, however they are spread over
    workers. `wait_time` has no meaning. The first request of a task counts from the instant that the schedule wanted.
    """

    abstract = True

    request_rate: float = 1.0
    """Tasks a second of one user."""
    arrival: Pattern = "poisson"
    """`poisson`, `constant` or `gamma`."""
    burstiness: float = 1.0
    """Shape of gamma arrivals."""
    max_in_flight: int | None = None
    """Most tasks of one user under way; None is no limit."""
    overflow: Literal["queue", "drop"] = "queue"
    """What becomes of an arrival beyond that."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._ended_by: StopTest | None = None

    async def arrive(self, scheduled_ns: int | None, waited_ns: int | None) -> None:
        """One task, for an arrival of the schedule."""
        task = random.choice(self.tasks)
        _arrival.set(_Arrival(task.__name__, scheduled_ns, waited_ns))
        try:
            await AsyncUser._perform(self, task)
        except StopUser:
            self.stop_asked.set()
        except StopTest as error:
            self._ended_by = error
            self.stop_asked.set()

    async def _perform_tasks(self) -> None:
        send = await self._sender()
        assert send.open_users is not None
        position = self.number * send.load.plan.workers + send.load.plan.worker
        schedule = Schedule(
            pattern=self.arrival,
            burstiness=self.burstiness,
            times_s=(0.0,),
            rates=(self.request_rate,),
            seed=send.workload.seed,
            level=_FIRST_DRAW + position,
        )
        # Users with equal gaps begin out of step; those with random gaps are so anyway.
        phase_s = position * GOLDEN_RATIO % 1.0 / self.request_rate if self.arrival == "constant" else 0.0
        loop = OpenLoop(
            _Tasks(self, send),
            schedule.share(0, 1),
            start_ns=time.monotonic_ns() + round(phase_s * 1e9),
            max_in_flight=self.max_in_flight,
            drops=self.overflow == "drop",
        )
        send.open_users.add(loop)
        await loop.follow(self.number, self.stop_asked)
        if self._ended_by is not None:
            raise self._ended_by

    async def _back_off(self, request: RequestRecord) -> None:
        """There is none: open means open."""


class _Tasks:
    """An open-loop user as what sends for its schedule: for each arrival a task."""

    def __init__(self, user: OpenLoopLLMUser, send: Sender) -> None:
        self._user = user
        self._send = send

    async def request(self, user: int, *, scheduled_ns: int | None = None, waited_ns: int | None = None) -> None:
        await self._user.arrive(scheduled_ns, waited_ns)

    def leave_out(self) -> None:
        """A dropped arrival takes no number here."""

    def give_up_waiting(self, user: int, scheduled_ns: int, waited_ns: int) -> None:
        self._send.load.give_up_waiting(user, scheduled_ns, waited_ns)


def llm_users(environment: Any) -> list[type[LLMUser]]:
    """The user classes of the environment whose requests go through our client."""
    return [one for one in environment.user_classes if issubclass(one, LLMUser)]


def is_open_loop(environment: Any) -> bool:
    return any(issubclass(one, OpenLoopLLMUser) for one in llm_users(environment))
