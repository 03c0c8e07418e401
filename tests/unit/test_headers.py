"""Headers of a scenario: how they are written, which are refused, and that no secret among them is ever written down."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from loadgen.cli.options import scenario_from
from loadgen.errors import ScenarioError, UsageError
from loadgen.headers import is_secret, parse_headers, secrets_of, variable_of, with_references, without_secrets
from loadgen.route import Route
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario

TOKEN = "tk-4711-very-secret"


def scenario(**target: Any) -> Scenario:
    return load_scenario(None, options={f"target.{key}": value for key, value in target.items()})


def refusal(headers: object) -> str:
    with pytest.raises(ScenarioError) as refused:
        scenario(headers=headers)
    return refused.value.report()


@pytest.mark.parametrize(
    "written",
    [
        {"X-Tenant": "blue", "X-Priority": 3},
        ["X-Tenant: blue", "X-Priority:3"],
        ["X-Tenant=blue", "X-Priority = 3"],
        "X-Tenant: blue\n X-Priority: 3 \n",
    ],
)
def test_headers_are_read_as_people_write_them(written: object) -> None:
    assert parse_headers(written) == {"X-Tenant": "blue", "X-Priority": "3"}


def test_a_value_may_hold_colons_and_equals_signs() -> None:
    assert parse_headers(["X-Back=http://h:1/?a=b", "X-Pair: a=b"]) == {"X-Back": "http://h:1/?a=b", "X-Pair": "a=b"}


def test_the_option_may_be_given_several_times_and_takes_the_place_of_the_files(tmp_path: Any) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("target: {headers: {X-Old: '1'}}\n")
    asked = scenario_from({"scenario_file": path, "header": ["X-A: 1", "X-B: 2"]})
    assert asked.target.headers == {"X-A": "1", "X-B": "2"}
    assert scenario_from({"scenario_file": path, "header": []}).target.headers == {"X-Old": "1"}


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ("Host: h", "it follows from target.base_url"),
        ("content-length: 5", "it follows from the body"),
        ("Transfer-Encoding: chunked", "it belongs to one connection"),
        ("connection: close", "target.connections says how long it is kept"),
        ("Upgrade: h2c", "it belongs to one connection"),
        ("Proxy-Authorization: Basic x", "target.proxy"),
        ("Accept-Encoding: gzip", "arrives in lumps"),
        ("Accept: */*", "target.stream sets that"),
        ("X-Request-Id: 1", "each request has its own"),
        ("no value", "written 'Name: value'"),
        ("a b: 1", "is no name of a header"),
        (": 1", "is no name of a header"),
        (["X-A: 1", "x-a: 2"], "given twice"),
        (["X-A-B: 1", "X-A_B: 2"], "given twice"),
        ({"X-A": "one\r\nX-B: two"}, "one line of printable ASCII"),
        ({"X-A": "ü"}, "one line of printable ASCII"),
        ({"X-A": ""}, "at least one"),
        ({"X-A": True}, "put it into quotes"),
        ({"X-A": None}, "put it into quotes"),
        (5, "names with values"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_reason(headers: object, sentence: str) -> None:
    assert sentence in refusal(headers)


@pytest.mark.parametrize("headers", [f"Authorization {TOKEN}", {"X A": TOKEN}, {"Host": TOKEN}, {"X-Key": f"ü{TOKEN}"}])
def test_no_refusal_repeats_a_value(headers: object) -> None:
    assert TOKEN not in refusal(headers)


@pytest.mark.parametrize(
    ("name", "content", "secret"),
    [
        ("Authorization", "Bearer abc", True),
        ("authorization", "Bearer ${TOKEN}", False),
        ("Cookie", "a=b", True),
        ("X-Api-Key", "5", True),
        ("Ocp-Apim-Subscription-Key", "5", True),
        ("X-Amz-Security-Token", "5", True),
        ("X-Anything", "Bearer abc", True),
        ("X-Anything", "sk-abcdefgh", True),
        ("X-Anything", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIi", True),
        ("X-Tenant", "blue", False),
        ("X-Keyboard", "german-layout", False),
        ("X-Tenant", "basics", False),
    ],
)
def test_secrets_are_known_by_their_name_or_by_how_they_begin(name: str, content: str, secret: bool) -> None:
    assert is_secret(name, content) is secret


def test_a_secret_that_was_written_out_is_written_down_as_a_reference_only() -> None:
    asked = scenario(base_url="http://h:1", headers={"Authorization": f"Bearer {TOKEN}", "X-Tenant": "blue"})
    written = asked.to_yaml()
    assert TOKEN not in written and TOKEN not in repr(asked.target)
    again = yaml.safe_load(written)["target"]["headers"]
    assert again == {"Authorization": "${LOADGEN_HEADER_AUTHORIZATION}", "X-Tenant": "blue"}
    assert with_references(again) == again


def test_workers_get_references_and_the_environment_the_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable_of("Authorization"), raising=False)
    route = Route.of(insecure=False, ca_file=None, proxy=None, headers={"Authorization": f"Bearer {TOKEN}", "X-A": "1"})
    carried = route.to_dict()
    assert TOKEN not in repr(carried) and TOKEN not in repr(route)
    with pytest.raises(UsageError, match="LOADGEN_HEADER_AUTHORIZATION, which is not set"):
        Route.from_dict(carried)
    for name, value in route.environment().items():
        monkeypatch.setenv(name, value)
    there = Route.from_dict(carried)
    assert there.sent_headers() == route.sent_headers() == {"Authorization": f"Bearer {TOKEN}", "X-A": "1"}
    assert there.authorizes and not Route().authorizes


def test_a_reference_is_filled_in_from_the_environment_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_TOKEN", TOKEN)
    headers = {"Authorization": "Bearer ${GATEWAY_TOKEN}"}
    route = Route.of(insecure=False, ca_file=None, proxy=None, headers=headers)
    assert route.headers == headers and route.environment() == {}
    assert route.sent_headers() == {"Authorization": f"Bearer {TOKEN}"}
    assert route.without_secrets(f"no such user: {TOKEN}") == "no such user: <secret>"
    monkeypatch.setenv("GATEWAY_TOKEN", f"{TOKEN}\n")
    with pytest.raises(UsageError, match="a character that no header can carry") as refused:
        Route.of(insecure=False, ca_file=None, proxy=None, headers=headers)
    assert TOKEN not in refused.value.report()


def test_short_contents_of_variables_do_not_tear_words_apart() -> None:
    assert secrets_of({"X-A": "${A}", "Cookie": TOKEN}, {"A": "id"}) == (TOKEN,)
    assert without_secrets("an invalid id", ("id-4711",)) == "an invalid id"
