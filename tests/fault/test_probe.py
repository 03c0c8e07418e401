"""Before any load each class is tried on the server: what its keys add to a prompt is found, and what cannot be is refused."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from loadgen.controller.target import Target, inspect
from loadgen.errors import LoadgenError, UsageError
from loadgen.scenario.load import load_scenario
from loadgen.workload.carried import carried, to_carry
from loadgen.workload.synthetic import SyntheticWorkload
from tests import scripted_server
from tests.page_server import PageServer
from tests.scripted_server import Answer, Request, ScriptedServer, refusal
from tests.sse_events import DONE, FIN, ROLE, C, U

TEMPLATE = 5
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
TOKEN = "tk-4711-very-secret"


def words(body: Mapping[str, Any]) -> int:
    return len(body["messages"][0]["content"].split())


class Server:
    """A server whose every word is a token, with a template of its own for each model, and tools that cost 40."""

    def __init__(self, templates: Mapping[str, int] | None = None, *, tools: int = 40, per_word: int = 0) -> None:
        self.templates = templates or {"m": TEMPLATE}
        self.tools = tools
        self.per_word = per_word
        """More tokens a word, only where there are tools."""
        self.usage = True
        self.refuses: str | None = None
        """A key of a body that it does not take."""

    def count(self, body: Mapping[str, Any]) -> int:
        count = self.templates[body["model"]] + words(body)
        return count + (self.tools + self.per_word * words(body) if body.get("tools") else 0)

    def __call__(self, k: int, request: Request) -> Answer:
        body = request.json()
        if self.refuses in body:
            return refusal(400, f"{self.refuses} is not taken")
        n = body["max_tokens"]
        if body["stream"]:
            usage = U(self.count(body), n) if self.usage else b""
            return Answer([(1, ROLE + C("x") * n + FIN("length") + usage + DONE)])
        content: dict[str, Any] = {
            "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "length"}],
        }
        if self.usage:
            content["usage"] = {"prompt_tokens": self.count(body), "completion_tokens": n}
        return Answer([(1, json.dumps(content).encode())], content_type="application/json")

    def pages(self) -> dict[str, object]:
        return {
            "/v1/models": {"data": [{"id": name, "max_model_len": 4096} for name in self.templates]},
            "/version": {"version": "scripted"},
            # Not as the model is asked: it knows nothing of tools.
            "/tokenize": lambda body: {"count": self.templates[json.loads(body)["model"]] + words(json.loads(body))},
        }


def inspected(behaviour: Server, **settings: Any) -> tuple[Target, list[Request], list[str]]:
    """What is known of the server, the probes that it got, and what was told."""
    told: list[str] = []
    with ScriptedServer(behaviour, behaviour.pages()) as server:
        options = {key.replace("__", "."): value for key, value in settings.items()}
        scenario = load_scenario(None, options={"target.base_url": server.url, "seed": 7, **options})
        target = inspect(scenario, server.url, tell=told.append, pause=time.sleep)
    return target, server.requests, told


def workload_of(target: Target) -> SyntheticWorkload:
    workload = carried(to_carry(target.workload))
    assert isinstance(workload, SyntheticWorkload)
    return workload


def a_class(name: str, share: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "share": share, "input_tokens": 120, "output_tokens": 8, **more}


def test_each_class_is_tried_once_with_few_tokens() -> None:
    classes = [a_class("one", "99.9%"), a_class("rare", "0.1%", extra_body={"top_p": 0.5})]
    target, probes, told = inspected(Server(), workload__classes=classes)
    assert [probe.json().get("top_p") for probe in probes] == [None, 0.5]
    assert [probe.json()["max_tokens"] for probe in probes] == [4, 4]
    assert told == [] and workload_of(target).classes[0].recipe is None


def test_what_tools_add_to_each_prompt_is_measured_and_taken_from_its_words() -> None:
    classes = [
        a_class("plain", "50%"),
        a_class(
            "tools",
            "50%",
            input_tokens={"distribution": "uniform", "min": 60, "max": 150},
            extra_body={"tools": [TOOL]},
        ),
    ]
    behaviour = Server()
    target, probes, told = inspected(behaviour, workload__classes=classes)
    assert len(probes) == 3 and told == [], "the class with tools is tried again with what was found"
    workload = workload_of(target)
    seen = set()
    for k in range(200):
        planned = workload.build(0, k)
        assert planned.input_tokens == behaviour.count(json.loads(planned.body))
        # A prefix cache finds the tools again.
        assert planned.prefix_tokens == (None if planned.kind == 0 else 40)
        seen.add(planned.kind)
    assert seen == {0, 1}


def test_prompts_without_a_bound_begin_behind_the_tools() -> None:
    lengths = {"distribution": "normal", "mean": 60, "stddev": 40}
    behaviour = Server()
    target, _, _ = inspected(behaviour, workload__input_tokens=lengths, workload__extra_body={"tools": [TOOL]})
    workload = workload_of(target)
    planned = [workload.build(0, k) for k in range(300)]
    assert all(one.input_tokens == behaviour.count(json.loads(one.body)) for one in planned)
    assert min(one.input_tokens or 0 for one in planned) >= TEMPLATE + 40 + 8


def test_prompts_that_tools_leave_no_room_for_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(UsageError) as refused:
        inspected(Server(tools=400), workload__input_tokens=120, workload__extra_body={"tools": [TOOL]})
    assert "extra_body adds 400 tokens to each prompt" in str(refused.value)
    assert "shortest distinct prompt" in str(refused.value)


def test_prompts_that_cannot_be_exact_are_said_not_to_be_and_are_never_compared() -> None:
    target, _, told = inspected(Server(per_word=1), workload__extra_body={"tools": [TOOL]})
    assert len(told) == 1 and "prompts are not exact, and are not compared" in told[0]
    assert workload_of(target).build(0, 0).input_tokens is None


def test_a_length_that_nothing_explains_is_the_wrong_tokenizer_and_refused() -> None:
    behaviour = Server({"m": TEMPLATE})
    pages = behaviour.pages()
    pages["/tokenize"] = lambda body: {"count": TEMPLATE + 2 + words(json.loads(body))}
    behaviour.pages = lambda: pages  # type: ignore[method-assign]
    with pytest.raises(UsageError, match=r"counted 510 prompt tokens where .*/tokenize counts 512"):
        inspected(behaviour, workload__extra_body={"temperature": 0.5})


def test_every_model_has_prompts_of_its_own_count() -> None:
    behaviour = Server({"base": TEMPLATE, "adapter": 17})
    target, probes, told = inspected(behaviour, workload__models={"base": "70%", "adapter": "30%"})
    assert [probe.json()["model"] for probe in probes] == ["base", "adapter"] and told == []
    workload = workload_of(target)
    asked = [workload.build(0, k) for k in range(400)]
    assert all(one.input_tokens == behaviour.count(json.loads(one.body)) == 512 for one in asked)
    by_model = [json.loads(one.body)["model"] for one in asked]
    assert by_model.count("adapter") / 400 == pytest.approx(0.3, abs=0.07)
    assert [json.loads(one.body)["model"] == "adapter" for one in asked] == [one.kind == 1 for one in asked]


def test_a_class_without_a_model_takes_the_targets() -> None:
    classes = [a_class("one", "50%"), a_class("two", "50%", model="b")]
    target, probes, _ = inspected(Server({"a": TEMPLATE, "b": TEMPLATE}), workload__classes=classes)
    assert target.model == "a"
    assert [probe.json()["model"] for probe in probes] == ["a", "b"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"workload__models": {"a": "50%", "bee": "50%"}}, "workload.models is 'bee'"),
        ({"workload__classes": [a_class("one", "100%", model="bee")]}, "workload.classes.one.model is 'bee'"),
        ({"target__model": "bee"}, "target.model is 'bee'"),
    ],
)
def test_a_model_that_is_not_served_is_refused_by_the_key_that_names_it(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError) as refused:
        inspected(Server({"a": TEMPLATE, "b": TEMPLATE}), **settings)
    assert sentence in str(refused.value) and "serves 'a', 'b'" in str(refused.value)


def test_a_key_that_one_class_has_and_the_server_does_not_take_names_the_class() -> None:
    behaviour = Server()
    behaviour.refuses = "strange"
    classes = [a_class("one", "50%"), a_class("two", "50%", extra_body={"strange": 1})]
    with pytest.raises(LoadgenError, match=r"\(chat, class two\) failed \(http_400\): strange is not taken"):
        inspected(behaviour, workload__classes=classes)


def test_a_server_without_counts_of_every_event_is_asked_without_them() -> None:
    class Strict(Server):
        def __call__(self, k: int, request: Request) -> Answer:
            if "continuous_usage_stats" in (request.json().get("stream_options") or {}):
                return refusal(422, "extra fields are not permitted")
            return super().__call__(k, request)

    target, probes, _ = inspected(Strict())
    assert len(probes) == 2 and not workload_of(target).continuous_usage


def test_whole_answers_are_asked_for_without_what_belongs_to_a_stream() -> None:
    target, (probe,), _ = inspected(Server(), target__stream=False)
    assert probe.headers["accept"] == "application/json" and probe.json()["stream"] is False
    assert "stream_options" not in probe.json()
    assert not target.counts_every_event and not workload_of(target).build(0, 0).streamed


@pytest.mark.parametrize(("stream", "words"), [(True, "no usage with a stream"), (False, "no usage with an answer")])
def test_a_server_that_counts_no_tokens_is_refused(stream: bool, words: str) -> None:
    behaviour = Server()
    behaviour.usage = False
    with pytest.raises(LoadgenError, match=words):
        inspected(behaviour, target__stream=stream)


def test_every_question_carries_the_headers_and_an_own_authorization_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-environment")
    asked: dict[str, dict[str, str]] = {}
    behaviour = Server()
    with ScriptedServer(behaviour, behaviour.pages()) as server:
        give = scripted_server._Connection._give_page

        def seen(connection: Any, request: Request) -> None:
            asked[request.path] = request.headers
            give(connection, request)

        monkeypatch.setattr(scripted_server._Connection, "_give_page", seen)
        headers = ["X-Tenant: blue", f"Authorization: Bearer {TOKEN}"]
        scenario = load_scenario(None, options={"target.base_url": server.url, "target.headers": headers, "seed": 7})
        inspect(scenario, server.url, tell=print, pause=time.sleep)
    asked["probe"] = server.requests[0].headers
    assert {"/v1/models", "/tokenize", "/version", "probe"} <= set(asked)
    for path, sent in asked.items():
        assert sent.get("x-tenant") == "blue", path
        assert sent.get("authorization") == f"Bearer {TOKEN}", path


def test_a_server_that_repeats_a_secret_header_does_not_get_it_into_the_message() -> None:
    behaviour = Server()
    with ScriptedServer(lambda k, request: refusal(500, request.headers["x-api-key"]), behaviour.pages()) as server:
        scenario = load_scenario(
            None, options={"target.base_url": server.url, "target.headers": [f"X-Api-Key: {TOKEN}"], "seed": 7}
        )
        with pytest.raises(LoadgenError) as failed:
            inspect(scenario, server.url, tell=print, pause=time.sleep)
    assert TOKEN not in failed.value.report() and "<secret>" in failed.value.report()


@pytest.mark.parametrize(
    ("status", "page", "code", "told"),
    [
        (200, "<html>Welcome</html>", 2, "answers with something else than JSON, such as a web page"),
        (200, "{}", 2, "answers with JSON that is no list of models"),
        (200, '{"data": [1]}', 2, "answers with JSON that is no list of models"),
        (404, "no", 2, "lists no model"),
    ],
)
def test_what_is_no_such_server_is_refused_at_once(status: int, page: str, code: int, told: str) -> None:
    said: list[str] = []
    with PageServer(lambda _: (status, page)) as server:
        scenario = load_scenario(
            None, options={"target.base_url": server.url.removesuffix("/metrics"), "target.ready_timeout": "60s"}
        )
        begun = time.monotonic()
        with pytest.raises(LoadgenError) as refused:
            inspect(scenario, server.url.removesuffix("/metrics"), tell=said.append, pause=time.sleep)
    assert refused.value.exit_code == code and told in str(refused.value)
    assert time.monotonic() - begun < 30, "it was not waited for"
    assert [line for line in said if "404 to /v1/models" in line] == said
    assert bool(said) is (status == 404)


def test_what_speaks_no_http_is_told_and_is_no_crash() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                    connection.close()

        threading.Thread(target=greet, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        scenario = load_scenario(None, options={"target.base_url": url, "target.ready_timeout": "1s"})
        with pytest.raises(LoadgenError, match="did not answer within 1 s"):
            inspect(scenario, url, tell=[].append, pause=time.sleep)
