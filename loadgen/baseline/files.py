"""A baseline's file: writes a result as strict JSON, and reads one back or says why it is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from loadgen import host as machine
from loadgen.baseline.figures import SCHEMA_VERSION
from loadgen.errors import LoadgenError, UsageError
from loadgen.report.files import write_whole

_HOST = ("loadgen", "kernel", "machine", "cpu", "cores")


def host() -> dict[str, Any]:
    """The machine, without its name, and the loadgen that measured."""
    every = machine.describe()
    return {name: every[name] for name in _HOST}


def write_result(path: Path, made: dict[str, Any]) -> None:
    """Raises LoadgenError when it cannot be written."""
    try:
        write_whole(path, orjson.dumps(made, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    except OSError as error:
        raise LoadgenError(
            f"The result cannot be written to {path}: {error.strerror or error}.", hint="choose another file with -o"
        ) from None


def read_result(path: Path) -> dict[str, Any]:
    """Raises UsageError for a file that is no baseline, or one of another version."""
    hint = "give files that `loadgen baseline transformers|vllm-offline -o FILE` has written"
    try:
        made = orjson.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.", hint=hint) from None
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{path} is no JSON: {error}.", hint=hint) from None
    if not isinstance(made, dict) or made.get("kind") != "baseline":
        raise UsageError(f"{path} is no result of a baseline.", hint=hint)
    if made.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema_version {made.get('schema_version')}, and this loadgen reads {SCHEMA_VERSION}.",
            hint="measure again, or use the loadgen that has written it",
        )
    return made
