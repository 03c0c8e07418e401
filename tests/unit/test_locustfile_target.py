"""A locustfile's target is proved to stream, and texts of one's own need nobody who counts tokens."""

from __future__ import annotations

import time

import pytest

from loadgen.locustfile.target import inspect_target
from loadgen.prompts.errors import PromptError
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario
from server.simulator.tokenizer import folder as tokenizer_folder
from tests.scripted_server import Answer, ScriptedServer
from tests.sse_events import DONE, FIN, ROLE, C, U


def scenario(url: str, **options: object) -> Scenario:
    asked = {"target.base_url": url, "load.concurrency": 2, **options}
    return load_scenario(options=asked).with_seed()


def answer(input_tokens: int) -> Answer:
    return Answer([(0, ROLE), (1, C("a")), (2, C("b") + FIN("stop") + U(input_tokens, 2) + DONE)])


def test_without_a_tokenizer_only_prompts_of_exact_length_are_refused() -> None:
    with ScriptedServer(lambda k, _: answer(7)) as server:
        target, workload = inspect_target(scenario(server.url), time.sleep)
    assert target.counted_by is None
    assert workload.recipe is None and "/tokenize" in workload.why_no_recipe
    assert b"Hello" in workload.body("Hello", 8, ignore_eos=True)
    with pytest.raises(PromptError, match="/tokenize"):
        workload.prompt(0, 64)


def test_with_a_tokenizer_the_probe_has_the_very_length_that_the_server_must_count() -> None:
    with ScriptedServer(lambda k, _: answer(64)) as server:
        _, workload = inspect_target(
            scenario(server.url, **{"workload.tokenizer": str(tokenizer_folder())}), time.sleep
        )
    assert workload.recipe is not None
    assert workload.prompt(3, 50).input_tokens == 50
