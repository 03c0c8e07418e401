"""The workload of conversations: takes recipe, classes and turns, gives session number n of a level; knows no pace.

Everything that the user says in a session (how many turns, their lengths, words and pauses) is a function of the seed,
the level and the session's number. What the assistant said is either made up too, or what the server really answered.
A request's number is `session << TURN_BITS | turn - 1`, so that requests of all sessions of a level have their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from loadgen.arrivals.think_time import ThinkTime
from loadgen.prompts.recipe import K_BITS, PromptRecipe
from loadgen.workload.conversation import Conversation, Session, Turn
from loadgen.workload.draws import Draws
from loadgen.workload.lengths import Distribution, distribution, expected
from loadgen.workload.synthetic import SyntheticWorkload

TURN_BITS = 10
MOST_TURNS = 1 << TURN_BITS
MOST_SESSIONS = 1 << (K_BITS - TURN_BITS)
"""Of one level."""
_FEWEST_AHEAD = 16


@dataclass(frozen=True, slots=True)
class ClassTurns:
    """The turns of one class's sessions."""

    turns: Distribution
    input_tokens: Distribution
    """What a later turn adds to the turn before and its answer: the message, and the template around both."""
    overhead_tokens: int
    """Of that, tokens beside the message's words; see `loadgen.prompts.conversation.turn_overhead`."""
    system_overhead_tokens: int | None
    """Tokens of the first prompt beside its words where the shared beginning is a system message; None where it stands
    in the user's."""
    synthetic_answers: bool
    """Whether made-up text stands where the assistant spoke, in place of what the server answered."""
    think_time: ThinkTime | None
    """Before each later turn."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "turns": self.turns.to_dict(),
            "input_tokens": self.input_tokens.to_dict(),
            "overhead_tokens": self.overhead_tokens,
            "system_overhead_tokens": self.system_overhead_tokens,
            "synthetic_answers": self.synthetic_answers,
            "think_time": None if self.think_time is None else self.think_time.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ClassTurns:
        return cls(
            turns=distribution(data["turns"]),
            input_tokens=distribution(data["input_tokens"]),
            overhead_tokens=data["overhead_tokens"],
            system_overhead_tokens=data["system_overhead_tokens"],
            synthetic_answers=data["synthetic_answers"],
            think_time=None if data["think_time"] is None else ThinkTime.from_dict(data["think_time"]),
        )


@dataclass(frozen=True)
class SessionWorkload(SyntheticWorkload):
    """Conversations, in one class or several; a class's share is its share of the sessions."""

    turns: tuple[ClassTurns, ...] = field(kw_only=True)
    """Of each class."""

    def conversation(self, level: int, number: int) -> Conversation:
        """Session `number` of `level`, ready to begin. Called in the hub and on the loop at the same time."""
        session = self.session(level, number)
        one = self.classes[session.kind]
        return Conversation(
            session,
            self._templates[session.kind],
            is_chat=self.recipe.endpoint == "chat",
            first_k=number << TURN_BITS,
            counted=one.counted,
            forced=self._forces(one),
            streamed=one.stream,
        )

    def sessions_of(self, requests: int) -> int:
        """How many conversations about so many requests make."""
        mean = sum(one.share * expected(turns.turns) for one, turns in zip(self.classes, self.turns, strict=True))
        return max(_FEWEST_AHEAD, math.ceil(requests / mean))

    def session(self, level: int, number: int, *, made_up: bool = False) -> Session:
        """What is said in session `number` of `level`; with `made_up` the answers too, whoever is to give them.

        Raises ValueError beyond the last number.
        """
        if not 0 <= number < MOST_SESSIONS:
            raise ValueError(f"a level has no session {number}: the numbers are below {MOST_SESSIONS}")
        kind, text, input_tokens, output_tokens = self._prompt(level, number)
        one, turns = self.classes[kind], self.turns[kind]
        recipe, draws = one.recipe_of(self.recipe), self._turn_draws
        system, beginning = None, one.prefixes.tokens
        if beginning and turns.system_overhead_tokens is not None:
            system = self._prefix(kind, one, self._draws["prefix"].at(level, number))
            text = self._opening_recipe(kind, recipe).build_bytes(level, number, input_tokens - (beginning - 1))
        count = turns.turns.at(draws["turns"].at(level, number))
        answers_made = made_up or turns.synthetic_answers

        def answer(turn: int, tokens: int) -> bytes | None:
            if not answers_made or turn == count:
                return None
            return recipe.text(f"answer {level} {number} {turn}", tokens - 1)

        found = [Turn(text, input_tokens, output_tokens, answer(1, output_tokens), 0.0)]
        for turn in range(2, count + 1):
            at = number << TURN_BITS | turn - 1
            added = turns.input_tokens.at(draws["turn_input_tokens"].at(level, at))
            _, tokens = one.lengths.at(0.0, draws["turn_output_tokens"].at(level, at))
            message = recipe.text(f"turn {level} {number} {turn}", added - turns.overhead_tokens)
            think_s = 0.0 if turns.think_time is None else turns.think_time.at(draws["think_time"].at(level, at))
            found.append(Turn(message, added, tokens, answer(turn, tokens), think_s))
        return Session(level, number, kind, system, beginning + one.shared_template_tokens, tuple(found))

    def with_template_tokens(self, kind: int, more: int) -> Self:
        made, turns = super().with_template_tokens(kind, more), self.turns[kind]
        if turns.system_overhead_tokens is None:
            return made
        longer = replace(turns, system_overhead_tokens=turns.system_overhead_tokens + more)
        return replace(made, turns=(*self.turns[:kind], longer, *self.turns[kind + 1 :]))

    def _opening_recipe(self, kind: int, recipe: PromptRecipe) -> PromptRecipe:
        """The class's recipe for a user's first message behind a system message."""
        made = self._opening_recipes.get(kind)
        if made is None:
            overhead = self.turns[kind].system_overhead_tokens
            assert overhead is not None
            made = self._opening_recipes[kind] = replace(recipe, overhead_tokens=overhead)
        return made

    @cached_property
    def _opening_recipes(self) -> dict[int, PromptRecipe]:
        return {}

    @cached_property
    def _turn_draws(self) -> Mapping[str, Draws]:
        purposes = ("turns", "turn_input_tokens", "turn_output_tokens", "think_time")
        return {purpose: Draws(self.recipe.seed, purpose) for purpose in purposes}

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "turns": [one.to_dict() for one in self.turns]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SessionWorkload:
        """The workload that `to_dict` described."""
        plain = SyntheticWorkload.from_dict(data)
        return cls(
            recipe=plain.recipe,
            classes=plain.classes,
            model=plain.model,
            ignore_eos=plain.ignore_eos,
            continuous_usage=plain.continuous_usage,
            turns=tuple(ClassTurns.from_dict(one) for one in data["turns"]),
        )
