"""What each worker is told before the first level, and what the run notes of its conditions; sends nothing, asks nobody."""

from __future__ import annotations

import sys
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from loadgen import host
from loadgen.command_line import command_line
from loadgen.commit import commit
from loadgen.controller.capture import Capture
from loadgen.controller.target import Target
from loadgen.controller.worker import Worker
from loadgen.datasets.plan import SurveyedDataset, provenance_of
from loadgen.datasets.workload import DatasetWorkload
from loadgen.errors import UsageError
from loadgen.messages import Configure
from loadgen.run_folder import RunFolder
from loadgen.scenario.model import Scenario
from loadgen.wire.pool import Reuse
from loadgen.workload.carried import to_carry

_LIMITS = ("connect", "first_byte", "first_token", "between_tokens", "total")


def configuration(
    scenario: Scenario,
    target: Target,
    part: RunFolder,
    nonce: str,
    capture: Capture | None,
    worker: Worker,
    workers: Collection[Worker],
) -> Configure:
    """What one of the `workers` needs. Raises UsageError when there are fewer connections than workers."""
    limits = {
        f"{name}_ns": None if (value := getattr(scenario.timeouts, name)) is None else round(value * 1e9)
        for name in _LIMITS
    }
    return Configure(
        worker=worker.index,
        workers=len(workers),
        base_url=target.base_url,
        endpoint=scenario.target.endpoint,
        route=target.route.to_dict(),
        reuse=_reuse_of(scenario, worker, workers).to_dict(),
        api_key_env=scenario.target.api_key_env,
        workload=to_carry(target.workload),
        limits_ns=limits,
        run_folder=str(part.path.resolve()),
        nonce=nonce,
        clock_offset_ns=worker.offset_ns,
        clock_error_ns=worker.error_ns,
        audit_addresses=None if capture is None else capture.addresses,
        guarded=scenario.safety.looks_at_reports,
        long_ttft_ns=None if (limit := scenario.safety.stop_on_ttft) is None else round(limit * 1e9),
    )


def _reuse_of(scenario: Scenario, worker: Worker, workers: Collection[Worker]) -> Reuse:
    target, count = scenario.target, len(workers)
    most = target.max_connections
    if most is not None and most < count:
        raise UsageError(
            f"target.max_connections is {most}, fewer than the {count} workers.",
            hint="allow at least one connection a worker, or use fewer workers",
        )
    position = sorted(other.index for other in workers).index(worker.index)
    return Reuse(
        per_request=target.connections == "per-request",
        recycle_requests=target.recycle_requests,
        recycle_age_ns=None if target.recycle_age is None else round(target.recycle_age * 1e9),
        max_connections=None if most is None else most // count + (position < most % count),
    )


def provenance(
    scenario: Scenario,
    target: Target,
    effective: dict[str, Any] | None,
    server_metrics: dict[str, Any],
    dataset: SurveyedDataset | None,
    workers: Collection[Worker],
) -> dict[str, Any]:
    """What the figures hold for, as far as it is known when the load begins."""
    read = target.workload if isinstance(target.workload, DatasetWorkload) else None
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(sys.argv, scenario.target),
        "seed": scenario.seed,
        "target": {**target.describe(), "effective": effective, "metrics": server_metrics},
        "dataset": None if dataset is None or read is None else provenance_of(dataset, read),
        "prefix_cache": prefix_cache_in_words(scenario),
        "controller": {**host.describe(), "commit": commit()},
        "workers": [
            {
                "worker": worker.index,
                "cores": worker.hello.cores,
                "program_version": worker.hello.program_version,
                "same_host": worker.same_clock,
                "reads": worker.hello.reads,
                "clock_error_ms": worker.error_ns / 1e6,
            }
            for worker in workers
        ],
    }


def prefix_cache_in_words(scenario: Scenario) -> str:
    """How warm the server's prefix cache is when a level begins."""
    if scenario.target.server is None:
        return "as it was found: the server is not ours to restart"
    return "cold when the first level of a setting begins, since the server is started anew for each setting"
