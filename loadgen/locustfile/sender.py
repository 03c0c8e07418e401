"""What tasks send through in one worker: takes a prompt and a name, gives the request's record. Lives on the event loop.

There is one while a test runs, between its CONFIGURE and its FINISH; the hub reads `names` and nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from loadgen.locustfile.names import number_of
from loadgen.locustfile.prompt import Messages, Prompt
from loadgen.locustfile.workload import TaskWorkload
from loadgen.record import RequestRecord
from loadgen.wire.answer_text import answer_text
from loadgen.wire.exchange import Exchange
from loadgen.worker.generator import Generator
from loadgen.worker.open_loop import OpenLoop
from loadgen.workload.planned import PlannedRequest


class OpenUsers:
    """The schedules of all open-loop users of a worker, in place of a scenario's one."""

    def __init__(self) -> None:
        self._loops: list[OpenLoop] = []

    def add(self, loop: OpenLoop) -> None:
        """One more; it stays when its user has gone, since it knows what was dropped."""
        self._loops.append(loop)

    def end(self) -> None:
        """A level has ended; its users go on."""

    def waits_since_before(self, instant_ns: int) -> bool:
        """Whether an arrival that was scheduled before then still has no place."""
        return any(loop.waits_since_before(instant_ns) for loop in self._loops)

    def give_up_before(self, instant_ns: int) -> None:
        """Records the arrivals scheduled before then that still have no place, as never sent."""
        for loop in self._loops:
            loop.give_up_before(instant_ns)

    def take_dropped(self, start_ns: int, end_ns: int) -> int:
        """How many arrivals scheduled in [start, end) were dropped."""
        return sum([loop.take_dropped(start_ns, end_ns) for loop in self._loops])


class Sender:
    """Sends what tasks ask for."""

    def __init__(self, load: Generator, workload: TaskWorkload, *, open_loop: bool) -> None:
        self.load = load
        self.workload = workload
        self.open_users = OpenUsers() if open_loop else None
        self.names: set[str] = set()
        """Every name that a request has had."""
        self._prompts = itertools.count(load.plan.worker, load.plan.workers)

    def prompt(self, input_tokens: int) -> Prompt:
        """A prompt that no other request of the run has. Raises PromptError."""
        return self.workload.prompt(next(self._prompts), input_tokens)

    async def send(
        self,
        user: int,
        name: str,
        prompt: str | Messages,
        output_tokens: int | None,
        *,
        ignore_eos: bool,
        model: str | None,
        extra_body: Mapping[str, Any] | None,
        scheduled_ns: int | None,
        waited_ns: int | None,
        on_text: Callable[[str], object] | None,
        ended: Callable[[RequestRecord], object],
    ) -> RequestRecord:
        """One request from its dispatch to its end. Raises CancelledError, after `ended` was given its record."""
        # First, so that what cannot be asked for takes no number.
        body = self.workload.body(prompt, output_tokens, ignore_eos=ignore_eos, model=model, extra_body=extra_body)
        self.names.add(name)

        def planned(k: int) -> PlannedRequest:
            return PlannedRequest(
                k=k,
                body=body,
                kind=number_of(name),
                input_tokens=prompt.input_tokens if isinstance(prompt, Prompt) else None,
                output_tokens=output_tokens,
                output_forced=ignore_eos and output_tokens is not None,
            )

        def heard(exchange: Exchange, request: RequestRecord) -> None:
            if on_text is not None:
                on_text(answer_text(exchange))

        return await self.load.request(
            user, scheduled_ns=scheduled_ns, waited_ns=waited_ns, make=planned, heard=heard, ended=ended
        )


_sender: Sender | None = None


def use(sender: Sender | None) -> None:
    """Makes `sender` the one that this process's users send through; None when no test runs."""
    global _sender
    _sender = sender


def current() -> Sender | None:
    """The process's sender; None when no test runs here."""
    return _sender
