"""How the target is reached: its options, their refusals, and what may be written down of them."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.controller.worker import Worker, check_connections
from loadgen.errors import ScenarioError, UsageError
from loadgen.messages import Hello
from loadgen.route import Route
from loadgen.scenario.load import load_scenario
from loadgen.wire.pool import Reuse


def target(**values: Any) -> Any:
    return load_scenario(None, options={f"target.{key}": value for key, value in values.items()}).target


def refusal(**values: Any) -> str:
    with pytest.raises(ScenarioError) as refused:
        target(**values)
    return refused.value.report()


def test_by_default_connections_are_kept_without_any_limit_and_certificates_are_checked() -> None:
    plain = target()
    assert (plain.connections, plain.recycle_requests, plain.recycle_age) == ("keep-alive", None, None)
    assert (plain.max_connections, plain.proxy, plain.ca_file, plain.insecure) == (None, None, None, False)


def test_the_options_are_read_as_people_write_them() -> None:
    read = target(recycle_requests="100", recycle_age="90s", max_connections="64", connections="keep-alive")
    assert (read.recycle_requests, read.recycle_age, read.max_connections) == (100, 90.0, 64)
    assert target(proxy=" http://proxy:3128/ ").proxy == "http://proxy:3128"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"connections": "per-request", "recycle_requests": 5}, "per-request, so it has no effect"),
        ({"connections": "per-request", "recycle_age": "5s"}, "per-request, so it has no effect"),
        ({"connections": "sometimes"}, "'keep-alive' or 'per-request'"),
        ({"insecure": True, "ca_file": "root.pem"}, "the file has no effect"),
        ({"max_connections": 0}, "at least 1"),
        ({"recycle_requests": 0}, "at least 1"),
        ({"recycle_age": "0s"}, "longer than zero"),
        ({"proxy": "proxy:3128"}, "begins with http://"),
        ({"proxy": "https://proxy:3128"}, "begins with http://"),
        ({"proxy": "socks5://proxy:1080"}, "begins with http://"),
        ({"proxy": "http://proxy"}, "needs a host and a port"),
        ({"proxy": "http://proxy:99999"}, "not the URL of a proxy"),
        ({"proxy": "http://proxy:3128/path"}, "ends with its port"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(values: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(**values)


@pytest.mark.parametrize("url", ["http://me:hush/hush@proxy:3128", "http://me:hush@proxy", "https://me:hush@proxy:1"])
def test_a_refused_proxy_does_not_show_its_password(url: str) -> None:
    assert "hush" not in refusal(proxy=url)


def test_a_password_stays_out_of_the_written_scenario_which_is_otherwise_the_same() -> None:
    scenario = load_scenario(None, options={"target.proxy": "http://me:hush@proxy:3128", "seed": 1})
    text = scenario.to_yaml()
    assert "hush" not in text
    assert "proxy: http://proxy:3128" in text.replace("'", "")


def test_route_and_reuse_reach_a_worker_as_they_were() -> None:
    route = Route(insecure=False, ca_pem="-----BEGIN", proxy="http://p:1")
    reuse = Reuse(recycle_requests=3, recycle_age_ns=5, max_connections=7)
    assert Route.from_dict(route.to_dict()) == route
    assert Reuse.from_dict(reuse.to_dict()) == reuse


def workers(*hellos: Hello) -> list[Worker]:
    return [Worker(str(index), index, said, same_clock=True) for index, said in enumerate(hellos)]


def hello(boot_id: str, ports: int | None, descriptors: int = 1 << 20) -> Hello:
    return Hello("host", 1, 1, "0", boot_id, descriptors, ports)


def test_more_connections_than_a_host_has_ports_are_refused_before_any_load() -> None:
    check_connections(1000, workers(hello("a", 1000)))
    with pytest.raises(UsageError, match="1002 connections from host, more than the 1000 ports"):
        check_connections(1002, workers(hello("a", 1000), hello("a", 1000)))
    check_connections(1002, workers(hello("a", 1000), hello("b", 1000)))
    check_connections(100_000, workers(hello("a", None)))


def test_more_connections_than_open_files_are_refused_before_any_load() -> None:
    with pytest.raises(UsageError, match="open files"):
        check_connections(200, workers(hello("a", None, descriptors=200)))
