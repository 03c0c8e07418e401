"""Takes a token counter, gives the `PromptRecipe` whose prompts have exactly the wanted length, or says why it cannot.

A word that is one token after a space is found by counting many candidates in one text: n words that add n tokens are
all fit, since none can add less than one. Where they add more, the halves are counted.
"""

from __future__ import annotations

from collections.abc import Callable
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

SAMPLES = 8
"""Finished prompts that are counted whole before a recipe is handed out."""

Count = Callable[[str], int]


def make_recipe(
    counter: TokenCounter, *, endpoint: Endpoint, input_tokens: int, seed: int, run: int = 0
) -> PromptRecipe:
    """The recipe for prompts of exactly `input_tokens` tokens as `counter` counts them at `endpoint`.

    Asks the counter about 30 times when most common words are single tokens, a few hundred times otherwise. For
    another length of the same endpoint use `dataclasses.replace(recipe, input_tokens=…)`. Raises `PromptError` when the
    length is too short, when too few words are single tokens, or when a sample of prompts does not come out exact.
    """
    count: Count = counter.count_chat if endpoint == "chat" else counter.count_text
    overhead = count(OPENING)
    words = _one_token_words(count, overhead)
    if len(words) < MIN_WORDS:
        raise PromptError(
            f"Only {len(words)} of {len(_candidates())} common English words are a single token for "
            f"{counter.describe()}; a prompt of an exact length needs at least {MIN_WORDS}.",
            "check that workload.tokenizer names the tokenizer of the served model.",
        )
    recipe = PromptRecipe(tuple(words), overhead, input_tokens, endpoint, seed, run)
    for sample in range(SAMPLES):
        counted = count(recipe.build(level=sample, k=sample * 997))
        if counted != input_tokens:
            raise PromptError(
                f"A prompt made for {input_tokens} tokens has {counted} for {counter.describe()}: its words do not "
                "keep their length when they stand together.",
                "use another tokenizer for workload.tokenizer, or the server's own /tokenize by leaving it out.",
            )
    return recipe


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
