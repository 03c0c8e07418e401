"""The push at the end of a run: what a gateway gets, and that one which fails costs nothing but a warning."""

import contextlib
import http.server
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from gevent.event import Event
from prometheus_client.parser import text_string_to_metric_families

from loadgen.controller.live import LiveRun
from loadgen.errors import ScenarioError
from loadgen.metrics.level_series import textfile
from loadgen.scenario.load import load_scenario
from loadgen.stats.level import level_object
from tests.fleet.test_run import free_port
from tests.level_records import closed_loop, plan

LEVELS = [level_object(plan(level=n, concurrency=2 + n), closed_loop(2 + n, 20), []) for n in range(2)]


@dataclass(frozen=True, slots=True)
class Push:
    method: str
    path: str
    content_type: str
    body: bytes


@contextlib.contextmanager
def gateway(status: int = 200, said: bytes = b"") -> Iterator[tuple[str, list[Push]]]:
    """A gateway that gives one answer, and what it was sent."""
    pushes: list[Push] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            pushes.append(Push(self.command, self.path, self.headers["Content-Type"], body))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", pushes
        finally:
            server.shutdown()
            thread.join()


def finish_run(url: str, levels: int = 2) -> None:
    """The end of a run with so many finished levels."""
    scenario = load_scenario(None, options={"name": "chat", "metrics.port": "off", "metrics.pushgateway": url})
    live = LiveRun(scenario)
    live.set_model("m")
    for level in LEVELS[:levels]:
        live.add_level(level)
    live.finish([], Event())


def test_a_gateway_gets_the_finished_levels_as_metrics_prom_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    with gateway() as (url, pushes):
        finish_run(url)
    (push,) = pushes
    assert (push.method, push.path) == ("PUT", "/metrics/job/loadgen/instance/chat")
    assert push.content_type.startswith("text/plain; version=0.0.4")
    assert push.body == textfile(LEVELS, "chat", "m")
    assert capsys.readouterr().err == f"pushed to {url} (job loadgen, instance chat)\n"


def test_a_gateway_behind_a_path_is_found_there() -> None:
    with gateway() as (url, pushes):
        finish_run(f"{url}/gateway/v1/")
    assert pushes[0].path == "/gateway/v1/metrics/job/loadgen/instance/chat"


def test_nothing_is_pushed_over_the_last_runs_series_when_no_level_has_ended() -> None:
    with gateway() as (url, pushes):
        finish_run(url, levels=0)
    assert not pushes


def test_a_push_that_is_refused_is_a_warning_with_the_gateways_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with gateway(400, b"pushed metrics are invalid\nin detail") as (url, _):
        finish_run(url)
    said = capsys.readouterr().err
    assert said.startswith(
        f"warning: The metrics could not be pushed to the Pushgateway at {url}: "
        "it answered 400 Bad Request (pushed metrics are invalid).\nhint: "
    )
    assert "metrics.prom" in said.splitlines()[-1]


def test_a_gateway_that_is_not_there_is_a_warning_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    finish_run(url)
    assert f"Pushgateway at {url}: Connection refused.\nhint: " in capsys.readouterr().err


def test_a_gateway_that_is_no_http_server_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    with gateway(200) as (url, _):
        finish_run(url.replace("http://", "https://"))
    said = capsys.readouterr().err
    assert said.startswith("warning: The metrics could not be pushed") and "hint: " in said


@pytest.mark.parametrize("url", ["gateway:9091", "http://user:secret@gateway:9091", "http://gateway:9091/?job=x"])
def test_an_address_that_is_none_is_refused_before_the_run_with_its_option(url: str) -> None:
    with pytest.raises(ScenarioError, match=r"pushgateway") as refused:
        load_scenario(None, options={"metrics.pushgateway": url}, option_names={"metrics.pushgateway": "--pushgateway"})
    assert "--pushgateway" in refused.value.report()
    assert "secret" not in refused.value.report()


@pytest.mark.skipif(shutil.which("prometheus-pushgateway") is None, reason="the Pushgateway is not installed")
def test_the_real_gateway_shows_the_levels_under_the_scenarios_name(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}"
    with (tmp_path / "log").open("wb") as log:
        command = ["prometheus-pushgateway", f"--web.listen-address=127.0.0.1:{port}", "--persistence.file="]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 10
            while True:
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                    break
                assert time.monotonic() < deadline
                time.sleep(0.1)
            finish_run(url)
            with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
                families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
        finally:
            process.terminate()
            process.wait(10)
    shown = {
        sample.labels["concurrency"]: sample.value
        for sample in families["loadgen_level_ttft_seconds"].samples
        if (sample.labels["job"], sample.labels["instance"], sample.labels.get("quantile"))
        == ("loadgen", "chat", "0.95")
    }
    assert shown == {str(level["concurrency"]): level["p95_ttft_ms"] / 1e3 for level in LEVELS}
