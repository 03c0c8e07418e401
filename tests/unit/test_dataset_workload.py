"""Requests out of files: the target's own settings are enforced, lengths are the row's, equal blocks are equal tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen.datasets.made_up import MadeUpPrompts
from loadgen.datasets.rows import Row
from loadgen.datasets.survey import Source, survey
from loadgen.datasets.workload import DatasetWorkload
from loadgen.prompts.recipe import PromptRecipe
from loadgen.workload.carried import carried, to_carry
from loadgen.workload.lengths import Fixed

SAMPLES = Path(__file__).parents[1] / "samples" / "datasets"
OVERHEAD = 20
WORDS = tuple(a + b + c for a in "abcdefgh" for b in "aeiou" for c in "bdfg")
RECIPE = PromptRecipe(WORDS, OVERHEAD, "chat", seed=7)

Make = Callable[..., DatasetWorkload]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(sample: str, **options: Any) -> DatasetWorkload:
        source = Source(str(SAMPLES / sample))
        found = survey(source, tmp_path)
        defaults: dict[str, Any] = {
            "source": source,
            "folder": str(tmp_path),
            "digest": found.digest,
            "in_file_order": True,
            "seed": 7,
            "endpoint": "chat",
            "model": "served",
            "output_tokens": Fixed(33),
            "ignore_eos": True,
            "continuous_usage": True,
            "extra_body": {},
            "recipe": RECIPE,
        }
        return DatasetWorkload(**defaults | options)

    return made


def body_of(workload: DatasetWorkload, k: int, level: int = 0) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(workload.build(level, k).body)
    return body


def words_of(workload: DatasetWorkload, k: int, level: int = 0) -> list[str]:
    content: str = body_of(workload, k, level)["messages"][0]["content"]
    return content.split(" ")


def test_a_prompt_of_a_file_becomes_the_body_that_the_scenario_asks_for(make: Make) -> None:
    planned = make("prompts.jsonl").build(0, 0)
    assert orjson.loads(planned.body) == {
        "model": "served",
        "messages": [{"role": "user", "content": "Write a limerick about rain."}],
        "max_tokens": 24,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "ignore_eos": True,
        "min_tokens": 24,
    }
    assert (planned.k, planned.input_tokens, planned.output_tokens, planned.output_forced) == (0, None, 24, True)


def test_an_answer_whose_length_the_row_leaves_open_has_the_scenarios(make: Make) -> None:
    planned = make("prompts.jsonl", ignore_eos=False).build(0, 1)
    body = orjson.loads(planned.body)
    assert (body["max_tokens"], planned.output_tokens, planned.output_forced) == (33, 33, False)
    assert "ignore_eos" not in body and "min_tokens" not in body


def test_completions_get_the_text_as_their_prompt(make: Make) -> None:
    workload = make("sharegpt.json", endpoint="completions", continuous_usage=False)
    body = body_of(workload, 0)
    assert body["prompt"] == "What is a monsoon?" and "messages" not in body
    assert body["stream_options"] == {"include_usage": True}


def test_what_the_system_says_comes_first(make: Make) -> None:
    assert body_of(make("sharegpt.json"), 3)["messages"] == [
        {"role": "system", "content": "You translate."},
        {"role": "user", "content": "Translate ‘good morning’ into Finnish."},
    ]
    workload = make("sharegpt.json", endpoint="completions")
    assert body_of(workload, 3)["prompt"] == "You translate.\n\nTranslate ‘good morning’ into Finnish."


@pytest.mark.parametrize("sample", ["bodies.jsonl", "openai-batch.jsonl"])
def test_a_whole_body_keeps_what_is_its_own_and_gets_the_targets_model_and_stream(sample: str, make: Make) -> None:
    planned = make(sample, extra_body={"top_p": 0.5}).build(0, 1)
    body = orjson.loads(planned.body)
    assert body["model"] == "served" and body["stream"] is True and body["stream_options"]["include_usage"] is True
    assert body["top_p"] == 0.5
    assert body["messages"][-1]["content"] in ("Question 1: why?", "Summarise chapter 1.")
    assert body.get("temperature", 0.2) == 0.2
    assert planned.output_tokens == body["max_tokens"] == (13 if sample == "bodies.jsonl" else 16)


def test_the_longest_length_of_a_whole_body_is_not_forced_upon_the_answer(make: Make) -> None:
    workload = make("bodies.jsonl", ignore_eos=True)
    assert workload.build(0, 0).output_forced is False and "ignore_eos" not in body_of(workload, 0)


def test_a_whole_body_that_forces_its_length_is_taken_at_its_word(make: Make) -> None:
    workload = make("bodies.jsonl", ignore_eos=False)
    planned, body = workload.build(0, 4), body_of(workload, 4)
    assert planned.output_forced and planned.output_tokens == body["max_completion_tokens"] == body["min_tokens"] == 9
    assert "max_tokens" not in body


def test_a_probe_asks_for_few_tokens_whatever_the_row_says(make: Make) -> None:
    for sample in ("prompts.jsonl", "bodies.jsonl", "mooncake.jsonl"):
        planned = make(sample).build(0, 0, most_output_tokens=4)
        assert planned.output_tokens == 4 and orjson.loads(planned.body)["max_tokens"] == 4


def test_the_prompts_of_a_trace_have_its_lengths(make: Make) -> None:
    for sample, lengths in (
        ("azure.csv", [(374, 44), (396, 19), (879, 55), (91, 16), (381, 30)]),
        ("burstgpt.csv", [(472, 18), (417, 50), (20, 22), (560, 31)]),  # 12 tokens: the template alone has 20
        ("mooncake.jsonl", [(1100, 12), (1300, 8), (700, 16), (600, 10), (1100, 9), (300, 20)]),
    ):
        workload = make(sample)
        for k, (input_tokens, output_tokens) in enumerate(lengths):
            planned = workload.build(0, k)
            assert (planned.input_tokens, planned.output_tokens) == (input_tokens, output_tokens)
            # The first word is part of the overhead, each further one is a token.
            assert OVERHEAD + len(words_of(workload, k)) - 1 == input_tokens


def shared_tokens(a: list[str], b: list[str]) -> int:
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return OVERHEAD + same - 1


def test_equal_block_ids_are_equal_tokens_and_others_differ_from_their_first_token_on(make: Make) -> None:
    workload = make("mooncake.jsonl")
    first, second, third, fourth, fifth, without_ids = (words_of(workload, k) for k in range(6))
    # A few words may be alike by chance after the shared blocks: one in 160.
    assert 1024 <= shared_tokens(first, second) < 1028
    assert 512 <= shared_tokens(first, third) < 516
    assert shared_tokens(first, fourth) < OVERHEAD + 4
    assert first == fifth
    assert shared_tokens(first, without_ids) < OVERHEAD + 4


def test_another_level_and_another_pass_share_nothing_with_the_first(make: Make) -> None:
    workload = make("mooncake.jsonl")
    again = words_of(workload, 6)  # six rows: the first one of the second pass
    assert len(again) == len(words_of(workload, 0))
    assert shared_tokens(again, words_of(workload, 0)) < OVERHEAD + 4
    assert shared_tokens(words_of(workload, 0, level=1), words_of(workload, 0)) < OVERHEAD + 4
    assert 1024 <= shared_tokens(again, words_of(workload, 7)) < 1028


def test_made_up_prompts_of_equal_lengths_differ(make: Make) -> None:
    workload = make("azure.csv")
    assert words_of(workload, 0) != words_of(workload, 5)
    assert shared_tokens(words_of(workload, 0), words_of(workload, 5)) < OVERHEAD + 4


@pytest.mark.parametrize("block_tokens", [8, 16, 64])
def test_blocks_smaller_than_the_template_hold_their_tokens_all_the_same(block_tokens: int) -> None:
    prompts = MadeUpPrompts(RECIPE, block_tokens)
    long, short = (
        prompts.build(Row(1, input_tokens=n, hash_ids=tuple(range(-(-n // block_tokens)))), level=0, k=n, passes=0)
        for n in (200, 100)
    )
    assert (long[1], short[1]) == (200, 100)
    assert long[0].split()[: len(short[0].split())] == short[0].split()
    assert [OVERHEAD + len(text.split()) - 1 for text, _ in (long, short)] == [200, 100]


def test_a_prompt_with_fewer_ids_than_blocks_ends_in_tokens_of_its_own() -> None:
    prompts = MadeUpPrompts(RECIPE, 64)
    row = Row(1, input_tokens=300, hash_ids=(1, 2))
    a, b = (prompts.build(row, level=0, k=k, passes=0)[0].decode().split() for k in (1, 2))
    assert len(a) == len(b) == 300 - OVERHEAD + 1
    assert 128 <= shared_tokens(a, b) < 132


def test_any_worker_builds_the_same_requests(make: Make) -> None:
    here = make("mooncake.jsonl", in_file_order=False)
    there = carried(orjson.loads(orjson.dumps(to_carry(here))))
    assert there == here
    assert [there.build(3, k) for k in range(20)] == [here.build(3, k) for k in range(20)]


def test_shuffled_rows_all_come_before_one_comes_again(make: Make) -> None:
    workload = make("prompts.jsonl", in_file_order=False)
    prompts = [orjson.dumps(body_of(workload, k)["messages"]) for k in range(15)]
    for first in range(11):
        assert len(set(prompts[first : first + 5])) == 5
