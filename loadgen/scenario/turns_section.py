"""The part of a scenario's workload that makes conversations of requests: how many turns, what each adds, and pauses."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from loadgen.scenario.load_section import Load
from loadgen.scenario.load_values import ThinkTimeValue
from loadgen.scenario.quantities import Kind
from loadgen.scenario.requests_section import Lengths, Requests, as_distribution
from loadgen.workload.lengths import Distribution

MOST_TURNS = 1024
TURN_KEYS = ("turns", "turn_input_tokens", "turn_think_time", "carried_answers")


class RequestsInTurns(Requests):
    """Requests that are turns of conversations, where there is more than one turn."""

    turns: Lengths = Field(
        1,
        description="Turns of a conversation, each of which carries all that was said before: a number, or a distribution; "
        "1 is requests that stand alone.",
    )
    turn_input_tokens: Lengths = Field(
        64,
        description="Prompt tokens that each later turn adds to the turn before it and its answer: the user's message and "
        "the template around both; a number, or a distribution.",
    )
    turn_think_time: ThinkTimeValue | None = Field(
        None,
        description="How long a user waits after an answer before the next turn, as load.think_time; null is that one.",
    )
    carried_answers: Annotated[Literal["server", "synthetic"], Kind("server|synthetic")] = Field(
        "server",
        description="What later turns carry where the assistant spoke: the server's own answers, or made-up text of exactly "
        "output_tokens.",
    )

    @model_validator(mode="after")
    def _turns_are_turns(self) -> Self:
        turns = as_distribution(self.turns)
        if turns.longest > MOST_TURNS:
            raise ValueError(
                f"{self._path('turns')} is up to {turns.longest}, and a conversation has at most {MOST_TURNS} turns."
            )
        given = [key for key in TURN_KEYS if key != "turns" and key in self.model_fields_set]
        alone = [key for key in given if getattr(self, key) != type(self).model_fields[key].default]
        if not self.has_turns and alone:
            raise ValueError(
                f"{self._path('turns')} is 1, so {self._path(alone[0])} has no effect: give the number of turns."
            )
        if self.has_turns and self.lengths_file is not None:
            raise ValueError(
                f"{self._path('lengths_file')} has single requests: with {self._path('turns')}, give input_tokens, "
                "turn_input_tokens and output_tokens."
            )
        return self

    @property
    def has_turns(self) -> bool:
        """Whether any conversation has more than one turn."""
        return as_distribution(self.turns).longest > 1

    def turn_lengths(self) -> tuple[Distribution, Distribution]:
        """(turns, tokens that a later turn adds)."""
        return as_distribution(self.turns), as_distribution(self.turn_input_tokens)

    def longest(self, path: str) -> tuple[str, int] | None:
        """(the arithmetic of the longest request, its tokens with the answer); None where a file has the lengths.

        `path` stands before the names of keys."""
        lengths = self.lengths()
        if lengths is None:
            return None
        input_tokens, output_tokens = lengths[0].longest, lengths[1].longest
        turns, added = (one.longest for one in self.turn_lengths())
        if turns == 1:
            keys = f"{path}input_tokens + {path}output_tokens"
            return f"{keys} is up to {input_tokens} + {output_tokens}", input_tokens + output_tokens
        needed = input_tokens + (turns - 1) * (output_tokens + added) + output_tokens
        arithmetic = (
            f"{path}turns is up to {turns}, so input_tokens + {turns - 1} × (output_tokens + turn_input_tokens) + "
            f"output_tokens is up to {input_tokens} + {turns - 1} × ({output_tokens} + {added}) + {output_tokens}"
        )
        return arithmetic, needed

    def in_words(self) -> tuple[str, str]:
        input_words, output_words = super().in_words()
        if not self.has_turns:
            return input_words, output_words
        turns, added = self.turn_lengths()
        answer = "the server's answer" if self.carried_answers == "server" else "a made-up answer"
        return f"{input_words}; turns {turns}, each later one adding {answer} and {added} tokens", output_words


def refuse_conversations(load: Load) -> None:
    """Raises ValueError for a load in which conversations make no sense.

    In an open loop they arrive by the schedule, and their later turns follow each from the answer before it: a partly
    open system (Schroeder, Wierman & Harchol-Balter, "Open Versus Closed: A Cautionary Tale", NSDI 2006).
    """
    if not load.open_loop:
        return
    if load.max_in_flight is not None:
        raise ValueError(
            "With conversations (workload.turns), load.max_in_flight has no meaning: a turn cannot be kept from a user who "
            "is in the middle of one."
        )
    if load.given_warmup_s is None:
        raise ValueError(
            "With conversations (workload.turns) in an open loop, give load.warmup: nobody can see when there are as many "
            "of them as there will be. It should be as long as one lasts."
        )
