"""Guardrails: caps and consent are checked before anything is sent; a run that harms its target stops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from loadgen.controller.consent import check_consent
from loadgen.controller.guard import Guard, check_server_ttft
from loadgen.errors import SafetyStopError, ScenarioError, UsageError
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario
from loadgen.scenario.safety import Safety
from loadgen.server_metrics.sample import Buckets, ServerSample


@dataclass
class Reports:
    """A worker, as far as its reports go."""

    index: int = 0
    live: dict[str, Any] = field(default_factory=dict)
    live_s: float = 0.0
    lost: bool = False


class Told:
    """What two workers and the server tell a guard, second by second of a clock that is set. The second has nothing to do."""

    def __init__(self, *, open_loop: bool = False, **safety: Any) -> None:
        self.now_s = 0.0
        self.guard = Guard(Safety(**safety), open_loop=open_loop, clock=lambda: self.now_s)
        self.level: int | None = 0
        self.requests: dict[str, int] = {"ok": 0, "http_503": 0, "cancelled": 0}
        self.in_flight = 0
        self.owed_s: float | None = None
        self.heard_ago_s: float | None = None
        self.first_tokens, self.ttft_s = 0, 0.0
        self.waiting: tuple[int, float] = (0, 0.0)
        self.busy, self.idle = Reports(0), Reports(1)
        self.server_ttft: tuple[float, float] | None = (0.0, 0.0)
        self.started_s = 1.0

    def second(self, **ended: int) -> None:
        self.now_s += 1
        for status, count in ended.items():
            self.requests[status] += count
        self.busy.live = {
            "requests": dict(self.requests),
            "in_flight": self.in_flight,
            "begun": sum(self.requests.values()) + self.in_flight,
            "answers": {
                "owed_ns": _ns(self.owed_s),
                "heard_ago_ns": _ns(self.heard_ago_s),
                "first_tokens": self.first_tokens,
                "ttft_ns": round(self.ttft_s * 1e9),
                "waiting_long": self.waiting[0],
                "waiting_long_ns": round(self.waiting[1] * 1e9),
            },
        }
        nothing = {"owed_ns": None, "heard_ago_ns": None, "first_tokens": 0, "ttft_ns": 0}
        self.idle.live = {"requests": {}, "begun": 0, "answers": nothing | {"waiting_long": 0, "waiting_long_ns": 0}}
        self.busy.live_s = self.idle.live_s = self.now_s
        self.guard.look([self.busy, self.idle, Reports(2)], self.sample(), self.level)

    def sample(self) -> ServerSample:
        if self.server_ttft is None:
            return ServerSample(0, 0, error="it answered 503")
        observed, sum_s = self.server_ttft
        ttft = Buckets((float("inf"),), (observed,), sum_s)
        return ServerSample(0, 0, kind="vllm", started_s=self.started_s, histograms={"ttft": ttft})


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def test_a_run_whose_requests_fail_stops_once_and_says_why() -> None:
    told = Told(stop_on_error_rate=0.2, period=10.0)
    for _ in range(20):
        told.second(ok=9, http_503=1)
    with pytest.raises(
        SafetyStopError, match=r"of \d+ requests failed over the last 10 s.*safety\.stop_on_error_rate, 20 %"
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
    with pytest.raises(SafetyStopError, match=r"requests a second were sent .*safety\.max_request_rate, 5") as error:
        for _ in range(11):
            told.second(ok=7)
    assert "think_time" in str(error.value.hint)


def test_an_open_loop_that_exceeds_its_cap_is_not_told_to_become_one() -> None:
    told = Told(open_loop=True, max_request_rate=5, period=10.0)
    with pytest.raises(SafetyStopError) as error:
        for _ in range(30):
            told.second(ok=7)
    assert "open loop" not in str(error.value.hint) and "think_time" not in str(error.value.hint)
    assert "load.overflow drop" in str(error.value.hint)


def test_a_server_that_pauses_and_catches_up_does_not_make_the_rate_of_what_is_sent_higher() -> None:
    told = Told(open_loop=True, max_request_rate=5, period=5.0)
    for second in range(40):
        paused = second % 10 < 4
        told.in_flight += 5
        done = 0 if paused else told.in_flight
        told.in_flight -= done
        told.second(ok=done)


@pytest.mark.parametrize("late_s", [0.0, 0.9])
def test_arrivals_at_just_the_cap_do_not_stop_a_run_however_the_reports_fall(late_s: float) -> None:
    told = Told(open_loop=True, max_request_rate=0.5, period=3.0)
    workers = [told.busy, told.idle]
    for look in range(200):
        told.now_s = look * 0.5
        at_s = told.now_s - told.now_s % 1 + (late_s if look % 4 else 0.0)
        for worker in workers:
            answers = {"owed_ns": None, "heard_ago_ns": None, "first_tokens": 0, "ttft_ns": 0}
            answers |= {"waiting_long": 0, "waiting_long_ns": 0}
            worker.live = {"begun": int(at_s / 4) + 1, "answers": answers}
            worker.live_s = at_s
        told.guard.look(workers, None, 0)


def test_other_peoples_latency_stops_the_run_by_the_servers_own_count() -> None:
    told = Told(stop_on_server_ttft=1.0, period=10.0)
    for second in range(20):
        told.server_ttft = (10.0 * second, 5.0 * second)
        told.second(ok=1)
    told.started_s, told.server_ttft = 2.0, (0.0, 0.0)  # it began anew: a falling count is no latency
    told.second(ok=1)
    with pytest.raises(SafetyStopError, match=r"everybody's requests.*longer than safety\.stop_on_server_ttft, 1 s"):
        for second in range(10):
            told.server_ttft = (10.0 * second, 25.0 * second)
            told.second(ok=1)


def test_a_target_that_sends_nothing_while_requests_are_in_flight_stops_the_run() -> None:
    told = Told(stop_on_stall=3.0)
    told.in_flight, told.owed_s, told.heard_ago_s = 4, 8.0, 0.1
    for _ in range(9):
        told.second()
    with pytest.raises(
        SafetyStopError, match=r"with 4 requests in flight .* no answer for 3\.1 s; safety\.stop_on_stall is 3 s"
    ):
        for _ in range(4):
            told.owed_s += 1
            told.heard_ago_s += 1
            told.second()
    assert told.now_s == 12
    told.second()  # what is drained does not stop it again


def test_a_target_that_never_answers_stops_the_run() -> None:
    told = Told(stop_on_stall=3.0)
    told.in_flight = 1
    with pytest.raises(SafetyStopError, match="with 1 request in flight"):
        for second in range(9):
            told.owed_s = float(second)
            told.second()


def test_a_wait_within_the_duration_is_no_stall_and_nothing_in_flight_neither() -> None:
    told = Told(stop_on_stall=3.0)
    told.heard_ago_s = 100.0  # before the users had a pause
    for second in range(30):
        told.in_flight, told.owed_s = 2, second % 3
        told.second()
    told.in_flight, told.owed_s = 0, None
    for _ in range(30):
        told.second()


def test_what_one_worker_hears_is_no_stall_for_the_others() -> None:
    told = Told(stop_on_stall=3.0)
    told.in_flight, told.owed_s, told.heard_ago_s = 1, 60.0, 20.0
    told.idle.live = {"in_flight": 1, "answers": {"owed_ns": 10**9, "heard_ago_ns": 0}}
    told.busy.live = {"in_flight": 1, "answers": {"owed_ns": 60 * 10**9, "heard_ago_ns": 20 * 10**9}}
    for second in range(1, 20):
        told.now_s = told.busy.live_s = told.idle.live_s = second
        told.guard.look([told.busy, told.idle], None, 0)
    # One that is silent, and may have heard something, keeps the guard from judging until it is known as lost.
    for second in range(20, 30):
        told.now_s = told.busy.live_s = second
        told.guard.look([told.busy, told.idle], None, 0)
    told.idle.lost = True
    told.now_s += 1
    with pytest.raises(SafetyStopError, match="with 1 request in flight"):
        told.guard.look([told.busy, told.idle], None, 0)


def test_drains_and_restarts_are_no_stalls_and_a_level_begins_anew() -> None:
    told = Told(stop_on_stall=3.0, stop_on_ttft=1.0, period=5.0)
    told.in_flight, told.owed_s, told.heard_ago_s, told.waiting = 4, 60.0, 60.0, (4, 240.0)
    told.level = None
    for _ in range(30):
        told.second()
    told.level = 1
    told.second()
    told.second()
    told.level = 2
    told.second()
    told.second()
    with pytest.raises(SafetyStopError, match="stop_on_stall"):
        for _ in range(3):
            told.second()


def test_a_long_mean_ttft_of_our_own_requests_stops_the_run() -> None:
    told = Told(stop_on_ttft=2.0, period=10.0)
    for second in range(30):
        told.first_tokens, told.ttft_s = 4 * second, 4.0 * second
        told.second(ok=4)
    with pytest.raises(SafetyStopError, match=r"the mean TTFT was .* longer than safety\.stop_on_ttft, 2 s"):
        for _ in range(10):
            told.first_tokens, told.ttft_s = told.first_tokens + 4, told.ttft_s + 16.0
            told.second(ok=4)


def test_requests_that_wait_too_long_count_where_no_token_comes() -> None:
    told = Told(stop_on_ttft=2.0, period=5.0)
    told.first_tokens, told.ttft_s, told.in_flight = 3, 1.5, 2
    told.second()
    with pytest.raises(SafetyStopError, match=r"0 first tokens came, and 2 requests had waited longer"):
        for second in range(20):
            told.waiting = (2, 2.0 * second) if second > 2 else (0, 0.0)
            told.second()
    assert told.now_s == 6  # few requests tell only after a whole period


def test_one_slow_request_among_many_does_not_stop_a_run() -> None:
    told = Told(stop_on_ttft=2.0, period=10.0)
    for second in range(30):
        told.first_tokens, told.ttft_s, told.waiting = 4 * second, 4.0 * second, (1, 2.1 + second % 20)
        told.second(ok=4)


def test_server_metrics_that_stay_away_under_load_stop_a_run_that_rests_on_them() -> None:
    told = Told(stop_on_server_ttft=1.0, period=10.0)
    told.second()
    told.server_ttft, told.level = None, None
    for _ in range(60):
        told.second()  # the server is restarted, say
    told.level = 1
    with pytest.raises(SafetyStopError, match=r"told no TTFT for \d+ s, and safety\.stop_on_server_ttft rests on them"):
        for _ in range(40):
            told.second(ok=1)
    assert told.now_s == 88


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (ServerSample(0, 0, "the target has no /metrics (it answered 404)"), r"no /metrics \(it answered 404\)"),
        (ServerSample(0, 0, kind="llamacpp"), "http://h/metrics has no histogram of it"),
        (None, "http://h/metrics has not answered yet"),
    ],
)
def test_a_stop_on_the_servers_ttft_is_refused_where_the_server_tells_none(
    first: ServerSample | None, why: str
) -> None:
    check_server_ttft(Safety(), "http://h/metrics", first)
    check_server_ttft(Safety(stop_on_server_ttft=1.0), "http://h/metrics", Told().sample())
    with pytest.raises(UsageError, match=f"safety.stop_on_server_ttft is 1 s, .*{why}") as error:
        check_server_ttft(Safety(stop_on_server_ttft=1.0), "http://h/metrics", first)
    assert error.value.exit_code == 2 and "--stop-on-ttft" in str(error.value.hint)


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
        (
            ["load.request_rate=4", "safety.max_request_rate=4", "safety.period=5s"],
            "asks for 4 requests a second, and over safety.period, 5 s, up to 7.58 a second come by chance",
        ),
        (
            ["load.request_rate=4", "load.burstiness=0.25", "safety.max_request_rate=7", "safety.period=20s"],
            "up to 7.58 a second come by chance",
        ),
        (
            ["load.request_rate=2,6", "safety.max_request_rate=5", "load.arrival=constant"],
            "with safety.period 30 s the cap that would do is 6.",
        ),
        (
            ["safety.stop_on_server_ttft=1s", "target.server_metrics=off"],
            "safety.stop_on_server_ttft looks at the server's own metrics, and target.server_metrics is off",
        ),
        (["safety.stop_on_ttft=1s", "target.stream=false"], "no answer is asked for as a stream"),
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
    even = ["load.request_rate=5", "load.arrival=constant", "load.max_in_flight=8"]
    assert load_scenario(None, sets=[*even, *caps]).load.max_in_flight == 8
    chance = ["load.request_rate=4", "safety.max_request_rate=7.58", "safety.period=5s"]
    assert load_scenario(None, sets=chance).safety.max_request_rate == 7.58
