"""Servers that are not vLLM, before any load: what they lack is found once and stated, or refused in words that help."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from loadgen.controller.target import Target, inspect
from loadgen.errors import LoadgenError, UsageError
from loadgen.outputs import conditions
from loadgen.scenario.load import load_scenario
from tests.sse_events import DONE, FIN, ROLE, C, U

TEMPLATE = 5
HEALTH = {"/health": (200, {"status": "ok"})}

Pages = Mapping[str, tuple[int, object]]


def words(body: Mapping[str, Any]) -> int:
    return TEMPLATE + len(body["messages"][0]["content"].split())


@contextmanager
def serving(pages: Pages, refuses: str | None = None) -> Iterator[str]:
    """A server of whole words; 422 to a body that has the key `refuses`, 404 to paths that are not in `pages`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(*pages.get(self.path, (404, {"detail": "Not Found"})))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/tokenize":
                self.answer(200, {"count": words(body)})
            elif refuses in body:
                self.answer(422, {"detail": f"Unexpected fields in the request: {{'{refuses}'}}"})
            else:
                n = body["max_tokens"]
                stream = ROLE + C("x") * n + FIN("length") + U(words(body), n) + DONE
                self.answer(200, stream, "text/event-stream")

        def answer(self, code: int, content: object, media_type: str = "application/json") -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def inspected(pages: Pages, *, refuses: str | None = None, **options: Any) -> tuple[Target, dict[str, Any]]:
    """What is known of the server, and the conditions that a report states of it."""
    with serving(pages, refuses) as url:
        given = {key.replace("__", "."): value for key, value in options.items()}
        scenario = load_scenario(None, options={"target.base_url": url, "seed": 7, **given})
        target = inspect(scenario, url, tell=lambda _: None, pause=time.sleep)
        return target, conditions(scenario, {"target": target.describe()})


def models(*names: str) -> dict[str, tuple[int, object]]:
    return {"/v1/models": (200, {"data": [{"id": name} for name in names]})}


def test_what_a_server_lacks_is_stated_in_provenance_and_conditions() -> None:
    target, stated = inspected(models("m"))
    assert target.describe()["lacks"] == ["a version", "token counts in each event"]
    assert stated["server lacks"] == "a version, token counts in each event"
    assert target.describe()["tokens_counted_per_event"] is False


@pytest.mark.parametrize(
    ("path", "page", "version"),
    [
        ("/version", {"version": "0.32.0"}, "0.32.0"),
        ("/api/version", {"version": "0.13.1"}, "Ollama 0.13.1"),
        ("/props", {"build_info": "b11549-abc"}, "llama.cpp b11549-abc"),
        ("/info", {"version": "3.3.4"}, "TGI 3.3.4"),
        ("/server_info", {"version": "0.5.6"}, "SGLang 0.5.6"),
    ],
)
def test_a_version_is_found_where_the_server_tells_it(path: str, page: object, version: str) -> None:
    target, stated = inspected({**models("m"), path: (200, page)})
    assert target.version == version and stated["server version"] == version
    assert target.lacks == ("token counts in each event",)


def test_a_broken_list_of_models_is_done_without_when_the_server_is_healthy_and_the_model_is_named() -> None:
    pages = {"/v1/models": (500, "Internal Server Error"), **HEALTH}
    target, _ = inspected(pages, target__model="/models/m")
    assert target.model == "/models/m" and "a list of models" in target.lacks


def test_without_a_name_or_without_health_a_broken_list_is_waited_for() -> None:
    pages = {"/v1/models": (500, "Internal Server Error")}
    for given, more in ((pages, {"target__model": "m"}), ({**pages, **HEALTH}, {})):
        with pytest.raises(LoadgenError, match="it answered 500 to /v1/models"):
            inspected(given, target__ready_timeout="10ms", **more)


@pytest.mark.parametrize("name", ["smollm2", "smollm2:135m"])
def test_ollamas_tag_may_be_left_out(name: str) -> None:
    target, _ = inspected(models("other", "smollm2:latest", "smollm2:135m"), target__model=name)
    assert target.model == name


def test_a_folder_is_served_although_it_is_not_listed() -> None:
    assert inspected(models("org/cached"), target__model="/models/mine")[0].model == "/models/mine"


def test_another_name_that_is_not_listed_is_still_refused() -> None:
    with pytest.raises(UsageError, match="serves 'smollm2:135m'"):
        inspected(models("smollm2:135m"), target__model="smollm2")


def test_a_server_that_refuses_forced_lengths_says_what_to_set() -> None:
    with pytest.raises(UsageError, match="refuses ignore_eos and min_tokens") as refused:
        inspected(models("m"), refuses="ignore_eos")
    assert "--no-ignore-eos" in (refused.value.hint or "")
    target, stated = inspected(models("m"), refuses="ignore_eos", workload__ignore_eos=False)
    assert target.model == "m" and stated["output"].endswith("at most")
