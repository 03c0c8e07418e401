"""Options of other tools are refused with what to give instead, which must exist here."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from loadgen.cli import app, load_command
from loadgen.cli.foreign_options import FOREIGN, Foreign


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
    ],
)
def test_another_tools_option_is_refused_before_anything_starts(words: list[str], told: str) -> None:
    for command in ("run", "validate"):
        ended = CliRunner().invoke(app, [command, "scenarios/smoke.yaml", *words])
        assert (ended.exit_code, told in ended.stderr) == (2, True), ended.output
        assert "\nhint: give " in ended.stderr


def test_a_command_without_a_scenario_keeps_its_own_options() -> None:
    assert CliRunner().invoke(app, ["serve", "sim", "--help"]).exit_code == 0
    ended = CliRunner().invoke(app, ["check-claim", "--tok-s", "1", "--num-prompts", "3"])
    assert (ended.exit_code, "A level is measured" in ended.output) == (2, False)


@pytest.mark.parametrize("words", [["-h"], ["run", "-h"], ["serve", "sim", "-h"]])
def test_short_help_is_help(words: list[str]) -> None:
    ended = CliRunner().invoke(app, words)
    assert (ended.exit_code, "Usage:" in ended.output) == (0, True), ended.output
