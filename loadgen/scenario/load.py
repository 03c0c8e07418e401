"""Loads a scenario: options over environment over file over defaults; gives it whole, or every reason why not."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loadgen.errors import Problem, ScenarioError
from loadgen.scenario.keys import scenario_keys
from loadgen.scenario.load_section import LOADS, OPEN_ONLY, RATES
from loadgen.scenario.model import Scenario
from loadgen.scenario.refusals import from_validation, given_twice, unknown_key
from loadgen.scenario.server import SIMULATOR_ONLY, ServerSection, from_command_line
from loadgen.scenario.settings import (
    Layer,
    Setting,
    from_environment,
    from_file,
    from_options,
    from_sets,
)
from loadgen.scenario.workload import NOT_OF_A_DATASET

_log = logging.getLogger(__name__)

# A choice that is whole: one kind of load replaces another; `--base-url` on a scenario with `server: sim` means the other server, so what the file says
# about starting one goes; `--slo` is a whole set of limits, so the file's limits go.
_REPLACES = {
    "load.concurrency": tuple(f"load.{key}" for key in (*RATES, *OPEN_ONLY)),
    **{
        f"load.{rate}": ("load.think_time", "load.confirm", *(f"load.{key}" for key in LOADS if key != rate))
        for rate in RATES
    },
    "workload.dataset.path": tuple(f"workload.{key}" for key in (*NOT_OF_A_DATASET, "classes")),
    "workload.input_tokens": ("workload.dataset.",),
    "target.base_url": ("target.server", "server."),
    "target.server": ("target.base_url",),
    "slo": ("slo.",),
}


def load_scenario(
    path: Path | str | None = None,
    *,
    sets: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    option_names: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Scenario:
    """The scenario of a file (None: the defaults), changed by the environment and the command line.

    `sets`: texts `key=value`. `options`: values, or their text, by path of the key (`load.concurrency`).
    `option_names`: how each was written, for messages (`--concurrency`).
    `env`: the variables to look at; None looks at none.
    Raises ScenarioError with every problem there is. Nothing is started or written.
    """
    settings: list[Setting] = []
    problems: list[Problem] = []
    for found, refused in (
        from_file(Path(path)) if path is not None else ([], []),
        from_environment(env or {}),
        from_sets(sets),
        from_options(options or {}, option_names or {}),
    ):
        settings += found
        problems += refused
    problems += _given_twice(settings)
    chosen = {setting.path: setting for setting in _without_the_replaced(settings) if setting.path != "slo"}
    problems += _sort_out_server(chosen)
    try:
        scenario = Scenario.model_validate(_nested(chosen.values()))
    except ValidationError as error:
        problems += from_validation(error, chosen, str(path) if path is not None else "the command line")
        raise ScenarioError(problems) from None
    if problems:
        raise ScenarioError(problems)
    return scenario


def _sort_out_server(chosen: dict[str, Setting]) -> list[Problem]:
    """Reads what the command line says of vLLM's flags, and takes out what is not for the server that is started: unknown
    keys where it is the simulator, the simulator's own where it is vLLM."""
    target = chosen.get("target.server")
    is_vllm = target is not None and target.value == "vllm"
    problems: list[Problem] = []
    for path, setting in list(chosen.items()):
        leaf = path.removeprefix("server.")
        if leaf == path or leaf in ServerSection.model_fields:
            continue
        if is_vllm and target is not None and leaf in SIMULATOR_ONLY:
            del chosen[path]
            if setting.layer < target.layer:
                _log.warning(
                    "%s: %s is left out, since it is the simulator's and vLLM is started.", setting.source, path
                )
            else:
                wrong = f"{path} is a setting of the simulator, not a flag of vLLM."
                problems.append(Problem(setting.source, wrong, "Leave it out, or set target.server to sim."))
        elif is_vllm and setting.layer > Layer.FILE and isinstance(setting.value, str):
            chosen[path] = replace(setting, value=from_command_line(setting.value))
        elif not is_vllm and path not in scenario_keys():
            del chosen[path]
            problem = unknown_key(path, setting.source)
            problems.append(
                replace(problem, hint=f"{problem.hint} With target.server: vllm, any flag of vLLM is a key.")
            )
    return problems


def _given_twice(settings: Sequence[Setting]) -> list[Problem]:
    """An option and a `--set` of one key: their order on the command line is not known here."""
    first: dict[str, Setting] = {}
    problems: list[Problem] = []
    for setting in settings:
        if setting.layer is Layer.COMMAND_LINE:
            before = first.setdefault(setting.path, setting)
            if before is not setting and before.value != setting.value:
                problems.append(given_twice(setting.path, before.source, setting.source))
    return problems


def _without_the_replaced(settings: Sequence[Setting]) -> list[Setting]:
    """The settings, lowest layer first, without those that a whole choice in a higher layer replaces."""
    kept: list[Setting] = []
    for setting in sorted(settings, key=lambda s: s.layer, reverse=True):
        above = (other for other in kept if other.layer > setting.layer and other.value is not None)
        if not any(setting.path.startswith(_REPLACES.get(other.path, ())) for other in above):
            kept.append(setting)
        elif setting.path.startswith("server."):
            _log.warning("%s: %s is left out, since the run does not start the server.", setting.source, setting.path)
    return sorted(kept, key=lambda s: s.layer)


def _nested(settings: Iterable[Setting]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for setting in settings:
        *sections, leaf = setting.path.split(".")
        mapping = nested
        for section in sections:
            mapping = mapping.setdefault(section, {})
        mapping[leaf] = setting.value
    return nested
