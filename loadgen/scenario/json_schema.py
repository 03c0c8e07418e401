"""The JSON Schema of a scenario, for editors: made from the model; says what one key can hold, not what keys mean together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.scenario.model import Scenario
from loadgen.scenario.section import Section
from loadgen.scenario.server import ServerSection, ServerSettings, VllmSettings

SCHEMA_FILE = "scenario.schema.json"

# What pydantic leaves of a bound behind a validator, and what JSON Schema calls it.
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def scenario_schema() -> dict[str, Any]:
    """JSON Schema (2020-12). `loadgen validate` refuses more: combinations that have no meaning together."""
    schema = Scenario.model_json_schema()
    definitions = schema.pop("$defs")
    del definitions[ServerSection.__name__]
    for section in (ServerSettings, VllmSettings):
        definitions |= _definition(section)
    schema["properties"]["server"] = {"type": "object", "description": _first_line(ServerSection)}
    _tidy(schema)
    _tidy(definitions)
    defaults = Scenario().model_dump(mode="json")
    _write_defaults(schema, definitions, defaults)
    _write_defaults(definitions[ServerSettings.__name__], definitions, defaults["server"])
    of_vllm = {"properties": {"target": {"properties": {"server": {"const": "vllm"}}, "required": ["server"]}}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Scenario of llm-loadgen",
        # Which settings there are depends on the server.
        "if": {**of_vllm, "required": ["target"]},
        "then": {"properties": {"server": {"$ref": f"#/$defs/{VllmSettings.__name__}"}}},
        "else": {"properties": {"server": {"$ref": f"#/$defs/{ServerSettings.__name__}"}}},
        "$defs": definitions,
    }


def _definition(section: type[Section]) -> dict[str, Any]:
    """The definition of a kind of server by its name, and those that it refers to."""
    schema = section.model_json_schema()
    inner = schema.pop("$defs", {})
    schema["properties"]["env"]["additionalProperties"] = {"type": ["string", "number", "boolean"]}
    return {section.__name__: schema, **inner}


def _first_line(section: type[Section]) -> str:
    return (section.__doc__ or "").partition("\n")[0]


def _tidy(part: Any) -> None:
    """Bounds under their own names, and no titles, which are the keys' names again."""
    if isinstance(part, list):
        for one in part:
            _tidy(one)
    elif isinstance(part, dict):
        if isinstance(part.get("title"), str):
            del part["title"]
        for ours, theirs in _BOUNDS.items():
            if isinstance(part.get(ours), int | float):
                part[theirs] = part.pop(ours)
        for one in part.values():
            _tidy(one)


def _write_defaults(section: dict[str, Any], definitions: Mapping[str, Any], written: Mapping[str, Any]) -> None:
    """Defaults as people write them: `30s`, not 30.0."""
    for name, key in section["properties"].items():
        if "$ref" in key:
            key.pop("default", None)
            inner = definitions[key["$ref"].rpartition("/")[2]]
            _write_defaults(inner, definitions, written.get(name) or {})
        elif name in written and "default" in key:
            key["default"] = written[name]
