"""The controller's part in sampling a server: where the page is, who gets the key, what is told, and how long is waited."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from loadgen.controller.server_watch import ServerWatch, metrics_url
from loadgen.outputs import conditions
from loadgen.record import LevelPlan
from loadgen.report.server_table import source_text
from loadgen.route import Route
from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from loadgen.scenario.model import Scenario
from loadgen.scenario.target import Target
from tests.page_server import PageServer

PAGE = "vllm:num_requests_running 3\n"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", scenario_yaml="name: x\n", nonce="n")


def watching(folder: RunFolder, told: list[str], **target: Any) -> ServerWatch:
    return ServerWatch(folder, Target(base_url="http://127.0.0.1:1", **target), told.append, time.sleep)


def test_the_page_is_the_targets_own_unless_another_is_named_or_none() -> None:
    assert metrics_url(None, "http://host:8000/gateway") == "http://host:8000/gateway/metrics"
    assert metrics_url("http://host:9000/metrics", "http://host:8000") == "http://host:9000/metrics"
    assert metrics_url("off", "http://host:8000") is None


def test_off_and_a_url_are_what_the_scenario_takes() -> None:
    def asked(value: object) -> str | None:
        return Scenario.model_validate({"target": {"server_metrics": value}}).target.server_metrics

    assert (asked(None), asked("off"), asked(False)) == (None, "off", "off")  # `off` is False in YAML
    assert asked("http://10.0.0.1:8000/metrics") == "http://10.0.0.1:8000/metrics"
    with pytest.raises(ValueError, match="scheme"):
        asked("host:8000/metrics")


def test_a_windows_ends_are_in_the_folder_when_the_wait_for_them_is_over(folder: RunFolder) -> None:
    told: list[str] = []
    with PageServer(lambda k: (200, PAGE)) as server:
        watch = watching(folder, told)
        watch.begin(server.url.removesuffix("/metrics"), Route())
        begun_ns = time.monotonic_ns()
        plan = LevelPlan(0, 1, begun_ns + 30_000_000, begun_ns + 130_000_000)
        watch.on_window(plan)
        while time.monotonic_ns() < plan.window_end_ns:
            time.sleep(0.01)
        watch.await_end(plan)
        folder.note_level(LevelPlan(0, 1, plan.window_start_ns, plan.window_end_ns, drained_ns=time.monotonic_ns()), {})
        (level,) = RunReader(folder).drained()
        watch.end()
    first, last = level.server[0], level.server[-1]
    assert plan.window_start_ns <= first.asked_ns <= first.answered_ns
    assert last.asked_ns >= plan.window_end_ns
    assert told == []
    assert watch.describe() == {"url": server.url, "kind": "vllm", "problem": None}


def test_a_target_without_metrics_is_told_once_however_often_its_server_begins(folder: RunFolder) -> None:
    told: list[str] = []
    with PageServer(lambda k: (404, "")) as server:
        watch = watching(folder, told)
        for _ in range(2):
            watch.begin(server.url.removesuffix("/metrics"), Route())
        begun = time.monotonic()
        watch.await_end(LevelPlan(0, 1, 0, 1))
        assert time.monotonic() - begun < 2  # nothing will come, and nobody waits for it
        watch.end()
    assert told == ["no server metrics: the target has no /metrics (it answered 404)"]
    assert source_text(watch.describe()) == "none: the target has no /metrics (it answered 404)"


def test_a_switched_off_watch_asks_nobody_and_writes_nothing(folder: RunFolder) -> None:
    told: list[str] = []
    with PageServer(lambda k: (200, PAGE)) as server:
        watch = watching(folder, told, server_metrics="off")
        watch.begin(server.url.removesuffix("/metrics"), Route())
        watch.on_window(LevelPlan(0, 1, 0, 1))
        watch.await_end(LevelPlan(0, 1, 0, 1))
        watch.end()
    assert (server.asked_ns, told, folder.server_metrics.exists()) == ([], [], False)
    assert source_text(watch.describe()) == "none: they are switched off"


def test_key_and_headers_go_to_the_target_alone(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    route = Route(headers={"X-Tenant": "blue"})
    with PageServer(lambda k: (200, PAGE)) as server:
        own = watching(folder, [])
        own.begin(server.url.removesuffix("/metrics"), route)
        own.end()
        elsewhere = watching(folder, [], server_metrics=server.url)
        elsewhere.begin("http://127.0.0.1:1", route)
        elsewhere.end()
    sent = [(headers.get("Authorization"), headers.get("X-Tenant")) for headers in server.headers]
    assert sent == [("Bearer sk-secret", "blue"), (None, None)]


def test_conditions_say_whose_metrics_there_are() -> None:
    scenario = Scenario.model_validate({})
    told = {kind: {"target": {"metrics": {"url": "u", "kind": kind, "problem": None}}} for kind in ("vllm", "llamacpp")}
    assert conditions(scenario, told["vllm"])["server metrics"] == "vLLM's"
    assert conditions(scenario, told["llamacpp"])["server metrics"] == "llama.cpp's"
    assert conditions(scenario, {})["server metrics"] is None
