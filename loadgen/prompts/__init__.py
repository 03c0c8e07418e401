"""Prompts of an exact length as the server counts them.

The controller finds a `PromptRecipe` with the tokenizer (`make_recipe`) and sends it to the workers, which build
prompts from it without one. Importing this package loads no tokenizer.
"""

from loadgen.prompts.errors import PromptError
from loadgen.prompts.pool import check_exact, make_recipe
from loadgen.prompts.recipe import PromptRecipe
from loadgen.prompts.tokenizers import LocalCounter, ServerCounter, TokenCounter

__all__ = ["LocalCounter", "PromptError", "PromptRecipe", "ServerCounter", "TokenCounter", "check_exact", "make_recipe"]
