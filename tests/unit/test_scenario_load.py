"""Loading: who wins, and that every mistake is refused with its source, before anything is started."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import Problem, ScenarioError
from loadgen.scenario.load import load_scenario

Written = Callable[[str], Path]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Writes a scenario `x.yaml` into the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        Path("x.yaml").write_text(text)
        return Path("x.yaml")

    return write


def refused(path: Path | None = None, **given: Any) -> tuple[Problem, ...]:
    with pytest.raises(ScenarioError) as error:
        load_scenario(path, **given)
    assert error.value.exit_code == 2
    return error.value.problems


def only(path: Path | None = None, **given: Any) -> Problem:
    (problem,) = refused(path, **given)
    return problem


def test_options_go_over_environment_over_file_over_defaults(written: Written) -> None:
    path = written("load: {warmup: 1s, duration: 1s, ramp: 1s}")
    env = {"LOADGEN_LOAD_WARMUP": "2s", "LOADGEN_LOAD_DURATION": "2s"}
    load = load_scenario(path, options={"load.warmup": "3s"}, env=env).load
    assert (load.warmup, load.duration, load.ramp, load.drain_timeout) == (3, 2, 1, 30)


def test_set_goes_over_the_environment(written: Written) -> None:
    load = load_scenario(sets=["load.concurrency=[8, 9]"], env={"LOADGEN_LOAD_CONCURRENCY": "1"}).load
    assert load.concurrency == (8, 9)


def test_the_environment_takes_a_sweep_and_top_level_keys() -> None:
    scenario = load_scenario(env={"LOADGEN_LOAD_CONCURRENCY": "1,2,4", "LOADGEN_SEED": "7", "LOADGEN_NAME": "nightly"})
    assert (scenario.load.concurrency, scenario.seed, scenario.name) == ((1, 2, 4), 7, "nightly")


def test_of_two_sets_of_one_key_the_last_counts() -> None:
    assert load_scenario(sets=["load.warmup=1s", "load.warmup=2s"]).load.warmup == 2


def test_an_option_and_a_set_of_one_key_are_refused_where_they_differ() -> None:
    given = {"options": {"load.warmup": "1s"}, "option_names": {"load.warmup": "--warmup"}}
    assert load_scenario(sets=["load.warmup=1s"], **given).load.warmup == 1
    problem = only(sets=["load.warmup=2s"], **given)
    assert "is given by --set load.warmup too" in problem.wrong
    assert problem.source == "--warmup"


def test_none_on_the_command_line_is_null() -> None:
    scenario = load_scenario(sets=["timeouts.total=none", "metrics.port=off"])
    assert (scenario.timeouts.total, scenario.metrics.port) == (None, None)


def test_off_in_a_file_is_no_port(written: Written) -> None:
    assert load_scenario(written("metrics: {port: off}")).metrics.port is None


def test_a_section_whose_lines_are_all_commented_out_says_nothing(written: Written) -> None:
    assert load_scenario(written("slo:\n  # ttft_p95: 1s\nload:\n  warmup: 1s\n")).load.warmup == 1


def test_variables_of_a_kubernetes_service_are_let_be() -> None:
    env = {
        "LOADGEN_METRICS_PORT": "tcp://10.0.0.1:9646",
        "LOADGEN_METRICS_SERVICE_HOST": "10.0.0.1",
        "LOADGEN_METRICS_PORT_9646_TCP_ADDR": "10.0.0.1",
        "LOADGEN_SERVICE_PORT": "80",
        "LOADGEN_METRICS_HOST": "",
    }
    metrics = load_scenario(env=env).metrics
    assert (metrics.host, metrics.port) == ("127.0.0.1", 9646)


def test_a_base_url_on_the_command_line_replaces_the_files_server(
    written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    path = written("target: {server: sim}\nserver: {max_num_seqs: [8, 16]}\n")
    scenario = load_scenario(path, options={"target.base_url": "http://h"})
    assert (scenario.target.server, scenario.target.base_url) == (None, "http://h")
    assert len(scenario.levels()) == 4
    assert "x.yaml:2: server.max_num_seqs is left out" in caplog.text


def test_a_server_on_the_command_line_replaces_the_base_url_of_file_and_environment(written: Written) -> None:
    path = written("target: {server: sim}\nserver: {max_num_seqs: 8}\n")
    env = {"LOADGEN_TARGET_BASE_URL": "http://h"}
    scenario = load_scenario(path, env=env, options={"target.server": "sim"})
    assert (scenario.target.base_url, scenario.server.sweeps()["max_num_seqs"]) == (None, (8,))


def test_slo_conditions_replace_the_files_limits(written: Written) -> None:
    path = written("slo: {ttft_p95: 1s, tpot_p95: 1s}")
    scenario = load_scenario(path, options={"slo": "ttft_p99<500ms, error_rate<=1%"})
    assert [(o.name, o.limit) for o in scenario.slo.objectives()] == [("ttft_p99", 0.5), ("error_rate", 0.01)]


def test_one_limit_is_changed_by_set(written: Written) -> None:
    scenario = load_scenario(written("slo: {ttft_p95: 1s, tpot_p95: 1s}"), sets=["slo.ttft_p95=2s"])
    assert [(o.name, o.limit) for o in scenario.slo.objectives()] == [("ttft_p95", 2), ("tpot_p95", 1)]


@pytest.mark.parametrize(
    "conditions", ["ttft_p95", "ttft_p95<", "ttft_p95<1s,,", "ttft_p95>1s", "ttft_p95<1s,ttft_p95<2s"]
)
def test_conditions_that_cannot_be_read_are_refused(conditions: str) -> None:
    assert "The condition cannot be read" in only(options={"slo": conditions}, option_names={"slo": "--slo"}).wrong


@pytest.mark.parametrize(
    ("text", "line", "key", "wrong"),
    [
        ("load:\n  concurrency: []\n", 2, "load.concurrency", "empty list"),
        ("load:\n  concurrency: [1, 0]\n", 2, "load.concurrency", "In entry 2: It must be at least 1."),
        ("load:\n  concurrency: 0\n", 2, "load.concurrency", "It must be at least 1."),
        ("load:\n  concurrency: yes\n", 2, "load.concurrency", "not a number"),
        ("load:\n  concurrency: 2.5\n", 2, "load.concurrency", "whole number"),
        ("load:\n\n  duration: 0s\n", 3, "load.duration", "longer than zero"),
        ("load:\n  duration: []\n", 2, "load.duration", "not a duration"),
        ("load: {warmup: -1s}\n", 1, "load.warmup", "negative"),
        ("workload: {input_tokens: -5}\n", 1, "workload.input_tokens", "at least 1"),
        ("workload: {input_tokens: 1k}\n", 1, "workload.input_tokens", "whole number"),
        ("workload: {ignore_eos: maybe}\n", 1, "workload.ignore_eos", "true or false"),
        ("target: {endpoint: embeddings}\n", 1, "target.endpoint", "'chat' or 'completions'"),
        ("target: {server: sglang}\n", 1, "target.server", "'sim' or 'vllm'"),
        ("target: {model: 5}\n", 1, "target.model", "quotes"),
        ("target: {model: ''}\n", 1, "target.model", "not be empty"),
        ("target:\n  base_url: localhost:8000\n", 2, "target.base_url", "no scheme"),
        ("slo: {ttft_p95: 500}\n", 1, "slo.ttft_p95", "unit"),
        ("slo: {error_rate: 1}\n", 1, "slo.error_rate", "% sign"),
        ("metrics: {port: 70000}\n", 1, "metrics.port", "at most 65535"),
        ("name: a/b\n", 1, "name", "letters"),
        ("seed: -1\n", 1, "seed", "at least 0"),
        ("server: {step_overhead_ms: .nan}\n", 1, "server.step_overhead_ms", "finite"),
    ],
)
def test_a_wrong_value_is_refused_with_file_line_and_key(
    written: Written, text: str, line: int, key: str, wrong: str
) -> None:
    problem = only(written(text))
    assert (problem.source, problem.key) == (f"x.yaml:{line}", key)
    assert wrong in problem.wrong
    assert problem.wrong.startswith("In entry") == wrong.startswith("In entry")
    assert problem.hint
    assert problem.value is not None


@pytest.mark.parametrize(
    ("text", "source", "wrong"),
    [
        ("", "x.yaml", "empty"),
        ("# nothing\n", "x.yaml", "empty"),
        ("- a\n", "x.yaml", "keys and values"),
        ("text\n", "x.yaml", "keys and values"),
        ("load: [1\n", "x.yaml:2", "not valid YAML"),
        ("a: b: c\n", "x.yaml:1", "not valid YAML"),
        ("name: 2024-13-45\n", "x.yaml", "not valid YAML"),
        ("name: !!python/object:os.system x\n", "x.yaml:1", "not valid YAML"),
        ("name: a\n---\nname: b\n", "x.yaml:2", "not valid YAML"),
        ("load: 5\n", "x.yaml:1", "load is a section"),
        ("load: [1]\n", "x.yaml:1", "load is a section"),
        ("name: a\nname: b\n", "x.yaml:2", "name is given twice; the first is in line 1"),
        ("load:\n  ramp: 1s\n  ramp: 2s\n", "x.yaml:3", "load.ramp is given twice; the first is in line 2"),
    ],
)
def test_a_file_of_the_wrong_form_is_refused(written: Written, text: str, source: str, wrong: str) -> None:
    problem = only(written(text))
    assert problem.source == source
    assert wrong in problem.wrong
    assert problem.hint


def test_a_missing_file_a_folder_and_binary_data_are_refused(tmp_path: Path) -> None:
    assert only(tmp_path / "none.yaml").wrong == "There is no such file."
    assert "cannot be read" in only(tmp_path).wrong
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in only(tmp_path / "b.yaml").wrong
    (tmp_path / "z.yaml").write_bytes(b"name: \x00")
    assert "not valid YAML" in only(tmp_path / "z.yaml").wrong


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("load: {concurency: 4}", "Did you mean load.concurrency?"),
        ("concurrency: 4", "Did you mean load.concurrency?"),
        ("workload: {duration: 4}", "Did you mean load.duration?"),
        ("laod: {ramp: 1s}", "Did you mean load?"),
        ("metrics: {qqqqqqqqqq: 1}", "The keys of metrics are host, "),
        ("5: 4", "At the top are name, target, "),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(written: Written, text: str, hint: str) -> None:
    problem = only(written(text))
    assert "is not a key of a scenario" in problem.wrong
    assert problem.hint is not None
    assert problem.hint.startswith(hint)


def test_an_unknown_variable_of_a_known_section_is_refused() -> None:
    assert only(env={"LOADGEN_LOAD_CONCURENCY": "4"}).source == "LOADGEN_LOAD_CONCURENCY"


def test_a_set_without_value_or_of_a_section_is_refused() -> None:
    assert [problem.source for problem in refused(sets=["load.warmup", "load=1"])] == ["--set", "--set load"]


def test_all_problems_are_told_at_once(written: Written) -> None:
    path = written("load: {concurrency: [], x: 1}\nname: a\nname: b\n")
    problems = refused(path, sets=["seed=x"], env={"LOADGEN_LOAD_RAMP": "fast"})
    assert {problem.source for problem in problems} == {"x.yaml:1", "x.yaml:3", "--set seed", "LOADGEN_LOAD_RAMP"}
    assert len(problems) == 5


def test_server_and_base_url_of_one_place_are_refused(written: Written) -> None:
    problem = only(written("target:\n  server: sim\n  base_url: http://h\n"))
    assert problem.wrong.startswith("Both target.server and target.base_url are given")
    assert problem.source == "x.yaml:2, x.yaml:3"


def test_no_target_at_all_is_refused(written: Written) -> None:
    assert only(written("target: {server: null}")).wrong.startswith("No target is given")


def test_settings_for_a_server_that_is_there_already_are_refused(written: Written) -> None:
    problem = only(written("target: {base_url: 'http://h'}\nserver: {max_num_seqs: 8}\n"))
    assert "server.max_num_seqs has no effect" in problem.wrong
    assert problem.source == "x.yaml:2"


def test_settings_that_the_simulator_cannot_run_with_are_refused() -> None:
    problem = only(sets=["server.max_num_seqs=8,64", "server.max_num_batched_tokens=32"])
    assert "max_num_batched_tokens (32) must be at least max_num_seqs (64)" in problem.wrong


SECRET = "sk-verysecret123"


@pytest.mark.parametrize(
    "given",
    [
        {"sets": [f"target.api_key={SECRET}"]},
        {"sets": [f"target.hf_token={SECRET}"]},
        {"sets": [f"target.api_key_env={SECRET}"]},
        {"sets": [f"target.base_url=http://me:{SECRET}@h"]},
        {"sets": [f"seed={SECRET}"]},
        {"env": {"LOADGEN_TARGET_API_KEY": SECRET}},
        {"env": {"LOADGEN_TARGET_API_KEY_ENV": SECRET}},
    ],
)
def test_a_secret_is_refused_and_never_repeated(given: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError) as error:
        load_scenario(**given)
    assert "verysecret" not in error.value.report()
    assert "verysecret" not in repr(error.value.problems)


@pytest.mark.parametrize(
    "text", [f"target: {{api_key: {SECRET}}}", f"target: {{headers: {{Proxy-Authorization: {SECRET}}}}}"]
)
def test_a_secret_in_a_file_is_refused_and_never_repeated(written: Written, text: str) -> None:
    assert "verysecret" not in str(only(written(text)))


def test_the_remedy_for_an_api_key_is_its_environment_variable(written: Written) -> None:
    hint = only(written("target: {api_key: x}")).hint
    assert hint is not None
    assert hint.startswith("Set the environment variable OPENAI_API_KEY")


def test_a_long_value_is_cut_short() -> None:
    value = only(sets=["seed=" + "9x" * 500]).value
    assert value is not None
    assert len(value) == 60
