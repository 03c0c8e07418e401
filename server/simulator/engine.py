"""Continuous batching in steps: takes requests, gives each step's length and its tokens; knows no socket and no clock.

The scheduler of vLLM v1. Every step gives each decoding sequence its token (with drafted tokens perhaps more) and spends
what is left of `max_num_batched_tokens` on prompts, in order of arrival; a prompt that does not fit goes on in the next
step (chunked prefill). A sequence whose prompt is complete gets its first token from that same step. A sequence needs
blocks of the KV cache: one is admitted when its whole prompt fits; when a running one finds no free block, the one that
was admitted last gives its blocks back, goes to the front of the queue, and later computes prompt and output so far
again (preemption by recompute). Deterministic: the same calls give the same steps.
"""

from __future__ import annotations

import random
from collections import deque
from typing import NamedTuple

from server.roofline import prompt_pairs
from server.simulator.kv_cache import KvCache, PrefixCache, Request
from server.simulator.settings import SimulatorSettings
from server.simulator.step_time import StepTime, StepWork

__all__ = ["Counts", "Engine", "Request", "Step"]


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
    preempted: list[Request]
    """Requests that went back to the queue before this step."""


class Counts:
    """What an engine has counted since it was made."""

    __slots__ = ("accepted_at", "draft_tokens", "drafts", "preemptions", "prefix_hits", "prefix_queries")

    def __init__(self, num_speculative_tokens: int) -> None:
        self.preemptions = 0
        self.prefix_queries = 0
        """Prompt tokens that were looked up, of each request once."""
        self.prefix_hits = 0
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted_at = [0] * num_speculative_tokens
        """Accepted drafts by their place in the draft."""


class Engine:
    """The scheduler: a waiting queue (first come, first served) and at most `max_num_seqs` running sequences."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self._settings = settings
        self._cache = (PrefixCache if settings.enable_prefix_caching else KvCache)(
            settings.kv_blocks, settings.block_size
        )
        self._time = StepTime(settings)
        self._drafted = settings.num_speculative_tokens
        self._draw = random.Random(f"acceptance {settings.seed}")
        self._open: dict[int, Request] = {}
        self._waiting: deque[Request] = deque()
        self._prefilling: Request | None = None
        self._decoding: list[Request] = []
        self._context = 0
        self._ended: list[Request] = []
        self.counts = Counts(self._drafted)

    @property
    def waiting(self) -> int:
        """Requests that no step has begun yet, and those that were preempted."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences between their first step and their last token."""
        return len(self._decoding) + (self._prefilling is not None)

    @property
    def held_tokens(self) -> int:
        """Tokens of the running sequences whose KV is there, or will be after the step under way."""
        return self._context + (self._prefilling.prefilled if self._prefilling is not None else 0)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache's blocks that the step under way holds."""
        return self._cache.usage

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue.

        ValueError for an id in use, a length below 1, and one that the KV cache cannot hold even alone.
        """
        if request.id in self._open:
            raise ValueError(f"request {request.id} is in the engine already")
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.id} needs at least one prompt token and one output token")
        if not self._cache.holds(request.prompt_tokens + request.output_tokens + self._drafted):
            raise ValueError(f"request {request.id} is longer than the KV cache")
        self._open[request.id] = request
        self._waiting.append(request)

    def cancel(self, request_id: int) -> bool:
        """Forget a request wherever it is; False when it is not there (finished or never added)."""
        request = self._open.pop(request_id, None)
        if request is None:
            return False
        if request is self._prefilling:
            self._prefilling = None
        elif request.held:
            self._decoding.remove(request)
            self._context -= request.prompt_tokens + request.generated
        else:
            self._waiting.remove(request)
        self._cache.release(request)
        return True

    def release_ended(self) -> None:
        """Take back the blocks of the requests that ended with the last step, once that is over; `step` does it too."""
        for request in self._ended:
            self._cache.release(request)
        self._ended.clear()

    def step(self) -> Step | None:
        """Compose and account the next step; None when there is nothing to do."""
        self.release_ended()
        preempted: list[Request] = []
        emissions, work = self._decode(preempted)
        decoding = work.decoding
        budget = self._settings.max_num_batched_tokens - decoding - work.drafted
        admitted: list[Request] = []
        pairs, context, left, done = 0.0, 0, budget, 0
        running = decoding
        while left > 0 and (request := self._next_prompt(running, left, admitted, preempted)) is not None:
            wanted = request.prompt_tokens + request.generated
            tokens = min(left, wanted - request.prefilled)
            if not self._cache.grow(request, request.prefilled + tokens + self._drafted):
                # It is the one that was admitted last, so it is the one that gives way.
                self._preempt(request, preempted)
                break
            running += 1
            left -= tokens
            pairs += prompt_pairs(tokens, request.prefilled)
            context += request.prefilled
            request.prefilled += tokens
            self._cache.computed(request, request.prefilled)
            if request.prefilled == wanted:
                self._prefilling = None
                done += 1
                emissions.append((request, 1, self._sampled(request)))
        if not running:
            return None
        prefill_tokens = budget - left
        if prefill_tokens:
            work = work._replace(
                prefill_tokens=prefill_tokens, prefill_context=context, prefill_pairs=pairs, prompts_done=done
            )
        return Step(self._time.ns(work), prefill_tokens, decoding, running, admitted, emissions, preempted)

    def _decode(self, preempted: list[Request]) -> tuple[list[tuple[Request, int, bool]], StepWork]:
        emissions: list[tuple[Request, int, bool]] = []
        any_finished = False
        given = 0
        drafted = self._drafted
        need = 1 + drafted
        # The list may lose sequences at its end meanwhile: those that a sequence before them took the blocks of.
        for request in self._decoding:
            if request.room < need and not self._make_room(request, need, preempted):
                break
            tokens = 1
            if drafted:
                tokens = min(1 + self._accepted(), request.output_tokens - request.generated)
            request.room -= tokens
            request.generated += tokens
            given += tokens
            finished = request.generated == request.output_tokens
            any_finished |= finished
            emissions.append((request, tokens, finished))
        decoding = len(emissions)
        # What a sequence attends to is its length before the step: the token of the last step is computed in this one.
        work = StepWork(decoding, decoding * drafted, self._context)
        self._context += given
        if any_finished:
            for request, _, finished in emissions:
                if finished:
                    self._end(request, request.prompt_tokens + request.generated - 1)
                    self._context -= request.prompt_tokens + request.generated
            self._decoding = [request for request, _, finished in emissions if not finished]
        return emissions, work

    def _next_prompt(
        self, running: int, left: int, admitted: list[Request], preempted: list[Request]
    ) -> Request | None:
        """The prompt to go on with: a begun one first, else the oldest waiting one if place and blocks are free."""
        if self._prefilling is not None:
            return self._prefilling
        if not self._waiting or preempted or running >= self._settings.max_num_seqs:
            return None
        request = self._waiting[0]
        wanted = request.prompt_tokens + request.generated
        found = self._cache.adopt(request, wanted + self._drafted)
        if found is None:
            return None
        if not self._settings.enable_chunked_prefill and wanted - found > left:
            self._cache.release(request)
            return None
        self._waiting.popleft()
        self._prefilling = request
        request.prefilled = found
        if not request.preemptions:
            request.cached_tokens = found
            if self._settings.enable_prefix_caching:
                self.counts.prefix_queries += request.prompt_tokens
                self.counts.prefix_hits += found
        admitted.append(request)
        return request

    def _sampled(self, request: Request) -> bool:
        """The token that a complete prompt gives; whether it is the last."""
        computed = request.prefilled
        request.generated += 1
        if request.generated == request.output_tokens:
            self._end(request, computed)
            return True
        request.room = request.held * self._settings.block_size - computed
        self._decoding.append(request)
        self._context += request.prompt_tokens + request.generated
        return False

    def _end(self, request: Request, computed: int) -> None:
        """Its blocks are held until the step is over."""
        del self._open[request.id]
        self._cache.computed(request, computed)
        self._ended.append(request)

    def _make_room(self, request: Request, need: int, preempted: list[Request]) -> bool:
        """Blocks for the next tokens of a decoding sequence; False when it had to give way itself."""
        computed = request.prompt_tokens + request.generated - 1
        self._cache.computed(request, computed)
        while not self._cache.grow(request, computed + need):
            victim = self._prefilling or self._decoding[-1]
            self._preempt(victim, preempted)
            if victim is request:
                return False
        request.room = request.held * self._settings.block_size - computed
        return True

    def _preempt(self, request: Request, preempted: list[Request]) -> None:
        if request is self._prefilling:
            self._prefilling = None
        else:
            self._decoding.pop()
            self._context -= request.prompt_tokens + request.generated
            self._cache.computed(request, request.prompt_tokens + request.generated - 1)
        self._cache.release(request)
        request.prefilled = 0
        request.preemptions += 1
        self.counts.preemptions += 1
        self._waiting.appendleft(request)
        preempted.append(request)

    def _accepted(self) -> int:
        """Drafted tokens of one sequence that are right: each with the same probability, up to the first wrong one."""
        rate = self._settings.speculative_acceptance_rate
        accepted = 0
        while accepted < self._drafted and self._draw.random() < rate:
            self.counts.accepted_at[accepted] += 1
            accepted += 1
        self.counts.drafts += 1
        self.counts.draft_tokens += self._drafted
        return accepted
