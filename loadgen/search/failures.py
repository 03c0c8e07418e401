"""When a setting of the server is given up: takes what its servers failed of, says whether another try is made; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Failure = Mapping[str, Any]
"""Of a server: `server` (the settings that a level is named by), `level` (the number that it had), `kind` and `text`."""

DIED, NOT_STARTED = "died", "not_started"
MOST_DEATHS = 2
"""Deaths of the server under one setting until the setting has failed; before that it is started once more."""


def has_failed(server: Mapping[str, Any], failures: Sequence[Failure]) -> bool:
    """Whether a setting is given up: its server did not start, or died as often as it may."""
    kinds = [failure["kind"] for failure in failures if failure["server"] == server]
    return NOT_STARTED in kinds or kinds.count(DIED) >= MOST_DEATHS


def failed_settings(failures: Sequence[Failure], levels: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each server setting under which the server failed: {server, failures, gave_up, text}. `levels`: those that
    were measured; that the server came back is told only if one of them shows it."""
    groups: dict[str, list[Failure]] = {}
    for failure in failures:
        groups.setdefault(repr(failure["server"]), []).append(failure)
    return [_failed(group, levels) for group in groups.values()]


def _failed(group: Sequence[Failure], levels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    server, gave_up = group[0]["server"], has_failed(group[0]["server"], group)
    settings = ", ".join(f"{key} {value}" for key, value in server.items())
    again = any(level["server"] == server and level["level"] > group[-1]["level"] for level in levels)
    end = "The run ended before the level was repeated"
    if gave_up:
        end = "No further level was run with it"
    elif again:
        end = "It was there again, and the level was repeated"
    told = " Then: ".join(dict.fromkeys(failure["text"] for failure in group))
    text = f"{f'with {settings}: ' if settings else ''}{told} {end}."
    return {"server": server, "failures": len(group), "gave_up": gave_up, "text": f"{text[:1].upper()}{text[1:]}"}
