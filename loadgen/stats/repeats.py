"""Takes the level objects of a sweep that was run more than once, gives median and spread of each repeated level; pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.stats.asked import asked, asked_text

Level = Mapping[str, Any]

FIGURES = ("output_throughput", "request_throughput", "p50_ttft_ms", "p95_ttft_ms", "p50_tpot_ms", "p95_tpot_ms")
MOST_SPREAD = 0.20
"""Above it a repeated figure is flagged: (largest − smallest) / median."""

_WORDS = {"output_throughput": "output tok/s", "p95_ttft_ms": "TTFT P95 ms"}


def repeats(levels: Sequence[Level]) -> dict[str, Any] | None:
    """{text, groups}: a group for each level that was run more than once; None when none was.

    A group has concurrency, request_rate, server, runs, valid_runs, and for each of `FIGURES` {values, median, spread} over the valid
    runs that have it; `unstable` names the figures whose spread is above 20 %.
    """
    same: dict[tuple[str, float], list[Level]] = {}
    for level in levels:
        same.setdefault((repr(level["server"]), asked(level)), []).append(level)
    groups = [_group(runs) for runs in same.values() if len(runs) > 1]
    if not groups:
        return None
    return {"text": " ".join(_text(group) for group in groups), "groups": groups}


def _group(runs: Sequence[Level]) -> dict[str, Any]:
    valid = [level for level in runs if level["valid"]]
    figures = {name: _spread([level[name] for level in valid if level[name] is not None]) for name in FIGURES}
    return {
        "concurrency": runs[0]["concurrency"],
        "request_rate": runs[0]["request_rate"],
        "server": runs[0]["server"],
        "runs": len(runs),
        "valid_runs": len(valid),
        "figures": figures,
        "unstable": [name for name, of in figures.items() if (of["spread"] or 0) > MOST_SPREAD],
    }


def _spread(values: Sequence[float]) -> dict[str, Any]:
    median = statistics.median(values) if values else None
    spread = (max(values) - min(values)) / median if median and len(values) > 1 else None
    return {"values": list(values), "median": median, "spread": spread}


def _text(group: Mapping[str, Any]) -> str:
    settings = "".join(f", {name} {value}" for name, value in group["server"].items())
    parts = []
    for name, words in _WORDS.items():
        of = group["figures"][name]
        if of["median"] is not None:
            spread = "one value" if of["spread"] is None else f"spread {of['spread']:.1%}"
            parts.append(f"{words} {of['median']:,.4g} ({spread})")
    unstable = f"; UNSTABLE: {', '.join(group['unstable'])}" if group["unstable"] else ""
    counts = f"median of {group['valid_runs']} valid of {group['runs']} runs"
    load = asked_text(group["concurrency"], group["request_rate"])
    return f"{load[:1].upper()}{load[1:]}{settings}, {counts}: {', '.join(parts) or 'nothing measured'}{unstable}."


def representative(runs: Sequence[Level], *, meets: Mapping[int, bool]) -> Level:
    """The run that stands for its repeats when the SLO is judged: one that misses it if any valid one does, else the
    median by throughput. `meets` says for each level number whether it meets the SLO."""
    valid = [level for level in runs if level["valid"]]
    if not valid:
        return runs[0]
    missing = [level for level in valid if not meets[level["level"]]]
    ordered = sorted(missing or valid, key=lambda level: level["output_throughput"] or 0)
    return ordered[(len(ordered) - 1) // 2]
