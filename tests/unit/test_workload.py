"""The workload of a scenario: exact prompts of every length, classes by share, shared beginnings, the same for everyone."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from loadgen.errors import UsageError
from loadgen.prompts import LocalCounter, PromptError
from loadgen.scenario.model import Scenario
from loadgen.worker.prompt_queue import PromptQueue
from loadgen.workload.carried import carried, to_carry
from loadgen.workload.plan import plan_workload
from loadgen.workload.planned import PlannedRequest
from loadgen.workload.synthetic import SyntheticWorkload
from server.simulator.tokenizer import folder

LOGNORMAL = {"distribution": "lognormal", "mean": 200, "stddev": 120, "max": 900}
MIX = [
    {
        "name": "chat",
        "share": "80%",
        "input_tokens": LOGNORMAL,
        "output_tokens": 150,
        "extra_body": {"temperature": 0.7},
    },
    {
        "name": "rag",
        "share": "20%",
        "input_tokens": {"distribution": "uniform", "min": 700, "max": 800},
        "output_tokens": {"distribution": "normal", "mean": 40, "stddev": 10},
        "prefixes": {"count": 5, "tokens": 300, "zipf": 1.0},
    },
]


@pytest.fixture(scope="module")
def counter() -> LocalCounter:
    return LocalCounter(folder())


@pytest.fixture(scope="module")
def mix(counter: LocalCounter) -> SyntheticWorkload:
    return planned(counter, {"classes": MIX})


def planned(
    counter: LocalCounter,
    workload: dict[str, Any],
    *,
    endpoint: str = "chat",
    max_model_len: int | None = 8192,
    seed: int = 7,
) -> SyntheticWorkload:
    scenario = Scenario.model_validate(
        {"target": {"base_url": "http://h:1", "endpoint": endpoint}, "workload": workload, "seed": seed}
    )
    return plan_workload(scenario, counter, model="m", max_model_len=max_model_len, base_url="http://h:1")


def text_of(request: PlannedRequest) -> str:
    body = json.loads(request.body)
    return str(body["messages"][0]["content"] if "messages" in body else body["prompt"])


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize(
    "workload",
    [
        {"input_tokens": LOGNORMAL},
        {"input_tokens": 200, "input_stddev": 150},
        {"input_tokens": 200, "range_ratio": 0.5},
        {"input_tokens": LOGNORMAL, "shared_prefix_tokens": 64},
        {"classes": MIX},
    ],
    ids=["lognormal", "stddev", "range ratio", "shared prefix", "mix"],
)
def test_every_prompt_of_mixed_lengths_has_the_tokens_that_it_claims(
    counter: LocalCounter, endpoint: str, workload: dict[str, Any]
) -> None:
    made = planned(counter, workload, endpoint=endpoint)
    count = counter.count_chat if endpoint == "chat" else counter.count_text
    requests = [made.build(2, k) for k in range(150)]
    assert [count(text_of(one)) for one in requests] == [one.input_tokens for one in requests]
    assert len({one.input_tokens for one in requests}) > 40
    assert len({text_of(one) for one in requests}) == 150


def test_prompts_of_mixed_lengths_share_no_first_kv_block(counter: LocalCounter) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder())
    made = planned(counter, {"input_tokens": LOGNORMAL}, endpoint="completions")
    texts = [text_of(made.build(level, k)) for level in range(3) for k in range(200)]
    assert len({tuple(ids[:16]) for ids in tokenizer(texts)["input_ids"]}) == 600


def test_a_body_asks_for_its_own_length_and_for_what_its_class_says(mix: SyntheticWorkload) -> None:
    for k in range(50):
        request = mix.build(0, k)
        body = json.loads(request.body)
        assert body["model"] == "m" and body["stream"] is True and body["ignore_eos"] is True
        assert body["max_tokens"] == body["min_tokens"] == request.output_tokens
        assert body.get("temperature") == (0.7 if request.kind == 0 else None)
        assert (request.k, request.output_forced) == (k, True)


def test_extra_keys_of_the_workload_are_in_every_body_and_a_class_overrides_them(counter: LocalCounter) -> None:
    made = planned(counter, {"classes": MIX, "extra_body": {"temperature": 0.1, "top_p": 0.9}})
    told = {
        (r.kind, b["temperature"], b["top_p"])
        for r in (made.build(0, k) for k in range(40))
        for b in [json.loads(r.body)]
    }
    assert told == {(0, 0.7, 0.9), (1, 0.1, 0.9)}


def test_an_answer_of_free_length_is_only_bounded(counter: LocalCounter) -> None:
    request = planned(counter, {"ignore_eos": False, "output_tokens": 33}).build(0, 0)
    body = json.loads(request.body)
    assert body["max_tokens"] == 33 and not {"min_tokens", "ignore_eos"} & set(body)
    assert request.output_forced is False


def test_classes_come_up_by_their_shares(mix: SyntheticWorkload) -> None:
    kinds = Counter(mix._prompt(0, k)[0] for k in range(4_000))
    assert kinds[0] / 4_000 == pytest.approx(0.8, abs=0.025)
    assert set(kinds) == {0, 1}


def test_lengths_keep_the_bounds_of_their_class(mix: SyntheticWorkload) -> None:
    requests = [mix.build(1, k) for k in range(600)]
    rag = [one for one in requests if one.kind == 1]
    assert all(700 <= (one.input_tokens or 0) <= 800 for one in rag)
    assert len({one.output_tokens for one in rag}) > 15
    assert {one.output_tokens for one in requests if one.kind == 0} == {150}


def test_a_length_without_a_lower_bound_begins_at_the_shortest_distinct_prompt(counter: LocalCounter) -> None:
    made = planned(
        counter, {"input_tokens": {"distribution": "normal", "mean": 40, "stddev": 40}, "shared_prefix_tokens": 9}
    )
    least = made.recipe.least_tokens(9)
    lengths = {made.build(0, k).input_tokens for k in range(500)}
    assert min(one or 0 for one in lengths) == least


def test_the_requests_of_two_or_three_workers_are_those_of_one(mix: SyntheticWorkload) -> None:
    def sent(workers: int) -> dict[int, PlannedRequest]:
        found = {}
        for worker in range(workers):
            arrived = carried(json.loads(json.dumps(to_carry(mix))))  # each worker has a copy of its own
            queue = PromptQueue(arrived.build, level=1, worker=worker, workers=workers, depth=4)
            queue.fill()
            for _ in range(60 // workers):
                request = queue.take()
                found[request.k] = request
        return found

    one = sent(1)
    assert sorted(one) == list(range(60))
    assert sent(2) == sent(3) == one


def test_another_level_or_seed_draws_other_lengths_and_another_prompt_set_only_other_words(
    counter: LocalCounter,
) -> None:
    def lengths(made: SyntheticWorkload, level: int = 0) -> list[tuple[int, int | None, int | None]]:
        return [(r.kind, r.input_tokens, r.output_tokens) for r in (made.build(level, k) for k in range(50))]

    first, other_seed = planned(counter, {"classes": MIX}), planned(counter, {"classes": MIX}, seed=8)
    other_set = planned(counter, {"classes": MIX, "prompt_set": 1})
    assert lengths(first) == lengths(planned(counter, {"classes": MIX})) == lengths(other_set)
    assert lengths(first) != lengths(first, level=1)
    assert lengths(first) != lengths(other_seed)
    assert {text_of(first.build(0, k)) for k in range(50)} & {
        text_of(other_set.build(0, k)) for k in range(50)
    } == set()


def test_groups_share_exactly_the_tokens_of_their_prefix_and_no_others(counter: LocalCounter) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder())
    made = planned(
        counter,
        {"input_tokens": 400, "prefixes": {"count": 4, "tokens": 100}},
        endpoint="completions",
    )
    ids = [tokenizer(text_of(made.build(0, k)))["input_ids"] for k in range(200)]
    begin_of_text = 1
    beginnings = Counter(tuple(prompt[: begin_of_text + 100]) for prompt in ids)
    assert len(beginnings) == 4
    assert min(beginnings.values()) > 30
    assert len({tuple(prompt[: begin_of_text + 100 + 2]) for prompt in ids}) == 200
    for one in beginnings:
        for other in beginnings:
            same = sum(1 for _ in iter_common(one, other))
            assert one == other or same < 5


def iter_common(one: tuple[int, ...], other: tuple[int, ...]) -> Any:
    for a, b in zip(one, other, strict=True):
        if a != b:
            return
        yield a


def test_the_shared_beginning_is_the_same_in_every_level(counter: LocalCounter) -> None:
    made = planned(counter, {"input_tokens": 300, "shared_prefix_tokens": 200})
    beginnings = {" ".join(text_of(made.build(level, k)).split()[:200]) for level in range(3) for k in range(10)}
    assert len(beginnings) == 1


def test_pairs_of_a_file_stay_together(counter: LocalCounter, tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("input_tokens,output_tokens\n100,10\n100,10\n900,90\n")
    made = planned(counter, {"lengths_file": str(path)})
    pairs = Counter((r.input_tokens, r.output_tokens) for r in (made.build(0, k) for k in range(900)))
    assert set(pairs) == {(100, 10), (900, 90)}
    assert pairs[100, 10] / 900 == pytest.approx(2 / 3, abs=0.06)


@pytest.mark.parametrize(
    ("workload", "arithmetic"),
    [
        ({"input_tokens": 900, "output_tokens": 200}, "up to 900 + 200 = 1100, more than the 1024"),
        (
            {"input_tokens": {"distribution": "uniform", "min": 30, "max": 1000}, "output_tokens": 200},
            "up to 1000 + 200 = 1200, more than the 1024",
        ),
        ({"input_tokens": 400, "input_stddev": 100, "output_tokens": 200}, "up to 1000 + 200 = 1200"),
        ({"classes": MIX}, "workload.classes.chat.output_tokens is up to 900 + 150 = 1050"),
    ],
)
def test_a_request_longer_than_the_model_takes_is_refused_with_the_arithmetic(
    counter: LocalCounter, workload: dict[str, Any], arithmetic: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        planned(counter, workload, max_model_len=1024)
    assert arithmetic in str(refusal.value)
    assert "max_model_len" in str(refusal.value)


def test_pairs_longer_than_the_model_takes_are_refused(counter: LocalCounter, tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("100,10\n500,600\n900,90\n")
    with pytest.raises(UsageError, match=r"up to 500 \+ 600 = 1100"):
        planned(counter, {"lengths_file": str(path)}, max_model_len=1024)


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        ({"input_tokens": 12}, "input_tokens is 12, but the shortest distinct prompt"),
        ({"input_tokens": {"distribution": "uniform", "min": 9, "max": 99}}, "input_tokens is 9, but"),
        ({"input_tokens": 200, "shared_prefix_tokens": 200}, "199 for the rest of the shared prefix"),
    ],
)
def test_a_prompt_too_short_to_be_told_apart_is_refused(
    counter: LocalCounter, workload: dict[str, Any], says: str
) -> None:
    with pytest.raises(PromptError) as refusal:
        planned(counter, workload)
    assert says in str(refusal.value)


def test_a_mean_below_the_shortest_prompt_is_refused_with_a_remedy(counter: LocalCounter) -> None:
    with pytest.raises(PromptError, match="input_tokens is 10, but the shortest distinct prompt"):
        planned(counter, {"input_tokens": {"distribution": "normal", "mean": 10, "stddev": 3}})
