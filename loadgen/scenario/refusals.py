"""Turns what is wrong with a scenario into sentences with a remedy; keeps secrets out of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from loadgen.errors import Problem
from loadgen.scenario.keys import Key, scenario_keys, section_models
from loadgen.scenario.model import Scenario
from loadgen.scenario.quantities import parse_sweep
from loadgen.scenario.server import VLLM_FLAG

KEY_HINT = "Set the environment variable OPENAI_API_KEY; target.api_key_env can name another one."

_SECRET_NAME = re.compile(r"api[_-]?key|secret|passw|authorization|credential|bearer|token$", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"//[^/@\s]+@|\b(sk|hf|pk|key)[-_][\w-]{6,}|\bBearer\s+\S+", re.IGNORECASE)
_NEVER_SHOWN = ("target.api_key_env", "target.proxy", "target.headers")
_SENTENCES = {
    "int_parsing": "It must be a whole number.",
    "int_type": "It must be a whole number.",
    "int_from_float": "It must be a whole number.",
    "float_parsing": "It must be a number.",
    "float_type": "It must be a number.",
    "finite_number": "It must be a finite number.",
    "greater_than_equal": "It must be at least {ge}.",
    "less_than_equal": "It must be at most {le}.",
    "less_than": "It must be below {lt}.",
    "literal_error": "It must be {expected}.",
    "bool_parsing": "It must be true or false.",
    "bool_type": "It must be true or false.",
    "tuple_type": "It must be a list.",
    "dict_type": "It must be a mapping of keys and values.",
    "model_type": "It must be a mapping of keys and values.",
    "string_type": "It must be text: put it into quotes.",
    "string_too_short": "It must not be empty.",
}
"""By pydantic's type of error; anything else is given in pydantic's words."""


class Given(Protocol):
    """What a message needs to know of a setting."""

    @property
    def value(self) -> Any: ...
    @property
    def source(self) -> str: ...


def is_vllm_flag(path: str) -> bool:
    """Whether a key without a name of its own may be a flag of vLLM, and is no secret."""
    section, _, leaf = path.partition(".")
    return section == "server" and VLLM_FLAG.fullmatch(leaf) is not None and _SECRET_NAME.search(leaf) is None


def unknown_key(path: str, source: str) -> Problem:
    """A key that does not exist; the nearest one that does is the hint. The value is left out: it may be a secret."""
    if _SECRET_NAME.search(path):
        wrong = (
            f"{path} looks like a secret, and secrets do not belong in a scenario, which is written to the run folder."
        )
        return Problem(source, wrong, KEY_HINT)
    section, _, leaf = path.rpartition(".")
    known = scenario_keys()
    elsewhere = [key.path for key in known.values() if key.leaf == leaf]
    by_leaf = {key.leaf: key.path for key in known.values() if key.section == section}
    near = elsewhere or [by_leaf[name] for name in get_close_matches(leaf, by_leaf, n=1)]
    near = near or get_close_matches(path, list(known) if section else [*known, *section_models()], n=1)
    if near:
        hint = f"Did you mean {' or '.join(near)}?"
    elif section and by_leaf:
        hint = f"The keys of {section} are {', '.join(by_leaf)}."
    else:
        hint = f"At the top are {', '.join(Scenario.model_fields)}."
    return Problem(source, f"{path} is not a key of a scenario.", hint)


def given_twice(path: str, first: str, second: str) -> Problem:
    return Problem(
        second, f"{path} is given by {first} too, and it is not clear which should count.", "Keep one of them."
    )


def from_validation(error: ValidationError, given: Mapping[str, Given], name: str) -> list[Problem]:
    """One problem for each of pydantic's errors. `given`: settings by path; `name`: what the scenario is called."""
    return [_problem(detail, given, name) for detail in error.errors()]


def _problem(detail: ErrorDetails, given: Mapping[str, Given], name: str) -> Problem:
    path, inside = _key_and_inside(detail["loc"])
    sentence = _sentence(detail)
    if inside:
        return _inner_problem(detail, given, name, path, inside, sentence)
    key = scenario_keys().get(path)
    if key is None or path not in given:
        # A rule about several keys: its sentence names them, so their sources can be found.
        named = [setting.source for path, setting in given.items() if re.search(rf"\b{re.escape(path)}\b", sentence)]
        named = named or [setting.source for other, setting in given.items() if path and other.startswith(f"{path}.")]
        return Problem(", ".join(dict.fromkeys(named)) or name, sentence, _RULE_HINTS.get(path, "Change one of them."))
    setting = given[path]
    entry = next((part for part in detail["loc"] if isinstance(part, int)), None)
    if entry is not None and len(parse_sweep(setting.value)) > 1:
        sentence = f"In entry {entry + 1}: {sentence}"
    shown = None if path in _NEVER_SHOWN else show(setting.value)
    return Problem(setting.source, sentence, _hint(key, setting.source), key=path, value=shown)


def _key_and_inside(loc: Sequence[int | str]) -> tuple[str, Sequence[int | str]]:
    """(path of the key, the way into its value): `workload.classes` and (0, "share")."""
    keys = scenario_keys()
    for end in range(len(loc), 0, -1):
        path = ".".join(str(part) for part in loc[:end])
        if path in keys and any(isinstance(part, str) for part in loc[end:]):
            return path, loc[end:]
    return ".".join(str(part) for part in loc if isinstance(part, str)), ()


def _inner_problem(
    detail: ErrorDetails, given: Mapping[str, Given], name: str, path: str, inside: Sequence[int | str], sentence: str
) -> Problem:
    """Something inside a value that has keys of its own: an entry of a list, a mapping."""
    where = path + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in inside)
    match detail["type"]:
        case "missing":
            wrong, value = f"{where} is missing.", None
        case "extra_forbidden":
            wrong, value = f"{where} is not a key there.", None
        case _:
            wrong, value = sentence, show(detail["input"])
    source = given[path].source if path in given else name
    return Problem(source, wrong, scenario_keys()[path].description, key=where if value else None, value=value)


_RULE_HINTS = {
    "load": "Take out what does not belong; docs/arrivals.md says which keys go together.",
    "target": "Keep one: target.server for a server that the run starts, target.base_url for one that is there.",
    "server": "Change the settings under server.",
    "workers": "Set workers.local to at least 1, or workers.expect to the number of workers started elsewhere.",
}


def _sentence(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if detail["type"] == "value_error":
        return str(context["error"])
    known = _SENTENCES.get(detail["type"])
    return known.format(**context) if known else f"{detail['msg']}."


def _hint(key: Key, source: str) -> str:
    if key.path == "target.api_key_env":
        return KEY_HINT
    if key.default in ("null", "{}"):
        return key.description
    if source.startswith("--"):
        example = f"{source.removesuffix(key.path)}{key.path}=" if source.startswith("--set") else f"{source} "
        return f"Write for example {example}{_in_a_shell(key.default)}. {key.description}"
    if source == key.env:
        return f"Write for example {source}={_in_a_shell(key.default)}. {key.description}"
    return f"Write for example {key.leaf}: {key.default}. {key.description}"


def _in_a_shell(default: str) -> str:
    return default.strip("[]").replace(", ", ",")


def show(value: Any) -> str:
    """The value as it was written, on one line, short, with anything that looks like a secret left out."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = repr(value)
    text = _SECRET_VALUE.sub("…", text)
    return text if len(text) <= 60 else f"{text[:59]}…"
