"""From single requests to conversations: takes a planned workload and what was asked of turns, gives one of sessions.

What a turn costs beside its words is measured with the token counter, and whole conversations are counted, before a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from loadgen.arrivals.think_time import ThinkTime
from loadgen.errors import UsageError
from loadgen.prompts.conversation import check_conversations, system_overhead, turn_overhead
from loadgen.prompts.errors import PromptError
from loadgen.prompts.tokenizers import Message, TokenCounter
from loadgen.scenario.turns_section import RequestsInTurns
from loadgen.scenario.workload import path_of
from loadgen.workload.conversation import Session
from loadgen.workload.request_class import Independent, RequestClass
from loadgen.workload.sessions import MOST_SESSIONS, ClassTurns, SessionWorkload
from loadgen.workload.synthetic import SyntheticWorkload

SAMPLES = 3
"""Conversations of each class that are counted at their second and at their last turn."""


def refuse_long_conversation(one: RequestsInTurns, max_model_len: int | None, who: str) -> None:
    """Raises UsageError, with the arithmetic, when a conversation could become longer than the model takes."""
    longest = one.longest(path_of(one)) if one.has_turns else None
    if longest is None or max_model_len is None or longest[1] <= max_model_len:
        return
    arithmetic, needed = longest
    raise UsageError(
        f"{arithmetic} = {needed}, more than the {max_model_len} tokens of max_model_len that {who} with.",
        hint=f"shorten them by {needed - max_model_len} tokens in all, or give distributions a max; without one they end "
        "six standard deviations above the mean",
    )


def in_turns(
    workload: SyntheticWorkload,
    asked: Sequence[RequestsInTurns],
    counters: Sequence[TokenCounter],
    load_think_time: ThinkTime | None,
) -> SyntheticWorkload:
    """The workload with the turns that its classes ask for; the same where each has one.

    `counters`: of each class. Raises `PromptError` when turns cannot be exact as asked.
    """
    if not any(one.has_turns for one in asked):
        return workload
    planned = [
        _planned(workload, kind, one, counter, load_think_time)
        for kind, (one, counter) in enumerate(zip(asked, counters, strict=True))
    ]
    sessions = SessionWorkload(
        recipe=workload.recipe,
        classes=tuple(kind for kind, _ in planned),
        model=workload.model,
        ignore_eos=workload.ignore_eos,
        continuous_usage=workload.continuous_usage,
        turns=tuple(turns for _, turns in planned),
    )
    for kind, prompts in _samples(sessions).items():
        check_conversations(counters[kind], endpoint=workload.recipe.endpoint, prompts=prompts)
    return sessions


def _planned(
    workload: SyntheticWorkload,
    kind: int,
    one: RequestsInTurns,
    counter: TokenCounter,
    load_think_time: ThinkTime | None,
) -> tuple[RequestClass, ClassTurns]:
    planned, endpoint = workload.classes[kind], workload.recipe.endpoint
    overhead = turn_overhead(counter, endpoint)
    turns, added = one.turn_lengths()
    added = added.at_least(overhead)
    if one.has_turns and added.shortest < overhead:
        raise PromptError(
            f"turn_input_tokens is {added.shortest}, but a later turn of the {endpoint} endpoint adds at least {overhead} "
            "tokens: those of the template around its message and the answer before it, and the first word.",
            f"set {path_of(one)}turn_input_tokens to {overhead} or more.",
        )
    system = None
    if one.has_turns and endpoint == "chat" and planned.prefixes.tokens:
        system = system_overhead(counter)
        alone = planned.recipe_of(workload.recipe)
        recipe = replace(alone, overhead_tokens=system)
        # A template may have a system message of its own, longer than ours, for prompts without any.
        least = max(made.least_tokens(planned.prefixes.tokens) for made in (alone, recipe))
        planned = _long_enough(planned, one, least)
        recipe.check_length(
            planned.lengths.shortest_input,
            prefix_tokens=planned.prefixes.tokens,
            key=f"{path_of(one)}input_tokens",
        )
    think_time = one.turn_think_time or load_think_time
    return planned, ClassTurns(turns, added, overhead, system, one.carried_answers == "synthetic", think_time)


def _long_enough(planned: RequestClass, one: RequestsInTurns, least: int) -> RequestClass:
    """Without a bound of its own a distribution begins where prompts can be told apart."""
    lengths = one.lengths()
    assert lengths is not None, "no file of lengths goes with turns"
    return replace(planned, lengths=Independent(lengths[0].at_least(least), lengths[1]))


def _samples(workload: SessionWorkload) -> dict[int, list[tuple[Sequence[Message], int]]]:
    """Conversations of every class with the tokens of their prompts, from levels and numbers of all sizes."""
    found: dict[int, list[tuple[Sequence[Message], int]]] = {}
    for number in range(64 * SAMPLES * len(workload.classes)):
        session = workload.session(number % 4095, number * 997 % MOST_SESSIONS, made_up=True)
        of_kind = found.setdefault(session.kind, [])
        if len(of_kind) < 2 * SAMPLES:
            prompts = list(prompts_of(session))
            of_kind += [prompts[min(1, len(prompts) - 1)], prompts[-1]]
        if len(found) == len(workload.classes) and all(len(one) == 2 * SAMPLES for one in found.values()):
            break
    return found


def prompts_of(session: Session) -> Iterator[tuple[Sequence[Message], int]]:
    """(messages, tokens) of each turn's prompt, of a session whose answers are made up."""
    messages: list[Mapping[str, str]] = []
    tokens = 0
    if session.system is not None:
        messages.append({"role": "system", "content": session.system.decode("ascii")})
    for turn in session.turns:
        messages.append({"role": "user", "content": turn.message.decode("ascii")})
        tokens += turn.input_tokens
        yield list(messages), tokens
        if turn.answer is not None:
            messages.append({"role": "assistant", "content": turn.answer.decode("ascii")})
            tokens += turn.output_tokens
