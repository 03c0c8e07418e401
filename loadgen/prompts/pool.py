"""Takes a token counter, gives the `PromptRecipe` whose prompts have exactly the wanted lengths, or says why it cannot.

A word that is one token after a space is found by counting many candidates in one text: n words that add n tokens are
all fit, since none can add less than one. Where they add more, the halves are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.prompts.errors import PromptError
from loadgen.prompts.recipe import MIN_WORDS, OPENING, PromptRecipe
from loadgen.prompts.tokenizers import TokenCounter

if TYPE_CHECKING:
    from loadgen.wire.exchange import Endpoint

POOL_WORDS = 1024
"""Enough for a tag of seven words; more would only cost more counting."""

GROUP_WORDS = 64
"""Candidates counted in one text."""

Count = Callable[[str], int]


def make_recipe(counter: TokenCounter, *, endpoint: Endpoint, seed: int, prompt_set: int = 0) -> PromptRecipe:
    """The recipe for prompts of any length as `counter` counts them at `endpoint`.

    Asks the counter about 20 times when most common words are single tokens, a few hundred times otherwise. Raises
    `PromptError` when too few words are single tokens.
    """
    count = _count_of(counter, endpoint)
    overhead = count(OPENING)
    words = _one_token_words(count, overhead)
    if len(words) < MIN_WORDS:
        raise PromptError(
            f"Only {len(words)} of {len(_candidates())} common English words are a single token for "
            f"{counter.describe()}; a prompt of an exact length needs at least {MIN_WORDS}.",
            "check that workload.tokenizer names the tokenizer of the served model.",
        )
    return PromptRecipe(tuple(words), overhead, endpoint, seed, prompt_set)


def check_exact(counter: TokenCounter, *, endpoint: Endpoint, prompts: Iterable[tuple[str, int]]) -> None:
    """Counts finished prompts, each with the tokens that it was made for; raises `PromptError` at one that is not exact."""
    count = _count_of(counter, endpoint)
    for text, input_tokens in prompts:
        if (counted := count(text)) != input_tokens:
            raise PromptError(
                f"A prompt made for {input_tokens} tokens has {counted} for {counter.describe()}: its words do not "
                "keep their length when they stand together.",
                "use another tokenizer for workload.tokenizer, or the server's own /tokenize by leaving it out.",
            )


def _count_of(counter: TokenCounter, endpoint: Endpoint) -> Count:
    return counter.count_chat if endpoint == "chat" else counter.count_text


def _candidates() -> list[str]:
    """Common English words of three to eight letters, commonest first."""
    words = Path(__file__).with_name("words.txt").read_text(encoding="ascii").split()
    return [word for word in words if word != OPENING]


def _one_token_words(count: Count, overhead: int) -> list[str]:
    candidates = _candidates()
    fit: list[str] = []
    for first in range(0, len(candidates), GROUP_WORDS):
        fit += _fit(candidates[first : first + GROUP_WORDS], count, overhead)
        if len(fit) >= POOL_WORDS:
            break
    return fit[:POOL_WORDS]


def _fit(group: list[str], count: Count, overhead: int) -> list[str]:
    """Those of `group` that add exactly one token after a space, in their order."""
    if count(f"{OPENING} {' '.join(group)}") == overhead + len(group):
        return group
    if len(group) == 1:
        return []
    middle = len(group) // 2
    return _fit(group[:middle], count, overhead) + _fit(group[middle:], count, overhead)
