"""Where a scenario's values come from: YAML file, environment, `--set`, options; each gives a list of settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import yaml

from loadgen.errors import Problem
from loadgen.scenario.keys import ENV_PREFIX, scenario_keys, section_models
from loadgen.scenario.refusals import is_vllm_flag, unknown_key
from loadgen.scenario.slo import parse_conditions

# Kubernetes gives every pod such variables for each Service of its namespace: a Service named `loadgen-metrics` sets
# LOADGEN_METRICS_PORT=tcp://10.0.0.1:9646. They are not meant for us.
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)(_\w+)?|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?")
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")

_PATHS_FROM_FOLDER = frozenset({"workload.dataset.path", "workload.lengths_file", "load.rate_file"})
"""Keys whose relative path counts from the folder of the scenario that holds them."""


class Layer(IntEnum):
    """Who wins: the higher layer."""

    FILE = 0
    ENVIRONMENT = 1
    COMMAND_LINE = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """One key that somebody gave a value."""

    path: str
    value: Any
    source: str
    """As `Problem.source`."""
    layer: Layer


Found = tuple[list[Setting], list[Problem]]


def from_file(path: Path) -> Found:
    """The settings of a YAML file, and everything that is wrong with its form."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = "Give the path of a scenario, or none at all to run the defaults."
        return [], [Problem(str(path), "There is no such file.", hint)]
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        return [], [Problem(str(path), f"The file cannot be read: {reason}.", "A scenario is a YAML file.")]
    found, problems = from_text(text, str(path))
    return [_beside(path, setting) for setting in found], problems


def _beside(path: Path, setting: Setting) -> Setting:
    """A path in a scenario is meant from the scenario's own folder."""
    if setting.path in _PATHS_FROM_FOLDER and isinstance(setting.value, str):
        return replace(setting, value=str(path.parent / Path(setting.value).expanduser()))
    if setting.path == "workload.classes" and isinstance(setting.value, list):
        return replace(setting, value=[_class_beside(path, one) for one in setting.value])
    return setting


def _class_beside(path: Path, one: Any) -> Any:
    if not isinstance(one, dict) or not isinstance(one.get("lengths_file"), str):
        return one
    return one | {"lengths_file": str(path.parent / Path(one["lengths_file"]).expanduser())}


def from_text(text: str, name: str) -> Found:
    """The settings of a YAML document; `name` stands for it in messages."""
    loader = yaml.SafeLoader(text) if "\0" not in text else None
    try:
        if loader is None:
            raise ValueError("it holds binary data")
        root = loader.get_single_node()
        values = loader.construct_document(root) if root is not None else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        source = f"{name}:{mark.line + 1}" if mark else name
        reason = str(getattr(error, "problem", None) or error)
        return [], [
            Problem(source, f"The file is not valid YAML: {reason}.", "Mend the syntax in that line or above it.")
        ]
    if not isinstance(values, dict) or not isinstance(root, yaml.MappingNode):
        wrong = "The file is empty." if values is None else "The file does not hold keys and values."
        return [], [
            Problem(name, wrong, "A scenario begins with lines such as `load:` and `  concurrency: [1, 2, 4]`.")
        ]
    lines, problems = _lines(root, name)
    settings: list[Setting] = []

    def take(mapping: Mapping[Any, Any], prefix: str) -> None:
        for key, value in mapping.items():
            path = f"{prefix}{key}"
            if path in section_models() and isinstance(value, dict):
                take(value, f"{path}.")
            elif path not in section_models() or value is not None:  # `slo:` with every line commented out says nothing
                settings.append(Setting(path, value, f"{name}:{lines.get(path, 1)}", Layer.FILE))

    take(values, "")
    return _checked(settings, problems)


def _lines(root: yaml.MappingNode, name: str) -> tuple[dict[str, int], list[Problem]]:
    """The line of each key, and a problem for each key that is there twice (YAML would silently keep the last)."""
    lines: dict[str, int] = {}
    problems: list[Problem] = []

    def walk(node: yaml.MappingNode, prefix: str) -> None:
        for key, value in node.value:
            path = prefix + str(key.value)
            line = key.start_mark.line + 1
            if path in lines:
                wrong = f"{path} is given twice; the first is in line {lines[path]}."
                problems.append(Problem(f"{name}:{line}", wrong, "Keep one of the two."))
            lines.setdefault(path, line)
            if (not prefix or path in section_models()) and isinstance(value, yaml.MappingNode):
                walk(value, f"{path}.")

    walk(root, "")
    return lines, problems


def from_environment(env: Mapping[str, str]) -> Found:
    """Variables named LOADGEN_SECTION_KEY. An empty one counts as not set; those of other programs are let be."""
    paths = {key.env: path for path, key in scenario_keys().items()} | {f"{ENV_PREFIX}SLO": "slo"}
    sections = tuple(f"{ENV_PREFIX}{section.upper()}_" for section in section_models())
    settings: list[Setting] = []
    for name, value in sorted(env.items()):
        if not value or _SERVICE_LINK_VALUE.match(value) or _SERVICE_LINK.search(name):
            continue
        if name in paths:
            settings.append(Setting(paths[name], value, name, Layer.ENVIRONMENT))
        elif name.startswith(sections):
            path = name.removeprefix(ENV_PREFIX).lower().replace("_", ".", 1)
            settings.append(Setting(path, value, name, Layer.ENVIRONMENT))
    return _checked(settings, [])


def from_sets(sets: Sequence[str]) -> Found:
    """`key=value` texts of `--set`; of several for one key the last counts."""
    settings: dict[str, Setting] = {}
    problems: list[Problem] = []
    for text in sets:
        path, equals, value = text.partition("=")
        if equals:
            # The value stays out of the source: it may be a secret that was put there by mistake.
            settings[path.strip()] = Setting(path.strip(), value.strip(), f"--set {path.strip()}", Layer.COMMAND_LINE)
        else:
            problems.append(Problem("--set", "It takes key=value.", "Write for example --set load.concurrency=1,2,4."))
    return _checked(list(settings.values()), problems)


def from_options(options: Mapping[str, Any], names: Mapping[str, str]) -> Found:
    """Options by path of their key; `names` says how each was written on the command line."""
    found = [Setting(path, value, names.get(path, path), Layer.COMMAND_LINE) for path, value in options.items()]
    return _checked(found, [])


def _checked(settings: list[Setting], problems: list[Problem]) -> Found:
    """Known keys only, conditions of `slo` taken apart, the words for null understood."""
    known = scenario_keys()
    kept: list[Setting] = []
    for setting in settings:
        if setting.path == "slo" and isinstance(setting.value, str):
            conditions, refused = _conditions(setting)
            kept.extend(conditions)
            problems.extend(refused)
        elif setting.path in section_models():
            keys = ", ".join(key.leaf for key in known.values() if key.section == setting.path)
            wrong = f"{setting.path} is a section and takes keys, not a value."
            problems.append(Problem(setting.source, wrong, f"Its keys are {keys}."))
        elif setting.path not in known and is_vllm_flag(setting.path):
            kept.append(setting)  # whether there is a vLLM to take it, only the whole scenario tells
        elif setting.path not in known:
            problems.append(unknown_key(setting.path, setting.source))
        elif known[setting.path].nullable and str(setting.value).strip().lower() in ("none", "null"):
            kept.append(Setting(setting.path, None, setting.source, setting.layer))
        else:
            kept.append(setting)
    return kept, problems


def _conditions(setting: Setting) -> Found:
    try:
        conditions = parse_conditions(setting.value)
    except ValueError as error:
        hint = "Write for example 'ttft_p95<500ms,error_rate<1%'."
        return [], [Problem(setting.source, f"The condition cannot be read: {error}", hint)]
    inner = [Setting(f"slo.{name}", limit, setting.source, setting.layer) for name, limit in conditions.items()]
    # The bare `slo` stays as a sign that a whole set of limits was given, which replaces that of the layers below.
    kept, problems = _checked(inner, [])
    return [Setting("slo", True, setting.source, setting.layer), *kept], problems
