"""Guardrails: caps and consent are checked before anything is sent; a run that harms its target stops."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.controller.consent import check_consent
from loadgen.controller.guard import Guard
from loadgen.errors import SafetyStopError, ScenarioError, UsageError
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario
from loadgen.scenario.safety import Safety
from loadgen.server_metrics.sample import Buckets, ServerSample


class Told:
    """What a worker and the server tell a guard, second by second of a clock that is set."""

    def __init__(self, **safety: Any) -> None:
        self.now_s = 0.0
        self.guard = Guard(Safety(**safety), clock=lambda: self.now_s)
        self.requests: dict[str, int] = {"ok": 0, "http_503": 0, "cancelled": 0}
        self.ttft: tuple[float, float] = (0.0, 0.0)
        self.started_s = 1.0

    def second(self, **ended: int) -> None:
        self.now_s += 1
        for status, count in ended.items():
            self.requests[status] += count
        observed, sum_s = self.ttft
        sample = ServerSample(
            0,
            0,
            kind="vllm",
            started_s=self.started_s,
            histograms={"ttft": Buckets((float("inf"),), (observed,), sum_s)},
        )
        self.guard.look([{"requests": dict(self.requests)}, {}], sample)


def test_a_run_whose_requests_fail_stops_once_and_says_why() -> None:
    told = Told(stop_on_error_rate=0.2, period=10.0)
    for _ in range(20):
        told.second(ok=9, http_503=1)
    with pytest.raises(
        SafetyStopError, match=r"of \d+ requests failed over the last 10 s.*safety\.stop_on_error_rate, 0\.2"
    ):
        for _ in range(10):
            told.second(ok=5, http_503=5)
    told.second(http_503=50)  # what is drained does not stop it again


def test_failures_long_ago_do_not_stop_a_run() -> None:
    told = Told(stop_on_error_rate=0.2, period=10.0)
    for _ in range(5):
        told.second(ok=10)
    told.second(http_503=8)
    for _ in range(30):
        told.second(ok=10)
    told.second(http_503=8)


def test_a_few_requests_say_nothing_and_what_we_cancelled_is_no_failure() -> None:
    told = Told(stop_on_error_rate=0.1, period=10.0)
    told.second()
    told.second(http_503=9)
    told = Told(stop_on_error_rate=0.1, period=10.0)
    told.second()
    told.second(cancelled=100, ok=1)


def test_users_who_send_more_than_the_cap_stop_the_run() -> None:
    told = Told(max_request_rate=5, period=10.0)
    for _ in range(30):
        told.second(ok=5)
    with pytest.raises(SafetyStopError, match=r"requests a second ended .*safety\.max_request_rate, 5"):
        for _ in range(11):
            told.second(ok=7)


def test_other_peoples_latency_stops_the_run_by_the_servers_own_count() -> None:
    told = Told(stop_on_server_ttft=1.0, period=10.0)
    for second in range(20):
        told.ttft = (10.0 * second, 5.0 * second)
        told.second(ok=1)
    told.started_s, told.ttft = 2.0, (0.0, 0.0)  # it began anew: a falling count is no latency
    told.second(ok=1)
    with pytest.raises(SafetyStopError, match=r"everybody's requests.*longer than safety\.stop_on_server_ttft, 1 s"):
        for second in range(10):
            told.ttft = (10.0 * second, 25.0 * second)
            told.second(ok=1)


def test_without_limits_nothing_stops() -> None:
    told = Told()
    for _ in range(100):
        told.second(http_503=100)


def scenario(**target: Any) -> Scenario:
    return Scenario.model_validate({"target": target})


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.9", "169.254.1.1", "fd00::1", "100.64.0.1"]
)
def test_a_loopback_or_private_target_needs_no_consent(address: str) -> None:
    check_consent(scenario(base_url="http://h:8000"), lambda host: [address])


def test_the_simulator_needs_no_consent() -> None:
    check_consent(scenario(server="sim"), lambda host: pytest.fail("nobody has to be asked"))


@pytest.mark.parametrize("addresses", [["8.8.8.8"], ["10.0.0.1", "2606:4700::1111"]])
def test_a_public_target_is_refused_without_consent_with_exit_2(addresses: list[str]) -> None:
    asked = scenario(base_url="https://llm.example.com/v1")
    with pytest.raises(
        UsageError, match=r"llm\.example\.com \(.*\) is neither this host nor on a private network"
    ) as error:
        check_consent(asked, lambda host: addresses)
    assert error.value.exit_code == 2 and "--i-own-this-target" in str(error.value.hint)
    consented = asked.model_copy(update={"safety": Safety(own_target=True)})
    check_consent(consented, lambda host: addresses)


def test_a_name_that_only_a_proxy_knows_needs_consent_and_an_unknown_one_is_left_to_connecting() -> None:
    with pytest.raises(UsageError, match="only the proxy knows"):
        check_consent(scenario(base_url="http://inside:80", proxy="http://127.0.0.1:3128"), lambda host: [])
    check_consent(scenario(base_url="http://inside:80"), lambda host: [])


def test_a_literal_address_is_looked_at_without_a_resolver() -> None:
    with pytest.raises(UsageError, match=r"8\.8\.8\.8 is neither"):
        check_consent(scenario(base_url="http://8.8.8.8:8000"))
    check_consent(scenario(base_url="http://[::1]:8000"))


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (
            ["load.concurrency=4,16", "safety.max_in_flight=8"],
            "load.concurrency allows 16 requests in flight, more than",
        ),
        (["load.request_rate=2", "safety.max_in_flight=8"], "load.max_in_flight, must be given"),
        (["load.request_rate=2", "load.max_in_flight=9", "safety.max_in_flight=8"], "load.max_in_flight allows 9"),
        (["load.request_rate=2,6", "safety.max_request_rate=5"], "asks for 6 requests a second, more than"),
        (["load.stages=30s:2,30s:2-9", "safety.max_request_rate=5"], "asks for 9 requests a second"),
        (["soak.window=1m"], "load.duration says how long the soak lasts"),
        (["soak.window=1m", "load.duration=30s"], "shorter than soak.window"),
    ],
)
def test_a_scenario_beyond_its_own_caps_is_refused(sets: list[str], words: str) -> None:
    with pytest.raises(ScenarioError, match=words.replace(".", r"\.")):
        load_scenario(None, sets=sets)


def test_a_scenario_within_its_caps_is_taken() -> None:
    caps = ["safety.max_in_flight=8", "safety.max_request_rate=5"]
    assert load_scenario(None, sets=["load.concurrency=1,8", *caps]).safety.max_in_flight == 8
    assert load_scenario(None, sets=["load.request_rate=5", "load.max_in_flight=8", *caps]).load.max_in_flight == 8
