"""Continuous batching in steps: takes requests, gives each step's length and its tokens; knows no socket and no clock.

Every step gives each decoding sequence one token and spends what is left of `max_num_batched_tokens` on prompts, in
order of arrival; a prompt that does not fit goes on in the next step (chunked prefill). A sequence whose prompt is
complete gets its first token from that same step. Deterministic: the same calls give the same steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from server.simulator.settings import SimulatorSettings


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. `prefilled` and `generated` are its progress and belong to the engine."""

    id: int
    prompt_tokens: int
    output_tokens: int
    prefilled: int = 0
    generated: int = 0


class Step(NamedTuple):
    """What the engine does from now until `duration_ns` later; the emissions happen at its end."""

    duration_ns: int
    prefill_tokens: int
    decoding: int
    """Sequences that were decoding already when the step began."""
    running: int
    """Sequences that take part: decoding and prefilling."""
    admitted: list[Request]
    """Requests that left the waiting queue with this step."""
    emissions: list[tuple[Request, int, bool]]
    """(request, tokens it gets, whether it is finished), decoding sequences first."""


class Engine:
    """The scheduler: a waiting queue (first come, first served) and at most `max_num_seqs` running sequences."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self._settings = settings
        self._open: dict[int, Request] = {}
        self._waiting: deque[Request] = deque()
        self._prefilling: deque[Request] = deque()
        self._decoding: list[Request] = []

    @property
    def waiting(self) -> int:
        """Requests that no step has begun yet."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences between their first step and their last token."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def held_tokens(self) -> int:
        """Tokens that the running sequences would keep in a KV cache."""
        held = sum(request.prefilled for request in self._prefilling)
        return held + sum(request.prefilled + request.generated for request in self._decoding)

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue; ValueError for an id in use or a length below 1."""
        if request.id in self._open:
            raise ValueError(f"request {request.id} is in the engine already")
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.id} needs at least one prompt token and one output token")
        self._open[request.id] = request
        self._waiting.append(request)

    def cancel(self, request_id: int) -> bool:
        """Forget a request wherever it is; False when it is not there (finished or never added)."""
        request = self._open.pop(request_id, None)
        if request is None:
            return False
        if request.generated:
            self._decoding.remove(request)
        elif request in self._prefilling:
            self._prefilling.remove(request)
        else:
            self._waiting.remove(request)
        return True

    def step(self) -> Step | None:
        """Compose and account the next step; None when there is nothing to do."""
        decoding = len(self._decoding)
        running = self.running
        emissions = self._decode()
        admitted: list[Request] = []
        budget = tokens_left = self._settings.max_num_batched_tokens - decoding
        while tokens_left and (request := self._next_prompt(running, admitted)):
            running += request.prefilled == 0
            tokens = min(tokens_left, request.prompt_tokens - request.prefilled)
            tokens_left -= tokens
            request.prefilled += tokens
            if request.prefilled == request.prompt_tokens:
                self._prefilling.popleft()
                emissions.append((request, 1, self._first_token(request)))
        if not running:
            return None
        prefill_tokens = budget - tokens_left
        duration_ns = self._settings.step_ns(prefill_tokens=prefill_tokens, decoding=decoding)
        return Step(duration_ns, prefill_tokens, decoding, running, admitted, emissions)

    def _decode(self) -> list[tuple[Request, int, bool]]:
        emissions: list[tuple[Request, int, bool]] = []
        any_finished = False
        for request in self._decoding:
            request.generated += 1
            finished = request.generated == request.output_tokens
            any_finished |= finished
            emissions.append((request, 1, finished))
        if any_finished:
            for request, _, finished in emissions:
                if finished:
                    del self._open[request.id]
            self._decoding = [request for request, _, finished in emissions if not finished]
        return emissions

    def _first_token(self, request: Request) -> bool:
        request.generated = 1
        finished = request.output_tokens == 1
        if finished:
            del self._open[request.id]
        else:
            self._decoding.append(request)
        return finished

    def _next_prompt(self, running: int, admitted: list[Request]) -> Request | None:
        """The prompt to go on with: a begun one first, else the oldest waiting one if a place is free."""
        if self._prefilling:
            return self._prefilling[0]
        if self._waiting and running < self._settings.max_num_seqs:
            request = self._waiting.popleft()
            self._prefilling.append(request)
            admitted.append(request)
            return request
        return None
