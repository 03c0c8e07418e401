"""Prompts are exact, distinct and the same for everyone, counted with real tokenizers."""

import dataclasses
import itertools
import json
import pickle
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from loadgen.prompts import LocalCounter, PromptError, PromptRecipe, check_exact, make_recipe
from loadgen.prompts.pool import _candidates
from server.simulator.tokenizer import folder

KV_BLOCK_TOKENS = 16
POOL = tuple(_candidates()[:100])


@pytest.fixture(scope="module")
def simulator() -> LocalCounter:
    return LocalCounter(folder())


def count(counter, endpoint, text):
    return counter.count_chat(text) if endpoint == "chat" else counter.count_text(text)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("input_tokens", [32, 33, 63, 128, 511, 1024, 8192])
def test_a_prompt_has_exactly_the_tokens_that_were_asked_for(simulator, endpoint, input_tokens):
    recipe = make_recipe(simulator, endpoint=endpoint, seed=7)
    for level in (0, 3, 4095):
        for k in (0, 1, 12_345, 2**32 - 1):
            assert count(simulator, endpoint, recipe.build(level, k, input_tokens)) == input_tokens


def test_the_shortest_prompt_is_exact_and_one_token_less_is_refused_with_the_arithmetic(simulator):
    recipe = make_recipe(simulator, endpoint="chat", seed=7)
    least = recipe.least_tokens()
    assert least == recipe.overhead_tokens + recipe.tag_words
    assert {simulator.count_chat(recipe.build(0, k, least)) for k in range(50)} == {least}
    assert len({recipe.build(0, k, least) for k in range(1_000)}) == 1_000
    for refused in (recipe.check_length, lambda tokens: recipe.build(0, 0, tokens)):
        with pytest.raises(PromptError) as refusal:
            refused(least - 1)
        text = str(refusal.value)
        assert f"input_tokens is {least - 1}" in text
        assert f"{recipe.overhead_tokens} for the template" in text
        assert text.splitlines()[-1].startswith(f"hint: set workload.input_tokens to {least} or more")


def test_a_shared_prefix_is_in_the_arithmetic_of_the_shortest_prompt(simulator):
    recipe = make_recipe(simulator, endpoint="chat", seed=7)
    prefix = recipe.prefix(0, 100)
    least = recipe.least_tokens(100)
    assert least == recipe.least_tokens() + 99
    assert simulator.count_chat(recipe.build(0, 0, least, prefix)) == least
    with pytest.raises(PromptError, match="99 for the rest of the shared prefix"):
        recipe.build(0, 0, least - 1, prefix)


@pytest.mark.parametrize("tokens", [1, 2, 16, 500])
def test_prompts_share_exactly_the_tokens_of_their_prefix(simulator, tokens):
    tokenizer = AutoTokenizer.from_pretrained(folder())
    recipe = make_recipe(simulator, endpoint="completions", seed=7)
    prefix = recipe.prefix(3, tokens)
    ids = [tokenizer(recipe.build(0, k, 600, prefix))["input_ids"] for k in range(20)]
    assert {len(prompt) for prompt in ids} == {600}
    begin_of_text = 1
    assert len({tuple(prompt[: begin_of_text + tokens]) for prompt in ids}) == 1
    assert len({tuple(prompt[: begin_of_text + tokens + 1]) for prompt in ids}) > 15


def test_another_prefix_seed_or_set_has_other_words():
    recipe = PromptRecipe(POOL, overhead_tokens=4, endpoint="chat", seed=7)
    others = (dataclasses.replace(recipe, seed=8), dataclasses.replace(recipe, prompt_set=1))
    assert recipe.prefix(0, 50) == recipe.prefix(0, 50)
    assert len({recipe.prefix(0, 50), recipe.prefix(1, 50), *(other.prefix(0, 50) for other in others)}) == 4


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_no_two_prompts_share_the_first_kv_block(simulator, endpoint):
    tokenizer = AutoTokenizer.from_pretrained(folder())
    recipe = make_recipe(simulator, endpoint=endpoint, seed=7)
    texts = [recipe.build(level, k, 64) for level in range(3) for k in range(1_000)]
    if endpoint == "chat":
        chats = [[{"role": "user", "content": text}] for text in texts]
        ids = tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=True)["input_ids"]
    else:
        ids = tokenizer(texts)["input_ids"]
    assert {len(prompt) for prompt in ids} == {64}
    assert len({tuple(prompt[:KV_BLOCK_TOKENS]) for prompt in ids}) == 3_000


def test_completions_count_one_beginning_of_text_and_not_two(simulator):
    tokenizer = AutoTokenizer.from_pretrained(folder())
    recipe = make_recipe(simulator, endpoint="completions", seed=7)
    ids = tokenizer(recipe.build(0, 0, 40))["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == 1
    assert len(ids) == 40


def test_same_numbers_give_the_same_prompts_on_every_machine_and_version():
    pool = tuple(a + b for a in "bcdfghjk" for b in "aeioulrsty")
    recipe = PromptRecipe(pool, overhead_tokens=4, endpoint="chat", seed=7, prompt_set=1)
    assert recipe.build(2, 5, 24) == "the fo ky je bo br ci do di br bt ba jr hy js hi jr ji ja ku jo"


def test_a_recipe_that_travelled_as_json_builds_the_same_prompts(simulator):
    recipe = make_recipe(simulator, endpoint="chat", seed=7, prompt_set=3)
    arrived = PromptRecipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert arrived == recipe
    whole = [recipe.build(1, k, 200) for k in range(30)]
    for workers in (1, 2, 7):
        shares = {k: arrived.build(1, k, 200) for worker in range(workers) for k in range(worker, 30, workers)}
        assert [shares[k] for k in range(30)] == whole


@pytest.mark.parametrize("changed", [{"prompt_set": 1}, {"seed": 8}])
def test_another_set_or_seed_shares_no_prompt(changed):
    recipe = PromptRecipe(POOL, overhead_tokens=4, endpoint="chat", seed=7)
    other = dataclasses.replace(recipe, **changed)
    tag_end = 1 + recipe.tag_words
    tags = {tuple(r.build(0, k, 40).split()[:tag_end]) for r in (recipe, other) for k in range(2_000)}
    assert len(tags) == 4_000


def test_neighbours_differ_in_their_second_word_nearly_always():
    recipe = PromptRecipe(POOL, overhead_tokens=4, endpoint="chat", seed=7)
    second = [recipe.build(0, k, 40).split()[1] for k in range(1_000)]
    alike = sum(one == other for one, other in itertools.pairwise(second))
    assert alike < 40  # about 10 by chance


def test_every_word_of_the_pool_comes_up_about_as_often():
    recipe = PromptRecipe(POOL, overhead_tokens=4, endpoint="chat", seed=7)
    words = [word for k in range(20) for word in recipe.build(0, k, 5_014).split()[1:]]
    assert set(words) == set(POOL)
    assert max(words.count(word) for word in POOL) < 1.3 * len(words) / len(POOL)


def test_bytes_are_the_text_and_need_no_escaping_in_json(simulator):
    recipe = make_recipe(simulator, endpoint="chat", seed=7)
    text = recipe.build(0, 9, 300)
    assert recipe.build_bytes(0, 9, 300) == text.encode()
    assert json.dumps(text) == f'"{text}"'
    assert text[0].isalpha()
    assert text[-1].isalpha()


@pytest.mark.parametrize(("level", "k"), [(-1, 0), (4096, 0), (0, -1), (0, 2**32)])
def test_a_number_that_the_tag_cannot_spell_is_refused(level, k):
    recipe = PromptRecipe(POOL, overhead_tokens=4, endpoint="chat", seed=7)
    with pytest.raises(ValueError, match="no prompt has level"):
        recipe.build(level, k, 40)


@pytest.mark.parametrize(
    ("words", "prompt_set", "why"),
    [
        (POOL[:63], 0, "64 distinct"),
        ((*POOL, POOL[0]), 0, "distinct"),
        ((*POOL, "a b"), 0, "letters"),
        (POOL, -1, "prompt_set"),
    ],
)
def test_a_recipe_that_cannot_keep_its_promise_is_refused(words, prompt_set, why):
    with pytest.raises(ValueError, match=why):
        PromptRecipe(words, overhead_tokens=4, endpoint="chat", seed=7, prompt_set=prompt_set)


def save(tokenizer: Tokenizer, path: Path, **settings) -> LocalCounter:
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings).save_pretrained(path)
    return LocalCounter(path)


@pytest.mark.parametrize("prepend", ["first", "always"])
def test_a_sentencepiece_tokenizer_with_a_dummy_prefix_is_exact(tmp_path, prepend):
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend)
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator([" ".join(_candidates()[:800])] * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    template = (
        "{{ bos_token }}{% for m in messages %}[INST] {{ m['content'] | trim }} [/INST]{% endfor %}"
        "{% if add_generation_prompt %}{{ ' ' }}{% endif %}"
    )
    counter = save(tokenizer, tmp_path, bos_token="<s>", unk_token="<unk>", chat_template=template)
    for endpoint in ("chat", "completions"):
        recipe = make_recipe(counter, endpoint=endpoint, seed=1)
        assert len(recipe.words) < 800  # it had to leave out words that fall apart
        assert {count(counter, endpoint, recipe.build(2, k, 150)) for k in range(100, 150)} == {150}


def test_a_template_with_a_default_system_prompt_is_counted_in(tmp_path):
    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    template = (
        "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nYou are a helpful "
        "assistant.<|im_end|>\n{% endif %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    counter = save(tokenizer, tmp_path, bos_token="<|startoftext|>", chat_template=template)
    recipe = make_recipe(counter, endpoint="chat", seed=1)
    assert {counter.count_chat(recipe.build(0, k, 90)) for k in range(50)} == {90}
    assert recipe.overhead_tokens > 15


def test_a_tokenizer_of_letters_is_refused(tmp_path):
    letters = {chr(code): code - 97 for code in range(97, 123)} | {" ": 26, "?": 27}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    counter = save(tokenizer, tmp_path, bos_token="<s>", unk_token="?")
    with pytest.raises(PromptError, match=r"Only 0 of \d+ common English words are a single token"):
        make_recipe(counter, endpoint="completions", seed=1)


class MergingCounter:
    """Words joined by spaces, one token each, but some pairs count as one: what a tokenizer across words would do."""

    def __init__(self) -> None:
        self.calls = 0

    def count_text(self, text: str) -> int:
        self.calls += 1
        words = text.split()
        return len(words) - sum(ord(a[0]) + ord(b[0]) == 210 for a, b in zip(words, words[3:], strict=False))

    def count_chat(self, content: str) -> int:
        return self.count_text(content)

    def describe(self) -> str:
        return "a counter that merges words"


def test_a_tokenizer_that_merges_words_is_refused_and_never_approximated():
    with pytest.raises(PromptError) as refusal:
        recipe = make_recipe(MergingCounter(), endpoint="completions", seed=1)
        check_exact(
            MergingCounter(), endpoint="completions", prompts=[(recipe.build(0, k, 500), 500) for k in range(8)]
        )
    assert "a counter that merges words" in str(refusal.value)


def test_finding_the_pool_asks_the_tokenizer_a_few_dozen_times():
    class Words(MergingCounter):
        def count_text(self, text: str) -> int:
            self.calls += 1
            return len(text.split())

    counter = Words()
    make_recipe(counter, endpoint="completions", seed=1)
    assert counter.calls == 1 + 1024 // 64


def test_a_refusal_keeps_its_hint_between_processes():
    refusal = pickle.loads(pickle.dumps(PromptError("It does not fit.", "make it longer.")))
    assert str(refusal) == "It does not fit.\nhint: make it longer."
