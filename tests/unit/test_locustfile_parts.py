"""What a locustfile's run is made of: requests that tasks write, names as classes, options, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
from locust import TaskSet, task
from locust.argument_parser import get_empty_argument_parser

from loadgen import LLMUser, OpenLoopLLMUser
from loadgen.cli.reference import ROOT
from loadgen.errors import ScenarioError, UsageError
from loadgen.locustfile.conditions import names_of, with_own_words
from loadgen.locustfile.load import Load, load_of
from loadgen.locustfile.master import check_tasks
from loadgen.locustfile.names import named_kinds, number_of, renumbered
from loadgen.locustfile.options import add_options, output_dir_of, scenario_of
from loadgen.locustfile.prompt import Prompt
from loadgen.locustfile.workload import TaskWorkload
from loadgen.prompts.errors import PromptError
from loadgen.prompts.pool import make_recipe
from loadgen.prompts.tokenizers import LocalCounter
from loadgen.record import LevelPlan, RequestRecord
from loadgen.scenario.model import Scenario
from loadgen.stats.level import level_object
from loadgen.workload.carried import carried, to_carry
from server.simulator.tokenizer import folder as tokenizer_folder
from tests.level_records import health

COUNTER = LocalCounter(str(tokenizer_folder()))


def workload(**changed: Any) -> TaskWorkload:
    values = {"model": "m", "endpoint": "chat", "continuous_usage": True, "seed": 3, "recipe": None}
    return TaskWorkload(**{**values, **changed})


def test_a_text_is_the_users_message_and_its_length_is_forced() -> None:
    body = json.loads(workload().body("hello", 16, ignore_eos=True))
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 16,
        "min_tokens": 16,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def test_messages_are_sent_as_they_are_and_an_open_length_is_the_models_own() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": Prompt("a b", 2)}]
    body = json.loads(workload().body(messages, None, ignore_eos=True, model="other", extra_body={"temperature": 0}))
    assert body["messages"][1]["content"] == "a b" and body["model"] == "other" and body["temperature"] == 0
    assert not {"max_tokens", "min_tokens", "ignore_eos"} & set(body)


def test_completions_take_a_text_and_no_messages() -> None:
    of_completions = workload(endpoint="completions", continuous_usage=False)
    body = json.loads(of_completions.body(Prompt("hello", 1), 4, ignore_eos=False))
    assert body["prompt"] == "hello" and "ignore_eos" not in body
    with pytest.raises(TypeError, match="takes a text, not messages"):
        of_completions.body([{"role": "user", "content": "x"}], 4, ignore_eos=False)


def test_what_is_measured_cannot_be_changed_by_extra_body() -> None:
    with pytest.raises(ValueError, match="stream cannot stand in extra_body"):
        workload().body("hello", 4, ignore_eos=True, extra_body={"stream": False})


def test_prompts_have_the_asked_length_and_no_two_are_alike() -> None:
    recipe = make_recipe(COUNTER, endpoint="chat", seed=3)
    made = carried(to_carry(workload(recipe=recipe)))
    assert isinstance(made, TaskWorkload) and made == workload(recipe=recipe)
    prompts = [made.prompt(k, 40 + k) for k in range(20)]
    assert [COUNTER.count_chat(prompt) for prompt in prompts] == [prompt.input_tokens for prompt in prompts]
    assert [prompt.input_tokens for prompt in prompts] == [40 + k for k in range(20)]
    assert len({str(prompt)[:40] for prompt in prompts}) == 20


def test_a_prompt_of_a_length_that_nobody_counts_is_refused_with_the_reason() -> None:
    with pytest.raises(PromptError, match=r"nobody does: no /tokenize") as error:
        workload(why_no_recipe="no /tokenize there").prompt(0, 100)
    assert "--loadgen-tokenizer" in str(error.value.hint)


def record(number: int, kind: int) -> RequestRecord:
    at_ns = 10**9 + number
    return RequestRecord(
        level=0, index=number, user=0, worker=0, status="ok", dispatched_ns=at_ns, finished_ns=at_ns + 5, kind=kind
    )


def test_names_are_classes_of_the_level_whatever_the_order_in_which_workers_met_them() -> None:
    kinds = [number_of("ask"), number_of("sum up"), number_of("ask"), 0]
    records = renumbered([record(k, kind) for k, kind in enumerate(kinds)], ["ask", "sum up"])
    assert [one.kind for one in records] == [0, 1, 0, 2]  # the last was never sent, and is of no class
    plan = LevelPlan(0, 4, 10**9, 2 * 10**9, think_time_s=None)
    level = level_object(plan, records, [health()], kinds=named_kinds(["ask", "sum up"]))
    assert [(one["name"], one["share"], one["requests"]["ok"]) for one in level["classes"]] == [
        ("ask", None, 2),
        ("sum up", None, 1),
    ]
    assert level["intended_prefix_share"] is None


def test_requests_that_ended_after_the_load_had_changed_are_counted_and_said() -> None:
    records = [record(k, 0) for k in range(20)]
    plan = LevelPlan(0, 4, 10**9, 2 * 10**9, think_time_s=None, load_changed_ns=10**9 + 14)
    level = level_object(plan, records, [health()])
    assert level["ended_after_change"] == 10  # those that were dispatched from the tenth nanosecond on
    assert "load_changed" in {warning["rule"] for warning in level["warnings"]}
    unchanged = level_object(LevelPlan(0, 4, 10**9, 2 * 10**9), records, [health()])
    assert unchanged["ended_after_change"] is None


def test_with_an_unknown_think_time_no_load_is_missed() -> None:
    records = [record(k, 0) for k in range(20)]
    fired = {
        known: {
            reason["rule"]
            for reason in level_object(
                LevelPlan(0, 1, 10**9, 2 * 10**9, think_time_s=None if known is None else 0.0), records, [health()]
            )["reasons"]
        }
        for known in (None, 0.0)
    }
    assert "load_not_reached" in fired[0.0] and "load_not_reached" not in fired[None]


def test_a_scenarios_run_has_no_names_and_its_own_words() -> None:
    assert names_of({"seed": 1}) is None
    assert with_own_words({"input": "512 tokens"}, {"seed": 1}) == {"input": "512 tokens"}
    about = {"locustfile": {"names": [], "conditions": {"input": "as the tasks ask"}}}
    assert names_of(about) == []
    assert with_own_words({"input": "512 tokens", "seed": "1"}, about) == {"input": "as the tasks ask", "seed": "1"}


def options(*arguments: str) -> Any:
    parser = get_empty_argument_parser(add_help=False, default_config_files=[])
    add_options(parser)
    return parser.parse_args(list(arguments))


def asked(*arguments: str, host: str | None = "http://127.0.0.1:8000/v1") -> Scenario:
    return scenario_of(options(*arguments), host=host, locustfile="my locustfile.py", concurrency=8, request_rate=None)


def test_options_of_locust_make_a_scenario_that_waits_for_nothing() -> None:
    scenario = asked("--loadgen-slo", "ttft_p95<500ms", "--loadgen-metrics-port", "off", "--loadgen-model", "m")
    assert scenario.name == "my-locustfile" and scenario.seed is not None
    assert scenario.target.base_url == "http://127.0.0.1:8000" and scenario.target.model == "m"
    assert scenario.load.concurrency == (8,) and scenario.load.warmup == 0.0
    assert scenario.slo.ttft_p95 == 0.5 and scenario.metrics.port is None
    assert output_dir_of(options("--loadgen-output-dir", "here")) is not None
    assert output_dir_of(options()) is None


def test_what_the_web_ui_leaves_empty_was_not_given() -> None:
    assert asked("--loadgen-model", "", "--loadgen-warmup", "3s").load.warmup == 3.0


def test_any_key_that_has_a_meaning_can_be_set_and_no_other() -> None:
    scenario = asked("--loadgen-set", "timeouts.total=30s", "--loadgen-set", "name=mine")
    assert scenario.timeouts.total == 30.0 and scenario.name == "mine"
    for key in ("workload.input_tokens=3", "load.concurrency=3", "server.max_num_seqs=3", "workers.local=2"):
        with pytest.raises(UsageError, match="has no effect on a locustfile"):
            asked("--loadgen-set", key)


def test_variables_of_the_environment_set_what_has_a_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADGEN_LOAD_WARMUP", "2s")
    monkeypatch.setenv("LOADGEN_LOAD_CONCURRENCY", "99")  # of a scenario that runs elsewhere in this shell
    monkeypatch.setenv("LOADGEN_WORKLOAD_INPUT_TOKENS", "77")
    scenario = asked()
    assert scenario.load.warmup == 2.0 and scenario.load.concurrency == (8,) and scenario.workload.input_tokens == 512


def test_what_is_wrong_is_said_by_the_name_of_the_option() -> None:
    with pytest.raises(ScenarioError, match=r'--loadgen-warmup: load\.warmup is "soon"'):
        asked("--loadgen-warmup", "soon")
    with pytest.raises(UsageError, match="No target is given"):
        asked(host=None)


def test_the_page_has_every_option_with_its_meaning_and_no_other() -> None:
    page = (ROOT / "docs/locustfile.md").read_text(encoding="utf-8")
    written = {
        cells[0].strip("` "): cells[2].strip()
        for line in page.splitlines()
        if len(cells := line.strip("|").split("|")) == 3 and cells[0].strip("` ").startswith("--loadgen-")
    }
    parser = get_empty_argument_parser(add_help=False, default_config_files=[])
    add_options(parser)
    ours = {
        action.option_strings[0]: str(action.help).replace("%%", "%").partition(" (or ")[0]
        for action in parser._actions
        if action.option_strings and action.option_strings[0].startswith("--loadgen-")
    }
    assert written == ours


def test_the_examples_of_the_page_are_tasks_of_our_users() -> None:
    page = (ROOT / "docs/locustfile.md").read_text(encoding="utf-8")
    whole, method = re.findall(r"```python\n(.*?)```", page, re.S)
    made: dict[str, Any] = {}
    exec(whole + "\n" + textwrap.indent(method, "    "), made)
    assert issubclass(made["ChatUser"], LLMUser)
    assert {one.__name__ for one in made["ChatUser"].tasks} == {"ask", "two_turns"}


class Closed(LLMUser):
    @task
    async def ask(self) -> None:
        """Nothing is sent here."""


class Open(OpenLoopLLMUser):
    @task
    async def ask(self) -> None:
        """Nothing is sent here."""


class Idle(LLMUser):
    pass


class Nested(LLMUser):
    class Inner(TaskSet):
        pass

    tasks = [Inner]  # noqa: RUF012


class Capped(OpenLoopLLMUser):
    request_rate, max_in_flight, overflow = 2.5, 3, "drop"

    @task
    async def ask(self) -> None:
        """Nothing is sent here."""


def test_users_are_a_load_by_their_classes_and_other_classes_are_none() -> None:
    counts = {"Closed": 3, "Open": 4, "Capped": 2, "HttpUser": 100}
    assert load_of([Closed], counts) == Load(3, None, None, None)
    assert load_of([Open], counts) == Load(None, 4.0, None, None)
    assert load_of([Open, Capped], counts) == Load(None, 9.0, 6, "drop")
    assert not load_of([Closed], {"HttpUser": 100}) and not load_of([Open], {})


@pytest.mark.parametrize(
    ("classes", "problem"),
    [
        ([Closed, Open], "users of a closed loop and of an open one"),
        ([Idle], "Idle has no task"),
        ([Nested], "Nested has the TaskSet Inner"),
    ],
)
def test_users_that_cannot_be_run_are_refused(classes: list[type[LLMUser]], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        check_tasks(SimpleNamespace(user_classes=classes))


def test_users_of_one_kind_are_taken() -> None:
    check_tasks(SimpleNamespace(user_classes=[Closed]))
    check_tasks(SimpleNamespace(user_classes=[Open]))


def test_importing_the_package_is_cheap_and_importing_the_classes_starts_nothing() -> None:
    script = """
import sys, loadgen
assert not {"locust", "gevent", "numpy", "aiohttp"} & set(sys.modules), "import loadgen is dear"
import locust, threading
from loadgen import LLMUser, OpenLoopLLMUser
from loadgen.cli.reference import ROOT
assert LLMUser.abstract and OpenLoopLLMUser.abstract, "Locust would run them"
assert threading.active_count() == 1
import loadgen.worker.async_user as users
assert users._loop_thread is None, "--processes forks after the import"
try:
    loadgen.LLMusers
except AttributeError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "module 'loadgen' has no attribute 'LLMusers'\n"
