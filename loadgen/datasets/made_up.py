"""Prompts for rows that give lengths only: takes a recipe and a row, gives a text of as many tokens, sharing what it should.

Without block ids no two prompts are alike. With them, a prompt is the words of its blocks: block i holds the tokens
i · block_tokens up to the next multiple, the chat template counted before the text. What a template puts behind the text
shifts the blocks by as many tokens, so two prompts with m equal ids share m · block_tokens less those.
"""

from __future__ import annotations

from functools import lru_cache

from loadgen.datasets.rows import Row
from loadgen.prompts.recipe import OPENING, PromptRecipe

_WHOLE_BLOCKS_KEPT = 2048
_AFTER_OPENING = len(OPENING) + 1


class MadeUpPrompts:
    """Prompts of one run."""

    def __init__(self, recipe: PromptRecipe, block_tokens: int) -> None:
        self._recipe = recipe
        self._block_tokens = block_tokens
        self._least_distinct = recipe.least_tokens()
        self._block = lru_cache(_WHOLE_BLOCKS_KEPT)(self._made_block)

    @property
    def least_tokens(self) -> int:
        """Tokens of the shortest prompt there is: the chat template and one word."""
        return self._recipe.overhead_tokens

    def build(self, row: Row, *, level: int, k: int, passes: int) -> tuple[bytes, int]:
        """(text, its tokens) of request `k`, whose row has come `passes` times before in the level.

        As many tokens as the row asks for, or `least_tokens` where that is more. Equal ids are equal tokens within a
        level and a pass; another pass is another trace of the same kind, or everything in it would be a repetition.
        """
        tokens = max(row.input_tokens or 0, self.least_tokens)
        words = tokens - self.least_tokens
        if not row.hash_ids:
            return b" ".join([OPENING.encode(), *self._distinct(level, k, words)]), tokens
        parts: list[bytes] = [OPENING.encode()]
        for i, block in enumerate(row.hash_ids):
            first = i * self._block_tokens
            end = min(first + self._block_tokens, tokens) - first
            begin = min(max(0, self.least_tokens - first), end)
            parts += self._block(level, passes, block)[begin:end]
        # Blocks without an id are nobody else's.
        parts += self._distinct(level, k, words - (len(parts) - 1))
        return b" ".join(parts), tokens

    def _distinct(self, level: int, k: int, words: int) -> list[bytes]:
        """So many words of prompt `k`. Too few to be told from all others where the row asks for so few."""
        if words == 0:
            return []
        whole = max(self._least_distinct, self.least_tokens + words)
        return self._recipe.build_bytes(level, k, whole)[_AFTER_OPENING:].split(b" ")[:words]

    def _made_block(self, level: int, passes: int, block: int) -> list[bytes]:
        number = (level << 32 | passes) << 64 | block
        return self._recipe.prefix(number, self._block_tokens + 1)[_AFTER_OPENING:].split(b" ")
