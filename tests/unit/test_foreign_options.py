"""Options of other tools are refused with what to give instead, which must exist here."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from loadgen.cli import app, load_command
from loadgen.cli.foreign_options import FOREIGN, OTHER_MEANINGS, Foreign


def known() -> set[str]:
    return {option for parameter in load_command("run").params for option in parameter.opts}


@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda one: one.options[0])
def test_each_is_no_option_here_and_is_told_one_that_is(foreign: Foreign) -> None:
    assert not known() & {*foreign.options}
    assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", f"{foreign.why} {foreign.instead}")) - {"--format"} <= known()


def test_no_option_stands_twice() -> None:
    every = [option for one in FOREIGN for option in one.options]
    assert len(every) == len(set(every))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--num-prompts", "100"], "There is no option --num-prompts. A level is measured for a time"),
        (["--num-prompts=100"], "There is no option --num-prompts."),
        (["-u", "10"], "There is no option -u. The number of requests in flight"),
        (["--request-rate", "inf"], "--request-rate inf: without a limit"),
        (["--qps=Infinity"], "--qps Infinity: without a limit"),
        (["-H", "http://localhost:8000"], "-H with a URL is the target to Locust"),
        (["-Hhttps://host"], "give it as --base-url"),
        (["--header=http://host"], "give it as --base-url"),
        (["-u", "http://localhost:8000"], "give it as --base-url"),
        (["-u10"], "give --concurrency 8,16,32"),
        (["-r2"], "There is no option -r. Users begin spread"),
        (["-c", "50"], "give --concurrency 50"),
        (["-c50"], "give --concurrency 50"),
        (["--warmup", "0.1"], "without a unit that is a share of the level to guidellm"),
        (["--warmup=.05"], "give the unit"),
        (["--max-concurrency", "16", "--request-rate", "4"], "give --request-rate 4 --max-in-flight 16"),
        (["--request-rate=4", "--max-concurrency=16"], "give --request-rate 4 --max-in-flight 16"),
        (["--concurrency", "16", "--qps", "4"], "give --request-rate 4 --max-in-flight 16"),
        (["--random-prefix-len", "64"], "give --shared-prefix-tokens 256, and a longer --isl"),
        (["--temperature", "0"], "give --extra-body"),
        (["--max-errors", "3"], "give --stop-on-error-rate 5%"),
        (["--fixed-schedule"], "--replay-speed 1"),
        (["--vus", "4"], "give --concurrency"),
        (["--config_file", "a.yaml"], "give --config FILE"),
    ],
)
def test_another_tools_option_is_refused_before_anything_starts(words: list[str], told: str) -> None:
    for command in ("run", "validate"):
        ended = CliRunner().invoke(app, [command, "scenarios/smoke.yaml", *words])
        assert (ended.exit_code, told in ended.stderr) == (2, True), ended.output
        assert "give " in ended.stderr.partition("\nhint: ")[2]


@pytest.mark.parametrize(
    "words",
    [
        ["-H", "X-Tenant: blue"],
        ["-HReferer: http://localhost"],
        ["--warmup", "0"],
        ["--warmup", "500ms"],
        ["--warmup", "10"],
        ["--max-concurrency", "16"],
        ["--request-rate", "4", "--max-in-flight", "16"],
        ["--run-time", "1m30s"],
        ["-t", "1h30m"],
    ],
)
def test_what_means_the_same_here_is_taken(words: list[str]) -> None:
    ended = CliRunner().invoke(app, ["validate", "scenarios/smoke.yaml", *words])
    assert ended.exit_code == 0, ended.output


@pytest.mark.parametrize(
    ("words", "endpoint"),
    [
        (["--endpoint", "/v1/chat/completions"], "chat"),
        (["--endpoint", "/v1/completions"], "completions"),
        (["--endpoint-type", "openai-chat"], "chat"),
        (["--endpoint-type", "openai"], "completions"),
        (["--endpoint-type", "vllm"], "completions"),
        (["--endpoint-type", "chat"], "chat"),
        (["--endpoint", "completions"], "completions"),
    ],
)
def test_an_endpoint_of_another_name_is_taken_with_its_meaning_and_recorded_by_ours(
    words: list[str], endpoint: str
) -> None:
    ended = CliRunner().invoke(app, ["validate", *words])
    assert (ended.exit_code, f"endpoint: {endpoint}" in ended.stdout) == (0, True), ended.output


def test_an_endpoint_of_no_known_name_is_refused() -> None:
    ended = CliRunner().invoke(app, ["validate", "--endpoint", "/v1/embeddings"])
    assert (ended.exit_code, "'chat' or 'completions'" in ended.stderr) == (2, True), ended.output


def test_an_option_that_only_has_other_values_elsewhere_is_one_here_or_is_refused_whatever_it_has() -> None:
    refused = {option for one in FOREIGN for option in one.options}
    assert {option for one in OTHER_MEANINGS for option in one.options} <= known() | refused
    assert all(re.fullmatch(one.values, one.example) for one in OTHER_MEANINGS)


@pytest.mark.parametrize("option", ["-H", "-u"])
def test_a_password_of_a_url_in_the_wrong_place_is_not_repeated(option: str) -> None:
    ended = CliRunner().invoke(app, ["validate", option, "http://me:hidden@host"])
    assert (ended.exit_code, "hidden" in ended.output) == (2, False)


def test_a_command_without_a_scenario_keeps_its_own_options() -> None:
    assert CliRunner().invoke(app, ["serve", "sim", "--help"]).exit_code == 0
    ended = CliRunner().invoke(app, ["check-claim", "--tok-s", "1", "--num-prompts", "3"])
    assert (ended.exit_code, "A level is measured" in ended.output) == (2, False)


@pytest.mark.parametrize("words", [["-h"], ["run", "-h"], ["serve", "sim", "-h"]])
def test_short_help_is_help(words: list[str]) -> None:
    ended = CliRunner().invoke(app, words)
    assert (ended.exit_code, "Usage:" in ended.output) == (0, True), ended.output
