"""Takes what a run noted of itself, gives the words of the report's section on how it was run; what is not known is left out.

What stands in the report's conditions already (`loadgen.outputs.conditions`) is not said again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from loadgen.report.figures import Conditions, Level
from loadgen.stats.settings import swept_settings
from server.effective import FIELDS

_TOLD_ELSEWHERE = frozenset({"version", "model", "dtype", "quantization", "kv_cache_dtype"})


@dataclass(frozen=True, slots=True)
class HowRun:
    """What a reader who has the report alone needs to know, or to do it again."""

    begun: str | None = None
    """`2026-01-05 10:00:00 UTC`."""
    summary: str = ""
    """The most of it on one line: `loadgen 0.1.0, Python 3.11.7, 2 workers on one host`."""
    command: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    scenario_yaml: str | None = None
    """With every default, without secrets."""


def how_run(
    provenance: Mapping[str, Any], levels: Sequence[Level], stated: Conditions, scenario_yaml: str | None = None
) -> HowRun:
    """Of a run's `provenance.json`, which may be an older one's or empty. `stated`: the conditions that are shown beside it."""
    target = provenance.get("target") or {}
    controller, workers = provenance.get("controller") or {}, provenance.get("workers") or []
    resumed = [_time(one.get("started")) for one in provenance.get("resumed") or []]
    url = target.get("base_url")
    facts = {
        "run again from": ", ".join(one for one in resumed if one),
        "server": url if url and url not in str(stated.get("target")) else "",
        "reached": _route(target),
        "server's settings": _settings(target, levels),
        "prefix cache": provenance.get("prefix_cache"),
        "prompt tokens counted by": target.get("prompt_tokens_counted_by"),
        "dataset": _dataset(provenance.get("dataset")),
        "loadgen": _program(controller),
        "python": _python(controller),
        "controller": _machine(controller),
        "workers": _workers(workers),
    }
    parts = [
        _program(controller, short=True),
        f"Python {controller['python']}" if controller.get("python") else "",
        _places(workers),
    ]
    return HowRun(
        begun=_time(provenance.get("started")),
        summary=", ".join(part for part in parts if part),
        command=provenance.get("command"),
        facts={name: str(text) for name, text in facts.items() if text},
        scenario_yaml=scenario_yaml,
    )


def _time(text: Any) -> str | None:
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    zone = at.tzname() or "zone not known"
    return f"{at:%Y-%m-%d %H:%M:%S} {zone}"


def _route(target: Mapping[str, Any]) -> str:
    parts = [f"through the proxy {target['proxy']}" if target.get("proxy") else ""]
    parts += ["with any TLS certificate accepted" if target.get("insecure") else ""]
    return ", ".join(part for part in parts if part)


def _settings(target: Mapping[str, Any], levels: Sequence[Level]) -> str:
    """What the server runs with by its own account, without what was swept: that has columns and lines."""
    every = [level["effective"] for level in levels if level.get("effective")] or [target.get("effective") or {}]
    left_out = {*_TOLD_ELSEWHERE, *swept_settings(levels)}
    return ", ".join(
        f"{name} {_value(every[0][name])}"
        for name in FIELDS
        if name not in left_out
        and every[0].get(name) is not None
        and all(one.get(name) == every[0][name] for one in every)
    )


def _value(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _dataset(dataset: Mapping[str, Any] | None) -> str:
    if not dataset:
        return ""
    digest = dataset.get("digest")
    return f"{dataset.get('path')}" + (f", BLAKE2b {digest}" if digest else "")


def _program(controller: Mapping[str, Any], *, short: bool = False) -> str:
    if not controller.get("loadgen"):
        return ""
    commit, _, changed = str(controller.get("commit") or "").partition("-")
    told = f", commit {commit}" + (" with changes that are not in it" if changed else "") if commit else ""
    return f"loadgen {controller['loadgen']}" if short else f"{controller['loadgen']}{told}"


def _python(controller: Mapping[str, Any]) -> str:
    if not controller.get("python"):
        return ""
    programs = ", ".join(f"{name} {version}" for name, version in (controller.get("programs") or {}).items())
    return f"{controller['python']}" + (f" with {programs}" if programs else "")


def _machine(controller: Mapping[str, Any]) -> str:
    cores = controller.get("cores")
    parts = [controller.get("cpu"), _cores(cores), controller.get("machine"), controller.get("kernel")]
    return ", ".join(str(part) for part in parts if part)


def _cores(count: Any) -> str:
    return "" if not count else "1 core" if count == 1 else f"{count} cores"


def _places(workers: Sequence[Mapping[str, Any]]) -> str:
    here = sum(bool(worker.get("same_host")) for worker in workers)
    there = len(workers) - here
    if not workers:
        return ""
    if not there:
        return f"{_count(here)} on the controller's host"
    elsewhere = f"on {'another host' if there == 1 else 'other hosts'}"
    if not here:
        return f"{_count(there)} {elsewhere}"
    return f"{_count(here)} on the controller's host, {there} {elsewhere}"


def _count(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"


def _workers(workers: Sequence[Mapping[str, Any]]) -> str:
    if not workers:
        return ""
    parts = [_places(workers)]
    if remote := [worker for worker in workers if not worker.get("same_host")]:
        cores = sorted({worker["cores"] for worker in remote if worker.get("cores")})
        parts += [f"{' or '.join(map(str, cores))} cores each"] if cores else []
        parts.append(f"clocks known to {max(worker.get('clock_error_ms') or 0.0 for worker in remote):.2g} ms")
    versions = sorted({str(worker["program_version"]) for worker in workers if worker.get("program_version")})
    parts += [f"loadgen {' and '.join(versions)}"] if len(versions) > 1 else []
    reads = sorted({str(worker["reads"]) for worker in workers if worker.get("reads")})
    parts += [f"read by {' and '.join(reads)}"] if reads else []
    return ", ".join(parts)
