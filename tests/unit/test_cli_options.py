"""`loadgen validate`, which stands for every command that takes a scenario: options in, the resolved scenario out."""

import inspect
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from loadgen.cli import app
from loadgen.cli.options import ALIASES, NAMES, option_names, scenario_command, scenario_parameters
from loadgen.scenario.keys import scenario_keys
from loadgen.scenario.model import Scenario

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"


@pytest.fixture(autouse=True)
def no_variables_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in scenario_keys().values():
        monkeypatch.delenv(key.env, raising=False)


def validated(*arguments: str) -> Any:
    """The scenario that `loadgen validate` prints."""
    result = CliRunner().invoke(app, ["validate", *arguments])
    assert (result.exit_code, result.stderr) == (0, "")
    return yaml.safe_load(result.stdout)


def refused(*arguments: str) -> str:
    """What `loadgen validate` says on standard error."""
    result = CliRunner().invoke(app, ["validate", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr


def test_every_key_has_an_option_and_no_option_has_two_keys() -> None:
    keys = [key for key in scenario_keys().values() if key.section != "slo"]
    names = [name for key in keys for name in option_names(key)] + list(ALIASES)
    without = {key.path for key in keys if not option_names(key)}
    assert {path.rpartition(".")[0] for path in without} <= {"server"}  # --set and --sweep set them
    assert "server.max_num_seqs" not in without
    assert len(names) == len(set(names))
    identifiers = [parameter.name for parameter in scenario_parameters()]
    assert len(identifiers) == len(set(identifiers))


def test_every_name_in_the_tables_is_of_a_key_that_exists() -> None:
    assert {*NAMES, *ALIASES.values()} - set(scenario_keys()) == set()


@pytest.mark.parametrize(
    ("arguments", "section", "key", "value"),
    [
        (["--concurrency", "1,2,4"], "load", "concurrency", [1, 2, 4]),
        (["--concurrency", "[1, 2]"], "load", "concurrency", [1, 2]),
        (["--max-concurrency", "3"], "load", "concurrency", 3),
        (["--isl", "9"], "workload", "input_tokens", 9),
        (["--input-len=9"], "workload", "input_tokens", 9),
        (["--random-input-len", "9"], "workload", "input_tokens", 9),
        (["--osl", "9"], "workload", "output_tokens", 9),
        (["--run-time", "2m"], "load", "duration", "120s"),
        (["--benchmark-duration", "30"], "load", "duration", "30s"),
        (["-t", "30"], "load", "duration", "30s"),
        (["--warmup", "0"], "load", "warmup", "0s"),
        (["--total-timeout", "none"], "timeouts", "total", None),
        (["--url", "http://h:1/v1"], "target", "base_url", "http://h:1"),
        (["--model", "123"], "target", "model", "123"),
        (["--endpoint-type", "completions"], "target", "endpoint", "completions"),
        (["--insecure"], "target", "insecure", True),
        (["--ca-file", "root.pem"], "target", "ca_file", "root.pem"),
        (["--proxy", "http://me:pw@proxy:3128"], "target", "proxy", "http://proxy:3128"),
        (["--connections", "per-request"], "target", "connections", "per-request"),
        (["--recycle-requests", "100"], "target", "recycle_requests", 100),
        (["--recycle-age", "1m"], "target", "recycle_age", "60s"),
        (["--max-connections", "8"], "target", "max_connections", 8),
        (["--no-ignore-eos"], "workload", "ignore_eos", False),
        (["--ready-check-timeout-sec", "5"], "target", "ready_timeout", "5s"),
        (["--max-num-seqs", "8,16"], "server", "max_num_seqs", [8, 16]),
        (["--step-overhead-ms", "0.5"], "server", "step_overhead_ms", 0.5),
        (["--workers", "2"], "workers", "local", 2),
        (["--expect-workers", "2"], "workers", "expect", 2),
        (["--metrics-port", "off"], "metrics", "port", None),
        (["--slo", "ttft_p95<500ms"], "slo", "ttft_p95", "500ms"),
        (["--set", "load.ramp=3s"], "load", "ramp", "3s"),
    ],
)
def test_an_option_sets_its_key(arguments: list[str], section: str, key: str, value: object) -> None:
    assert validated(*arguments)[section][key] == value


def test_names_and_seeds_are_at_the_top() -> None:
    scenario = validated("-e", "nightly", "--random-seed", "7")
    assert (scenario["name"], scenario["seed"]) == ("nightly", 7)


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADGEN_LOAD_CONCURRENCY", "5")
    assert validated()["load"]["concurrency"] == 5
    assert validated("--concurrency", "6")["load"]["concurrency"] == 6


def test_config_is_the_scenario(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("name: mine")
    assert validated(str(path)) == validated("-c", str(path))
    assert "Give one scenario." in refused(str(path), "--config", str(path))


def test_two_names_of_one_key_are_refused() -> None:
    assert "Both --input-tokens and --isl are given" in refused("--isl", "1", "--input-tokens", "2")


def test_a_message_names_the_option_as_it_was_written() -> None:
    assert refused("--osl", "0").startswith("error: --osl: workload.output_tokens is")


@pytest.mark.parametrize("arguments", [["--api-key", "sk-verysecret"], ["--api-key=verysecret"]])
def test_an_api_key_is_refused_and_not_repeated(arguments: list[str]) -> None:
    message = refused(*arguments)
    assert "does not belong on a command line" in message
    assert "OPENAI_API_KEY" in message
    assert "verysecret" not in message


def test_a_misspelt_option_names_the_nearest() -> None:
    assert "--concurrency" in refused("--concurency", "5")


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_scenario_of_the_project_is_valid_and_named_like_its_file(path: Path) -> None:
    assert validated(str(path))["name"] == path.stem


def test_validate_says_how_many_levels_there_are_and_how_long_they_take() -> None:
    result = CliRunner().invoke(app, ["validate", "--concurrency", "1,2", "--warmup", "1s", "--duration", "1.5s"])
    assert result.stdout.splitlines()[-1] == "# 2 levels: 5s of warm-up and measuring, without drains."


def test_a_command_has_the_options_of_a_scenario_beside_its_own() -> None:
    own = typer.Typer()

    @own.command()
    @scenario_command
    def show(scenario: Scenario, output_dir: Annotated[Path | None, typer.Option("-o", "--output-dir")] = None) -> None:
        typer.echo(f"{scenario.seed} {output_dir}")

    assert CliRunner().invoke(own, ["--seed", "5", "-o", "there"]).stdout == "5 there\n"
    assert CliRunner().invoke(own, ["--seed", "5"]).stdout == "5 None\n"


def test_no_parameter_has_a_default_of_its_own() -> None:
    # Else the option would silently override the environment and the file.
    defaults = [parameter.default for parameter in scenario_parameters()]
    assert set(defaults) == {None}
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in scenario_parameters())
