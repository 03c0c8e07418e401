"""Takes a capacity and runs with other lengths, gives what a plan needs when lengths change by a quarter; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadgen.measured_run import MeasuredRun
from loadgen.planning.capacity import Capacity, capacities
from loadgen.planning.demand import Demand
from loadgen.planning.lengths import FACTORS, MODEL, Work, is_close


def sensitivity(capacity: Capacity, demand: Demand, others: Sequence[MeasuredRun]) -> dict[str, Any]:
    """{model, not_modelled, cases}: for each of the six changes the capacity and the replicas, measured where a run has such lengths.

    A run of `others` stands in where the mean lengths of its capacity's level are within 5 % of those asked about, and its
    settings are the same. `from` is `measured`, `modelled`, or None where neither can be;
    `not_modelled` says why in words.
    """
    assert capacity.level is not None
    work = Work.of(capacity.rps, _prefill_ms(capacity))
    cases = [_case(capacity, demand, others, work, *factors) for factors in FACTORS]
    return {
        "model": MODEL if any(case["from"] == "modelled" for case in cases) else None,
        "not_modelled": capacity.prefill.why_unknown,
        "cases": cases,
    }


def _prefill_ms(capacity: Capacity) -> float | None:
    """Of each of the server's engines a prompt occupies one, and the capacity is that of all."""
    engines = ((capacity.level or {}).get("server_metrics") or {}).get("engines") or 1
    return None if capacity.prefill.ms is None else capacity.prefill.ms / engines


def _case(
    capacity: Capacity,
    demand: Demand,
    others: Sequence[MeasuredRun],
    work: Work | None,
    input_factor: float,
    output_factor: float,
) -> dict[str, Any]:
    assert capacity.level is not None
    wanted = (
        _times(capacity.level["mean_input_tokens"], input_factor),
        _times(capacity.level["mean_output_tokens"], output_factor),
    )
    measured = _measured(capacity, others, *wanted)
    rps = measured[0] if measured else None if work is None else work.capacity_rps(input_factor, output_factor)
    return {
        "input_factor": input_factor,
        "output_factor": output_factor,
        "input_tokens": wanted[0],
        "output_tokens": wanted[1],
        "capacity_rps": rps,
        "replicas": None if rps is None else demand.replicas(rps),
        "from": "measured" if measured else "modelled" if rps else None,
        "run": measured[1] if measured else None,
    }


def _measured(
    capacity: Capacity, others: Sequence[MeasuredRun], input_tokens: float | None, output_tokens: float | None
) -> tuple[float, str] | None:
    for run in others:
        for found in capacities(run.levels):
            level = found.level
            if (
                level is not None
                and found.rps > 0
                and found.server == capacity.server
                and is_close(level["mean_input_tokens"], input_tokens)
                and is_close(level["mean_output_tokens"], output_tokens)
            ):
                return found.rps, str(run.path)
    return None


def _times(tokens: float | None, factor: float) -> float | None:
    return None if tokens is None else tokens * factor
