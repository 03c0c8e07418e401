"""Takes a judged run, gives what its figures hold for, and where two runs differ in it; pure.

A figure can be compared only where everything is alike but what is being tested. The seed, the host that made the load and
the length of the window may differ.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.measured_run import MeasuredRun
from loadgen.outputs import load_in_words

NAMES: Mapping[str, str] = {
    "model": "the model",
    "precision": "the precision",
    "engine": "the engine",
    "engine_version": "the engine's version",
    "gpu": "the GPU",
    "endpoint": "the API",
    "lengths": "the lengths",
    "workload": "the workload",
    "load": "the kind of load",
    "settings": "the server's settings",
}
"""Every condition, by the name that `--across` takes, and in words."""

_PRECISION = ("dtype", "quantization", "kv_cache_dtype", "weight_bytes_per_parameter")
_TOLD = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "block_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefix_caching",
    "chunked_prefill",
    "speculative",
    "enforce_eager",
    "cuda_graphs",
    "attention_backend",
)
"""Settings that a server tells of itself (`server.effective`), beside what else it tells."""
_NOT_OF_THE_WORKLOAD = {
    *("input_tokens", "output_tokens", "input_stddev", "output_stddev", "range_ratio", "ignore_eos"),
    *("tokenizer", "prompt_set", "dataset"),
}
"""Keys that are the condition of lengths, that name who counts them, or that choose among equals."""
_OTHER_CONDITIONS = frozenset(
    {*_PRECISION, "gpu", "model", "simulated_model", "served_model_name", "host", "port", "seed"}
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One condition that is not the same in two runs."""

    condition: str
    baseline: Any
    run: Any
    allowed: bool
    """Whether it is what the comparison is about."""

    def text(self) -> str:
        """`the model differs: a, then b`."""
        return f"{NAMES[self.condition]} differ{'' if _plural(self.condition) else 's'}: {_told(self.baseline)}, then {_told(self.run)}"


def _plural(condition: str) -> bool:
    return condition in ("lengths", "settings")


def _told(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def conditions_of(run: MeasuredRun, swept: Collection[str]) -> dict[str, Any]:
    """A value for each of `NAMES`, JSON-able; None where nobody told. `swept`: settings that differ between levels."""
    scenario, target = run.scenario, run.target
    first = run.levels[0] if run.levels else {}
    effective = dict(first.get("effective") or target.get("effective") or {})
    asked = run.server_settings(first.get("server") or {})
    lengths = scenario.workload.in_words()
    forced = "forced" if scenario.workload.ignore_eos else "at most"
    locustfile = run.provenance.get("locustfile")
    by_tasks = {} if locustfile is None else _of_locustfile(locustfile)
    return {
        "model": target.get("model"),
        "precision": _some({**asked, **_known(effective)}, _PRECISION) or target.get("precision"),
        "engine": scenario.target.server or (first.get("server_metrics") or {}).get("kind"),
        "engine_version": target.get("server_version") or effective.get("version"),
        "gpu": _gpus(first) or _some(asked, ("gpu", "simulated_model")),
        "endpoint": scenario.target.endpoint + ("" if scenario.streams() else ", not streaming"),
        "lengths": f"input {lengths[0]}; output {lengths[1]}, {forced}",
        "workload": _workload(run),
        "load": load_in_words(scenario.load),
        "settings": _settings(asked, effective, swept),
        **by_tasks,
    }


def _of_locustfile(about: Mapping[str, Any]) -> dict[str, Any]:
    """What tasks of a locustfile decide: of these the scenario of such a run knows nothing but defaults."""
    words = about["conditions"]
    return {
        "lengths": f"input {words['input']}; output {words['output']}",
        "workload": {"locustfile": Path(str(about["file"])).name, "tasks": sorted(about["names"])},
        "load": words["load"],
    }


def _some(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any] | None:
    return {name: values[name] for name in names if values.get(name) is not None} or None


def _workload(run: MeasuredRun) -> dict[str, Any]:
    """What changes how hard the requests are, beside their lengths: every key of the workload that is not at its default."""
    kept = run.scenario.workload.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_OF_THE_WORKLOAD)
    dataset = run.provenance.get("dataset")
    if dataset is not None:
        kept["dataset"] = {
            "name": Path(str(dataset["path"])).name,
            **{name: dataset[name] for name in ("digest", "rows") if name in dataset},
        }
    return kept


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _gpus(level: Mapping[str, Any]) -> dict[str, int] | None:
    """How many of each kind the server's host has, where it could be seen."""
    gpus = (level.get("server_metrics") or {}).get("gpus") or []
    return dict(Counter(str(gpu["name"]) for gpu in gpus)) or None


def _settings(asked: Mapping[str, Any], effective: Mapping[str, Any], swept: Collection[str]) -> dict[str, Any] | None:
    """{asked, told}: what all levels of a server that we start were given, else None, and what the server told of itself;
    None where nobody said anything."""
    left_out = {*swept, *_OTHER_CONDITIONS}
    told = {name: effective[name] for name in _TOLD if name not in left_out and effective.get(name) is not None}
    given = {name: value for name, value in sorted(asked.items()) if name not in left_out} if asked else None
    return None if given is None and not told else {"asked": given, "told": told}


def _unlike(name: str, old: Any, new: Any) -> tuple[Any, Any] | None:
    """What differs in a condition, both ways; None where nothing does."""
    if name == "settings":
        return _unlike_settings(old, new)
    if name == "precision" and isinstance(old, dict) and isinstance(new, dict):
        common = old.keys() & new.keys()  # what one side does not tell is no difference
        old, new = {key: old[key] for key in sorted(common)}, {key: new[key] for key in sorted(common)}
    if old == new:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        return {key: old.get(key) for key in keys}, {key: new.get(key) for key in keys}
    return old, new


def _unlike_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """A setting that was asked for on one side only is a difference; one that only one side tells of is not."""
    told = [name for name in old["told"] if name in new["told"] and old["told"][name] != new["told"][name]]
    first, second = ({name: one["told"][name] for name in told} for one in (old, new))
    if old["asked"] is not None and new["asked"] is not None:
        for name in {**old["asked"], **new["asked"]}:
            if old["asked"].get(name) != new["asked"].get(name):
                first[name], second[name] = old["asked"].get(name), new["asked"].get(name)
    return (first, second) if first else None


def differences(
    baseline: Mapping[str, Any], run: Mapping[str, Any], across: Collection[str] = ()
) -> tuple[list[Difference], list[str]]:
    """(what differs, names of what one side does not know). `across`: conditions that may differ."""
    found, unknown = [], []
    for name in NAMES:
        old, new = baseline.get(name), run.get(name)
        if old is None and new is None:
            continue
        if old is None or new is None:
            unknown.append(name)
        elif (unlike := _unlike(name, old, new)) is not None:
            found.append(Difference(name, *unlike, name in across))
    return found, unknown
