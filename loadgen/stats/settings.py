"""Takes level objects, tells their swept server settings apart; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.stats.asked import is_open

Level = Mapping[str, Any]


def swept_settings(levels: Sequence[Level]) -> list[str]:
    """Names of the server settings that differ between levels, in the order of the scenario."""
    names = dict.fromkeys(name for level in levels for name in level["server"])
    return [name for name in names if len({str(level["server"].get(name)) for level in levels}) > 1]


def setting_text(level: Level, names: Sequence[str]) -> str:
    """`max_num_seqs 8`; empty without names."""
    return ", ".join(f"{name} {level['server'].get(name, '–')}" for name in names)


def headline(levels: Sequence[Level]) -> list[Level]:
    """The levels that answers are about: those of the closed loop where there are any, since an open loop beside it confirms."""
    closed = [level for level in levels if not is_open(level)]
    return closed or list(levels)


def by_kind(levels: Sequence[Level]) -> list[list[Level]]:
    """The levels of the closed loop and those of the open one, where there are any; a run that confirms has both."""
    kinds = [[level for level in levels if is_open(level) is kind] for kind in (False, True)]
    return [kind for kind in kinds if kind]


def by_setting(levels: Sequence[Level]) -> dict[str, list[Level]]:
    """The levels of each combination of swept settings, in the order in which they ran."""
    names = swept_settings(levels)
    groups: dict[str, list[Level]] = {}
    for level in levels:
        groups.setdefault(setting_text(level, names), []).append(level)
    return groups
