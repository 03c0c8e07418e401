"""What the turns of a conversation cost beside their words: takes a token counter, gives constants; builds no prompt.

Chat templates put fixed tokens around a message, so what a turn adds is found from three short conversations. That it
is so is not taken for granted: whole conversations are counted before a run, by `check_conversations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from loadgen.prompts.errors import PromptError
from loadgen.prompts.recipe import OPENING
from loadgen.prompts.tokenizers import Message, TokenCounter

if TYPE_CHECKING:
    from loadgen.wire.exchange import Endpoint


def count_conversation(counter: TokenCounter, endpoint: Endpoint, messages: Sequence[Message]) -> int:
    """Prompt tokens of a conversation; without a chat template it is the messages' texts with spaces between them."""
    if endpoint == "chat":
        return counter.count_messages(messages)
    return counter.count_text(" ".join(message["content"] for message in messages))


def turn_overhead(counter: TokenCounter, endpoint: Endpoint) -> int:
    """Tokens that a turn after the first adds beside the words of its message and of the answer before it.

    Message and answer both begin with `OPENING`. The message's is part of the overhead; the answer's is a token of the
    answer, so that an answer of n tokens is `OPENING` and n − 1 words.
    """
    asked: Message = {"role": "user", "content": OPENING}
    answered: Message = {"role": "assistant", "content": OPENING}
    one = count_conversation(counter, endpoint, [asked])
    return count_conversation(counter, endpoint, [asked, answered, asked]) - one - 1


def system_overhead(counter: TokenCounter) -> int:
    """Tokens of a chat's first prompt beside its words, when a system message stands before the user's.

    Raises `PromptError` when the chat template takes no system message.
    """
    return counter.count_messages([{"role": "system", "content": OPENING}, {"role": "user", "content": OPENING}])


def check_conversations(
    counter: TokenCounter, *, endpoint: Endpoint, prompts: Iterable[tuple[Sequence[Message], int]]
) -> None:
    """Counts whole conversations, each with the tokens that it was made for; raises `PromptError` at one that is not
    exact."""
    for messages, input_tokens in prompts:
        counted = count_conversation(counter, endpoint, messages)
        if counted != input_tokens:
            turns = sum(message["role"] == "user" for message in messages)
            raise PromptError(
                f"A conversation of {turns} turns made for {input_tokens} tokens has {counted} for {counter.describe()}: "
                "the chat template does not treat every turn alike.",
                "use target.endpoint: completions, which has no chat template, or a model whose template keeps earlier "
                "turns as they are.",
            )
