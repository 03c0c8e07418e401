"""The scenario itself: its defaults, the order of its levels, what it writes."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from loadgen.scenario.keys import scenario_keys
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario, Workers
from loadgen.scenario.server import ServerSection
from loadgen.scenario.slo import Objective
from server.simulator.settings import SimulatorSettings


def test_without_anything_the_simulator_is_the_target() -> None:
    scenario = Scenario()
    assert (scenario.target.server, scenario.target.base_url) == ("sim", None)


def test_a_base_url_alone_takes_the_place_of_the_default_server() -> None:
    scenario = Scenario.model_validate({"target": {"base_url": "http://h:8000/v1"}})
    assert (scenario.target.server, scenario.target.base_url) == (None, "http://h:8000")


def test_one_concurrency_is_a_sweep_of_one() -> None:
    assert Scenario.model_validate({"load": {"concurrency": 3}}).load.concurrency == (3,)


def test_settings_of_the_server_are_swept_outermost() -> None:
    scenario = Scenario.model_validate({"load": {"concurrency": [1, 2]}, "server": {"max_num_seqs": [8, 16]}})
    steps = [(level.level, level.server["max_num_seqs"], level.concurrency) for level in scenario.levels()]
    assert steps == [(0, 8, 1), (1, 8, 2), (2, 16, 1), (3, 16, 2)]


def test_a_level_names_every_setting_of_its_server() -> None:
    (level, *_) = Scenario().levels()
    assert SimulatorSettings(**level.server) == SimulatorSettings()


def test_a_level_of_a_server_that_is_there_already_has_no_settings() -> None:
    scenario = Scenario.model_validate({"target": {"base_url": "http://h"}, "load": {"concurrency": [1, 2]}})
    assert [level.server for level in scenario.levels()] == [{}, {}]


def test_every_timing_and_limit_of_the_simulator_is_a_key_with_its_default() -> None:
    # The others are not a matter of capacity: name, seed and how it answers.
    settings = set(SimulatorSettings.model_fields) - {"served_model_name", "seed", "stream"}
    keys = {key.leaf: key.default for key in scenario_keys().values() if key.section == "server"}
    of_simulator = {name: text for name, text in keys.items() if name not in ServerSection.model_fields}
    defaults = {name: SimulatorSettings.model_fields[name].default for name in settings}
    words = {None: "null", True: "true", False: "false"}
    assert of_simulator == {
        name: words[value] if value is None or isinstance(value, bool) else str(value)
        for name, value in defaults.items()
    }


def test_every_key_says_what_it_is() -> None:
    assert [key.path for key in scenario_keys().values() if not key.description.endswith(".")] == []


def test_the_schema_for_editors_takes_what_the_scenario_takes() -> None:
    schema = Scenario.model_json_schema()
    load = schema["$defs"]["Load"]["properties"]
    assert {kind["type"] for kind in load["ramp"]["anyOf"]} == {"number", "string"}
    assert {kind["type"] for kind in load["concurrency"]["anyOf"]} == {"integer", "array", "string", "null"}


def test_objectives_have_metric_percentile_and_limit() -> None:
    scenario = Scenario.model_validate({"slo": {"error_rate": "1%", "ttft_p95": "500ms"}})
    assert scenario.slo.objectives() == [
        Objective("ttft_p95", "ttft", 95, 0.5),
        Objective("error_rate", "error_rate", None, 0.01),
    ]


def test_a_request_longer_than_the_server_takes_is_refused_in_any_step_of_the_sweep() -> None:
    with pytest.raises(ValidationError, match=r"640, more than server\.max_model_len, 512"):
        Scenario.model_validate({"server": {"max_model_len": [1024, 512]}})


def test_a_scenario_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Scenario().load.warmup = 1.0  # type: ignore[misc]


def test_a_seed_is_drawn_once_and_a_given_one_is_kept() -> None:
    drawn = Scenario().with_seed()
    assert drawn.seed is not None
    assert drawn.with_seed() == drawn
    assert Scenario(seed=0).with_seed().seed == 0


def test_workers_of_this_host_are_for_runs_that_await_no_others() -> None:
    assert Workers().local_count() >= 1
    assert Workers(expect=2).local_count() == 0
    assert Workers(local=3, expect=2).local_count() == 3


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"target": {"base_url": "http://h:8000"}, "metrics": {"port": None}, "seed": 7},
        {"slo": {"ttft_p95": "0.5s", "error_rate": 0.01}, "load": {"concurrency": 4, "warmup": 0.25}},
        {"server": {"max_num_seqs": [8, 16]}, "timeouts": {"total": None, "connect": "1.5ms"}},
    ],
)
def test_what_a_scenario_writes_is_read_back_as_the_same(values: dict[str, Any], tmp_path: Path) -> None:
    scenario = Scenario.model_validate(values)
    path = tmp_path / "scenario.yaml"
    path.write_text(scenario.to_yaml())
    assert load_scenario(path) == scenario


def test_durations_are_written_as_people_write_them() -> None:
    assert yaml.safe_load(Scenario().to_yaml())["load"]["drain_timeout"] == "30s"
