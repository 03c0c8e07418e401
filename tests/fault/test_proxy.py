"""Through a real HTTP proxy, forwarding and by CONNECT: the stamps stay the kernel's, and nothing tells its password."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadgen import record
from loadgen.controller.target import Target, inspect
from loadgen.errors import LoadgenError, UsageError
from loadgen.record import RequestRecord
from loadgen.route import PROXY_AUTH, Route
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario
from loadgen.wire.client import Client
from server.simulator.tokenizer import folder as tokenizer_folder
from tests.certificates import root_pem, server_context
from tests.measuring import ask, ask_all, measure
from tests.scripted_proxy import ScriptedProxy
from tests.scripted_server import Answer, Request, ScriptedServer
from tests.sse_events import DONE, FIN, NORMAL, C, U

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = pytest.mark.alone

MS = 1_000_000
INPUT_TOKENS = 40
USER, IN_URL = "me:p@ss/wörd", "me:p%40ss%2Fw%C3%B6rd"


def server_of(scheme: str, answer: Answer) -> ScriptedServer:
    return ScriptedServer(answer, tls=server_context() if scheme == "https" else None)


def through(proxy: ScriptedProxy, credentials: str = "") -> Route:
    url = f"http://{credentials}@127.0.0.1:{proxy.port}" if credentials else proxy.url
    route = Route.of(insecure=False, ca_file=None, proxy=url)
    return Route(ca_pem=root_pem(), proxy=route.proxy, proxy_auth=route.proxy_auth)


async def one(client: Client) -> list[RequestRecord]:
    return [await ask(client)]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_requests_go_through_the_proxy_and_keep_the_kernels_stamps(scheme: str) -> None:
    async def script(client: Client) -> list[RequestRecord]:
        return await ask_all(client, 4) + await ask_all(client, 4)

    with ScriptedProxy() as proxy, server_of(scheme, Answer(NORMAL(6, 60, 5), headers_at_ms=50)) as server:
        records = measure(server.url, script, route=through(proxy))
        target = f"127.0.0.1:{server.port}"
    assert [r.status for r in records] == [record.OK] * 8
    assert all(r.kernel_stamps and r.send_gap_ns is not None for r in records)
    asked = [("CONNECT", target)] * 4 if scheme == "https" else [("POST", f"{server.url}/v1/chat/completions")] * 8
    assert proxy.asked == asked
    assert proxy.connections == 4
    for r in records:
        # Neither the proxy's answer to CONNECT nor the handshake behind it is the target's answer.
        assert r.sent_ns is not None and r.response_started_ns is not None
        assert r.response_started_ns - r.sent_ns > 45 * MS
    if scheme == "http":
        assert all("proxy-authorization" not in request.headers for request in server.requests)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_proxys_credentials_reach_the_proxy_and_nobody_else(scheme: str) -> None:
    with ScriptedProxy(USER) as proxy, server_of(scheme, Answer(NORMAL(3, 5, 5))) as server:
        (got,) = measure(server.url, one, route=through(proxy, IN_URL))
    assert got.status == record.OK
    assert "authorization" not in server.requests[0].headers
    assert "proxy-authorization" not in server.requests[0].headers


@pytest.mark.parametrize(
    ("scheme", "status", "reason"),
    [("http", "http_407", ""), ("https", record.CONNECT, "the proxy answered 407: it wants other credentials")],
)
def test_missing_credentials_are_named(scheme: str, status: str, reason: str) -> None:
    with ScriptedProxy(USER) as proxy, server_of(scheme, Answer(NORMAL(3, 5, 5))) as server:
        (got,) = measure(server.url, one, route=through(proxy))
    assert got.status == status
    assert reason in got.reason


def test_a_proxy_that_refuses_the_tunnel_is_a_connect_failure() -> None:
    with ScriptedProxy(mood="refuse") as proxy, server_of("https", Answer(NORMAL(3, 5, 5))) as server:
        (got,) = measure(server.url, one, route=through(proxy))
    assert (got.status, got.reason) == (record.CONNECT, "the proxy answered 403")
    assert got.sent_ns is None


def test_a_proxy_that_hangs_up_is_a_connect_failure() -> None:
    with ScriptedProxy(mood="hang up") as proxy, server_of("https", Answer(NORMAL(3, 5, 5))) as server:
        (got,) = measure(server.url, one, route=through(proxy))
    assert (got.status, got.reason) == (record.CONNECT, "the proxy closed the connection before it answered")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_not_there_is_a_connect_failure_without_its_address(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    route = Route(proxy=f"http://127.0.0.1:{port}", proxy_auth="me:secret")
    (got,) = measure(f"{scheme}://127.0.0.1:9", one, route=route)
    assert (got.status, got.reason) == (record.CONNECT, "the proxy: ConnectionRefusedError: Connection refused")


def test_a_bad_certificate_behind_the_tunnel_is_refused_by_its_name() -> None:
    with ScriptedProxy() as proxy, ScriptedServer(NORMAL(3, 5, 5), tls=server_context(expired=True)) as server:
        (got,) = measure(server.url, one, route=through(proxy))
    assert (got.status, got.reason) == (record.CONNECT, "the server's certificate has expired")


def test_a_stream_cut_behind_the_tunnel_is_one_record_and_the_next_request_is_served() -> None:
    def answer(k: int, _: Request) -> Answer:
        return Answer([(1, C("a")), (5, C("b"))], end="close") if k == 0 else Answer(NORMAL(3, 20, 5))

    async def script(client: Client) -> list[RequestRecord]:
        return [await ask(client, 0), await ask(client, 1)]

    with ScriptedProxy() as proxy, ScriptedServer(answer, tls=server_context()) as server:
        failed, following = measure(server.url, script, route=through(proxy))
    assert (failed.status, following.status) == (record.TRUNCATED, record.OK)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_proxies_of_the_environment_are_not_taken(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedProxy() as proxy, server_of(scheme, Answer(NORMAL(3, 5, 5))) as server:
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        (got,) = measure(server.url, one, route=Route(ca_pem=root_pem()))
    assert got.status == record.OK
    assert not proxy.asked


def test_credentials_stay_out_of_what_is_written_and_sent_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario(None, options={"target.proxy": "http://me:secret@127.0.0.1:3128", "seed": 1})
    assert "secret" not in scenario.to_yaml()
    assert "secret" not in repr(scenario)
    route = Route.of(insecure=False, ca_file=None, proxy=scenario.target.proxy)
    assert "secret" not in repr(route)
    assert "secret" not in str(route.to_dict())
    for name, value in route.environment().items():
        monkeypatch.setenv(name, value)
    assert Route.from_dict(route.to_dict()) == route


def test_credentials_of_the_environment_are_those_of_a_proxy_without_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROXY_AUTH, "me:secret")
    assert Route.of(insecure=False, ca_file=None, proxy="http://p:1").proxy_auth == "me:secret"
    assert Route.of(insecure=False, ca_file=None, proxy="http://you:x@p:1").proxy_auth == "you:x"
    assert Route.of(insecure=False, ca_file=None, proxy=None).proxy_auth is None


def scenario_for(url: str, **target: object) -> Scenario:
    options = {
        "target.base_url": url,
        "workload.tokenizer": str(tokenizer_folder()),
        "workload.input_tokens": INPUT_TOKENS,
        "workload.output_tokens": 2,
        "workload.ignore_eos": False,
        "seed": 7,
    }
    return load_scenario(None, options=options | {f"target.{key}": value for key, value in target.items()})


def looked_at(scenario: Scenario) -> tuple[Target, list[str]]:
    """The target as a run inspects it before any load, and the sentences that were told."""
    assert scenario.target.base_url is not None
    told: list[str] = []
    return inspect(scenario, scenario.target.base_url, tell=told.append, pause=time.sleep), told


ANSWER = Answer([(5, C("a") + C("b")), (6, FIN("length") + U(INPUT_TOKENS, 2) + DONE)])


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_target_is_inspected_through_the_same_proxy(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")  # for others; the load does not look at it either
    (tmp_path / "root.pem").write_text(root_pem())
    with ScriptedProxy(USER) as proxy, server_of(scheme, ANSWER) as server:
        scenario = scenario_for(
            server.url, proxy=f"http://{IN_URL}@127.0.0.1:{proxy.port}", ca_file=str(tmp_path / "root.pem")
        )
        target, _ = looked_at(scenario)
    assert target.kernel_stamps
    assert target.describe()["arrival_stamps"] == "kernel"
    assert target.describe()["proxy"] == proxy.url
    if scheme == "https":
        assert {method for method, _ in proxy.asked} == {"CONNECT"}
    else:
        assert [url.removeprefix(server.url) for _, url in proxy.asked] == [
            "/v1/models",
            "/v1/chat/completions",
            "/version",
        ]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_wants_credentials_is_refused_at_once(scheme: str) -> None:
    with (
        ScriptedProxy(USER) as proxy,
        server_of(scheme, ANSWER) as server,
        pytest.raises(UsageError, match="wants a user and password") as refused,
    ):
        looked_at(scenario_for(server.url, proxy=f"http://me:secret@127.0.0.1:{proxy.port}"))
    assert "secret" not in refused.value.report()


def test_a_certificate_that_cannot_be_trusted_is_refused_at_once_and_says_how_to_trust_it() -> None:
    with ScriptedServer(ANSWER, tls=server_context()) as server:
        with pytest.raises(LoadgenError, match="not trusted here") as refused:
            looked_at(scenario_for(server.url))
        target, _ = looked_at(scenario_for(server.url, insecure=True))
    assert "--ca-file" in refused.value.report()
    assert target.describe()["insecure"] is True


def test_a_proxy_of_the_environment_that_is_not_taken_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://me:secret@127.0.0.1:9")
    with ScriptedServer(ANSWER) as server:
        _, told = looked_at(scenario_for(server.url))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        _, nothing = looked_at(scenario_for(server.url))
    assert len(told) == 1
    assert "HTTP_PROXY" in told[0] and "--proxy" in told[0] and "secret" not in told[0]
    assert nothing == []


def test_a_whole_run_goes_through_a_tunnel_with_credentials_that_no_file_holds(tmp_path: Path) -> None:
    (tmp_path / "root.pem").write_text(root_pem())
    out = tmp_path / "out"
    with ScriptedProxy("me:hush-hush") as proxy, ScriptedServer(ANSWER, tls=server_context()) as server:
        url = f"http://me:hush-hush@127.0.0.1:{proxy.port}"
        ended = subprocess.run(
            [sys.executable, "-m", "loadgen", "run", "--base-url", server.url, "-o", str(out), "--metrics-port", "off"]
            + ["--tokenizer", str(tokenizer_folder()), "--input-tokens", str(INPUT_TOKENS), "--output-tokens", "2"]
            + ["--no-ignore-eos", "--ca-file", str(tmp_path / "root.pem"), "--concurrency", "2"]
            + ["--warmup", "0.5s", "--duration", "1s", "--recycle-requests", "5", "--max-connections", "2"],
            env={**os.environ, "LOADGEN_TARGET_PROXY": url},
            capture_output=True,
            text=True,
            timeout=90,
        )
    assert ended.returncode in (0, 3), ended.stderr  # too few samples for a valid level
    (level,) = json.loads((out / "summary.json").read_text())["levels"]
    provenance = json.loads((out / "provenance.json").read_text())
    assert level["client"]["kernel_stamps"] == 1.0
    assert level["requests"]["ok"] == sum(level["requests"].values()) > 20
    assert provenance["target"]["arrival_stamps"] == "kernel"
    assert provenance["target"]["proxy"] == proxy.url
    assert {method for method, _ in proxy.asked} == {"CONNECT"}
    assert server.connections >= len(server.requests) // 5
    said = ended.stdout.encode() + ended.stderr.encode()
    assert b"hush-hush" not in said + b"".join(file.read_bytes() for file in out.rglob("*") if file.is_file())
