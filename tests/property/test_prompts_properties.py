"""Exactness and distinctness for any length, level, number, seed and size of pool."""

import string
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.prompts import LocalCounter, PromptRecipe, make_recipe
from loadgen.prompts.recipe import mixed
from server.simulator.tokenizer import folder

PAIRS = tuple("".join(pair) for pair in product(string.ascii_lowercase, repeat=2))
levels = st.integers(0, 4095)
numbers = st.integers(0, 2**32 - 1)
seeds = st.integers(-(2**70), 2**70)


@pytest.fixture(scope="module")
def counter() -> LocalCounter:
    return LocalCounter(folder())


@settings(max_examples=60, deadline=None)
@given(
    input_tokens=st.integers(40, 3_000),
    endpoint=st.sampled_from(["chat", "completions"]),
    level=levels,
    k=numbers,
    seed=seeds,
    prompt_set=st.integers(0, 2**20 - 1),
    prefix_tokens=st.integers(0, 12),
)
def test_any_prompt_of_any_length_is_exact(counter, input_tokens, endpoint, level, k, seed, prompt_set, prefix_tokens):
    recipe = make_recipe(counter, endpoint=endpoint, seed=seed, prompt_set=prompt_set)
    text = recipe.build(level, k, input_tokens, recipe.prefix(k, prefix_tokens) if prefix_tokens else None)
    counted = counter.count_chat(text) if endpoint == "chat" else counter.count_text(text)
    assert counted == input_tokens


@given(size=st.integers(64, len(PAIRS)), seed=seeds, one=st.tuples(levels, numbers), other=st.tuples(levels, numbers))
def test_two_prompts_have_the_same_tag_only_if_they_are_the_same_prompt(size, seed, one, other):
    recipe = PromptRecipe(PAIRS[:size], overhead_tokens=3, endpoint="chat", seed=seed)
    first, second = (recipe.build(*prompt, 20).split()[: 1 + recipe.tag_words] for prompt in (one, other))
    assert (first == second) == (one == other)


@given(st.integers(0, 2**64 - 1))
def test_mixing_can_be_undone_so_no_two_numbers_mix_to_the_same(number):
    assert unmixed(mixed(number)) == number


def unmixed(number: int) -> int:
    number = unshifted(number, 31)
    number = number * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
    number = unshifted(number, 27)
    number = number * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
    return unshifted(number, 30)


def unshifted(number: int, by: int) -> int:
    """The x with x ^ x >> by == number."""
    result = number
    for _ in range(64 // by):
        result = number ^ result >> by
    return result


@given(size=st.integers(64, len(PAIRS)))
def test_the_tag_is_just_long_enough_to_spell_64_bits(size):
    recipe = PromptRecipe(PAIRS[:size], overhead_tokens=3, endpoint="chat", seed=0)
    assert size ** (recipe.tag_words - 1) < 2**64 <= size**recipe.tag_words
