"""Conversations: every turn's prompt is exact and grows by what was said, the same for any number of workers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from loadgen.errors import UsageError
from loadgen.prompts import LocalCounter, PromptError
from loadgen.prompts.conversation import count_conversation
from loadgen.scenario.model import Scenario
from loadgen.worker.prompt_queue import PromptQueue
from loadgen.workload.carried import carried, to_carry
from loadgen.workload.conversation import Conversation
from loadgen.workload.plan import plan_workload
from loadgen.workload.planned import PlannedRequest
from loadgen.workload.sessions import TURN_BITS, SessionWorkload
from loadgen.workload.synthetic import SyntheticWorkload
from server.simulator.tokenizer import folder

TURNS: dict[str, Any] = {
    "turns": {"distribution": "uniform", "min": 2, "max": 6},
    "input_tokens": {"distribution": "uniform", "min": 60, "max": 120},
    "turn_input_tokens": {"distribution": "uniform", "min": 16, "max": 50},
    "output_tokens": {"distribution": "uniform", "min": 1, "max": 30},
    "carried_answers": "synthetic",
}


@pytest.fixture(scope="module")
def counter() -> LocalCounter:
    return LocalCounter(folder())


def planned(
    counter: Any,
    workload: Mapping[str, Any],
    *,
    endpoint: str = "chat",
    load: Mapping[str, Any] | None = None,
    max_model_len: int | None = 8192,
    seed: int = 7,
) -> SessionWorkload:
    scenario = Scenario.model_validate(
        {
            "target": {"base_url": "http://h:1", "endpoint": endpoint},
            "workload": dict(workload),
            "load": dict(load or {}),
            "seed": seed,
        }
    )
    made = plan_workload(scenario, counter, model="m", max_model_len=max_model_len, base_url="http://h:1")
    assert isinstance(made, SessionWorkload)
    return made


def asked(conversation: Conversation) -> list[PlannedRequest]:
    """Every turn of a conversation whose answers are made up."""
    found = []
    while not conversation.over:
        found.append(conversation.next())
        assert not conversation.wants_answer
    return found


def counted(counter: LocalCounter, request: PlannedRequest) -> int:
    body = json.loads(request.body)
    if "messages" in body:
        return counter.count_messages(body["messages"])
    return counter.count_text(body["prompt"])


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("beginning", [{}, {"prefixes": {"count": 3, "tokens": 20}}], ids=["plain", "prefixes"])
def test_every_turn_has_the_tokens_that_it_claims(counter: LocalCounter, endpoint: str, beginning: Any) -> None:
    made = planned(counter, {**TURNS, **beginning}, endpoint=endpoint)
    turns = set()
    for number in range(40):
        conversation = made.conversation(number % 3, number)
        requests = asked(conversation)
        turns.add(len(requests))
        for turn, (request, said) in enumerate(zip(requests, conversation.session.turns, strict=True), 1):
            assert request.input_tokens == counted(counter, request)
            assert request.output_tokens == said.output_tokens == json.loads(request.body)["max_tokens"]
            assert (request.session, request.turn, request.k) == (number, turn, number << TURN_BITS | turn - 1)
    assert turns == {2, 3, 4, 5, 6}


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_turn_begins_with_the_whole_turn_before_and_its_answer(counter: LocalCounter, endpoint: str) -> None:
    made = planned(counter, {**TURNS, "turns": 5}, endpoint=endpoint)
    conversation = made.conversation(0, 3)
    requests = asked(conversation)
    assert requests[0].turn_input_tokens is None and requests[0].prefix_tokens == 0
    for before, request, said in zip(requests[:-1], requests[1:], conversation.session.turns[1:], strict=True):
        # The answer is made up: the server has not made its keys and values.
        assert request.prefix_tokens == before.input_tokens
        assert request.turn_input_tokens == said.input_tokens
        assert request.input_tokens == (before.input_tokens or 0) + (before.output_tokens or 0) + said.input_tokens
        if endpoint == "chat":
            earlier, now = (json.loads(one.body)["messages"] for one in (before, request))
            assert now[: len(earlier)] == earlier
            assert [message["role"] for message in now[len(earlier) :]] == ["assistant", "user"]
        else:
            assert json.loads(request.body)["prompt"].startswith(json.loads(before.body)["prompt"] + " ")


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_what_the_server_answered_is_carried_on_as_it_counted_it(counter: LocalCounter, endpoint: str) -> None:
    made = planned(counter, {**TURNS, "turns": 3, "carried_answers": "server"}, endpoint=endpoint)
    conversation = made.conversation(0, 0)
    first = conversation.next()
    assert first.input_tokens == counted(counter, first) and conversation.wants_answer
    answer = ' the word "and" more:\n\\done 🙂'
    conversation.answered(answer, first.input_tokens, 9)
    second = conversation.next()
    assert second.input_tokens is None, "nobody knows how the answer is tokenised"
    assert second.prefix_tokens == (first.input_tokens or 0) + 9
    added = second.turn_input_tokens or 0
    body = json.loads(second.body)
    if endpoint == "chat":
        assert body["messages"][1] == {"role": "assistant", "content": answer}
        assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    else:
        assert answer in body["prompt"]
    conversation.answered(" made of words", None, None)
    third = conversation.next()
    assert third.prefix_tokens is None, "the server did not say how long the prompt was"
    assert conversation.over and not conversation.wants_answer

    # Words that are one token each make the arithmetic exact, whoever says them.
    words = made.recipe.words[:12]
    again = made.conversation(0, 0)
    before = again.next()
    again.answered(("the " if endpoint == "chat" else " the ") + " ".join(words), before.input_tokens, 13)
    exact = again.next()
    assert counted(counter, exact) == (before.input_tokens or 0) + 13 + added


def test_a_shared_beginning_is_the_system_message_of_a_chat(counter: LocalCounter) -> None:
    made = planned(counter, {**TURNS, "shared_prefix_tokens": 30})
    bodies = [json.loads(asked(made.conversation(level, number))[-1].body) for level in (0, 4) for number in range(5)]
    systems = {body["messages"][0]["content"] for body in bodies}
    assert {body["messages"][0]["role"] for body in bodies} == {"system"} and len(systems) == 1
    assert len(systems.pop().split()) == 30
    assert asked(made.conversation(0, 0))[0].prefix_tokens == 30
    firsts = [body["messages"][1]["content"] for body in bodies]
    assert len({text.split()[1] for text in firsts}) > 5, "the first words after it differ"


def test_two_or_three_workers_hold_the_conversations_of_one(counter: LocalCounter) -> None:
    made = planned(counter, {**TURNS, "turn_think_time": "exponential:3s"})

    def held(workers: int) -> dict[int, tuple[list[PlannedRequest], list[float]]]:
        found = {}
        for worker in range(workers):
            arrived = carried(json.loads(json.dumps(to_carry(made))))  # each worker has a copy of its own
            assert isinstance(arrived, SessionWorkload)
            queue = PromptQueue(arrived.conversation, level=2, worker=worker, workers=workers, depth=4)
            queue.fill()
            for _ in range(30 // workers):
                conversation = queue.take()
                thoughts = [turn.think_s for turn in conversation.session.turns]
                found[conversation.session.number] = (asked(conversation), thoughts)
        return found

    one = held(1)
    assert sorted(one) == list(range(30))
    assert held(2) == held(3) == one


def test_levels_seeds_and_sets_have_conversations_of_their_own(counter: LocalCounter) -> None:
    def lengths(made: SessionWorkload, level: int = 0) -> list[list[tuple[int | None, int | None]]]:
        return [[(r.input_tokens, r.output_tokens) for r in asked(made.conversation(level, n))] for n in range(20)]

    def texts(made: SessionWorkload) -> set[bytes]:
        return {turn.message for n in range(20) for turn in made.session(0, n).turns}

    first, other_set = planned(counter, TURNS), planned(counter, {**TURNS, "prompt_set": 1})
    assert lengths(first) == lengths(planned(counter, TURNS)) == lengths(other_set)
    assert lengths(first) != lengths(first, level=1)
    assert lengths(first) != lengths(planned(counter, TURNS, seed=8))
    assert not texts(first) & texts(other_set)


def test_a_user_thinks_before_each_turn_but_the_first(counter: LocalCounter) -> None:
    drawn = planned(counter, {**TURNS, "turn_think_time": "exponential:4s"})
    waits = [turn.think_s for n in range(400) for turn in drawn.session(0, n).turns[1:]]
    assert sum(waits) / len(waits) == pytest.approx(4, rel=0.15) and len(set(waits)) == len(waits)
    assert {drawn.session(0, n).turns[0].think_s for n in range(9)} == {0.0}
    by_load = planned(counter, TURNS, load={"think_time": "2s"})
    assert {turn.think_s for turn in by_load.session(0, 0).turns[1:]} == {2.0}


def test_classes_of_a_mix_have_turns_of_their_own(counter: LocalCounter) -> None:
    single = {"name": "single", "share": "50%", "input_tokens": 40, "output_tokens": 5}
    chat = {"name": "chat", "share": "50%", **TURNS, "turns": 4}
    made = planned(counter, {"classes": [single, chat]})
    by_class: dict[int, set[int]] = {0: set(), 1: set()}
    for number in range(60):
        conversation = made.conversation(0, number)
        by_class[conversation.session.kind].add(len(asked(conversation)))
    assert by_class == {0: {1}, 1: {4}}


def test_requests_that_stand_alone_stay_what_they_are(counter: LocalCounter) -> None:
    scenario = Scenario.model_validate({"target": {"base_url": "http://h:1"}, "workload": {"turns": 1}, "seed": 1})
    made = plan_workload(scenario, counter, model="m", max_model_len=None, base_url="http://h:1")
    assert type(made) is SyntheticWorkload
    assert made.build(0, 5).session is None


def test_a_conversation_beyond_the_model_is_refused_with_the_arithmetic(counter: LocalCounter) -> None:
    workload = {"turns": 10, "input_tokens": 500, "output_tokens": 200, "turn_input_tokens": 100}
    assert planned(counter, workload, max_model_len=500 + 9 * 300 + 200)
    with pytest.raises(UsageError) as refusal:
        planned(counter, workload, max_model_len=3399)
    assert "500 + 9 × (200 + 100) + 200 = 3400, more than the 3399 tokens of max_model_len" in str(refusal.value)
    assert "shorten them by 1 tokens" in refusal.value.hint


def test_a_turn_shorter_than_the_template_around_it_is_refused(counter: LocalCounter) -> None:
    with pytest.raises(
        PromptError, match="turn_input_tokens is 1, but a later turn of the chat endpoint adds at least"
    ):
        planned(counter, {**TURNS, "turn_input_tokens": 1})
    drawn = {**TURNS, "turn_input_tokens": {"distribution": "normal", "mean": 20, "stddev": 20}}
    made = planned(counter, drawn)
    least = made.turns[0].overhead_tokens
    assert min(turn.input_tokens for n in range(200) for turn in made.session(0, n).turns[1:]) == least


class _Forgetful:
    """A chat template that leaves out all but the latest turns, as some do with what was thought in earlier ones."""

    def __init__(self, counter: LocalCounter) -> None:
        self.count_text = counter.count_text
        self.count_chat = counter.count_chat
        self._count = counter.count_messages

    def count_messages(self, messages: Sequence[Mapping[str, str]]) -> int:
        return self._count(messages[-3:])

    def describe(self) -> str:
        return "a forgetful template"


def test_a_template_that_changes_earlier_turns_is_refused(counter: LocalCounter) -> None:
    with pytest.raises(PromptError, match="the chat template does not treat every turn alike"):
        planned(_Forgetful(counter), {**TURNS, "turns": 6})


def test_without_a_chat_template_a_conversation_is_one_text(counter: LocalCounter) -> None:
    messages = [{"role": "user", "content": "the word"}, {"role": "assistant", "content": "the other"}]
    assert count_conversation(counter, "completions", messages) == counter.count_text("the word the other")
