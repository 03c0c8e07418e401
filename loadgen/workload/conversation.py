"""One conversation as it goes on: takes what is to be said and what was answered, gives the request of each turn.

Pure but for its own progress: it knows no socket and no clock. The prompt of a turn is the whole conversation so far.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from loadgen.wire.request import BodyTemplate
from loadgen.workload.planned import PlannedRequest


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says once, and how long an answer it asks for. Texts are ASCII that needs no escaping in JSON."""

    message: bytes
    input_tokens: int
    """Of the first turn: its whole prompt. Of a later one: what it adds to the turn before it and that one's answer."""
    output_tokens: int
    answer: bytes | None
    """Made-up text of exactly `output_tokens`, carried into the next turn; None carries what the server answered."""
    think_s: float
    """How long the user takes before it, once the answer before is there."""


@dataclass(frozen=True, slots=True)
class Session:
    """All that is said in one conversation, the server's part aside."""

    level: int
    number: int
    """Within the level."""
    kind: int
    """Index of its class in the workload."""
    system: bytes | None
    """The system message."""
    beginning_tokens: int
    """Tokens at the beginning of the first prompt that other sessions have too."""
    turns: tuple[Turn, ...]


class Conversation:
    """Gives `next()` until `over`; in between it is told what was `answered` wherever it `wants_answer`."""

    def __init__(
        self,
        session: Session,
        template: BodyTemplate,
        *,
        is_chat: bool,
        first_k: int,
        counted: bool,
        forced: bool,
        streamed: bool,
    ) -> None:
        """`first_k`: number of the first turn's request. `counted`: whether prompts have the tokens that they were made
        for by the server's own count. `forced`, `streamed`: as `PlannedRequest`."""
        self.session = session
        self.k = first_k
        self._template = template
        self._is_chat = is_chat
        self._counted = counted
        self._forced = forced
        self._streamed = streamed
        self._asked = 0
        # Of a chat the messages so far, each with a comma behind it; else the text so far. Escaped for JSON.
        self._said = b"" if session.system is None else _message(b"system", session.system)
        self._prompt_tokens: int | None = None
        """Of the latest turn's prompt: as made, or as the server counted it where it gives the answers."""
        self._answer_tokens: int | None = None
        """Of the answer to it."""

    @property
    def turns(self) -> int:
        """How many turns it has."""
        return len(self.session.turns)

    @property
    def over(self) -> bool:
        """Whether every turn was asked for."""
        return self._asked == self.turns

    @property
    def think_s(self) -> float:
        """How long the user takes before the next turn; 0 before the first."""
        return self.session.turns[self._asked].think_s

    @property
    def wants_answer(self) -> bool:
        """Whether the next turn carries what the server answers to the latest one."""
        return not self.over and self.session.turns[self._asked - 1].answer is None

    def answered(self, text: str, input_tokens: int | None, output_tokens: int | None) -> None:
        """What the server answered to the latest turn, and the tokens of prompt and answer as it counted them."""
        self._add_answer(orjson.dumps(text)[1:-1], is_made_up=False)
        self._prompt_tokens, self._answer_tokens = input_tokens, output_tokens

    def next(self) -> PlannedRequest:
        """The request of the next turn."""
        turn = self.session.turns[self._asked]
        first, made_up = self._asked == 0, True
        prefix_tokens: int | None = self.session.beginning_tokens
        if not first:
            last = self.session.turns[self._asked - 1]
            made_up = last.answer is not None
            if last.answer is not None:
                self._add_answer(last.answer, is_made_up=True)
                self._answer_tokens = last.output_tokens
            prefix_tokens = self._prompt_tokens
            if not made_up:  # the server has made it, so that it has its keys and values too
                prefix_tokens = _sum(self._prompt_tokens, self._answer_tokens)
        made_for = turn.input_tokens if first else _sum(self._prompt_tokens, self._answer_tokens, turn.input_tokens)
        self._prompt_tokens = made_for
        self._add_message(turn.message)
        self._asked += 1
        return PlannedRequest(
            k=self.k + self._asked - 1,
            body=self._template.body_of(self._prompt(), turn.output_tokens),
            kind=self.session.kind,
            input_tokens=made_for if self._counted and made_up else None,
            output_tokens=turn.output_tokens,
            output_forced=self._forced,
            streamed=self._streamed,
            session=self.session.number,
            turn=self._asked,
            prefix_tokens=prefix_tokens,
            turn_input_tokens=turn.input_tokens if self._counted and not first else None,
        )

    def _add_message(self, text: bytes) -> None:
        if self._is_chat:
            self._said += _message(b"user", text)
        else:
            self._said += b" " * bool(self._said) + text

    def _add_answer(self, text: bytes, *, is_made_up: bool) -> None:
        if self._is_chat:
            self._said += _message(b"assistant", text)
        else:
            self._said += b" " * is_made_up + text  # what a model goes on with begins with its own space

    def _prompt(self) -> bytes:
        return b"[" + self._said[:-1] + b"]" if self._is_chat else b'"' + self._said + b'"'


def _message(role: bytes, text: bytes) -> bytes:
    return b'{"role":"' + role + b'","content":"' + text + b'"},'


def _sum(*tokens: int | None) -> int | None:
    known = [one for one in tokens if one is not None]
    return sum(known) if len(known) == len(tokens) else None
