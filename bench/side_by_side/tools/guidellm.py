"""guidellm: its command line, and its JSON report."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from bench.side_by_side.environments import program
from bench.side_by_side.measured import Measured, Task, ToolError
from bench.side_by_side.rungs import INPUT_TOKENS, OUTPUT_TOKENS, Rung

TITLE = "guidellm"
DEFINITION = "TTFT from before the headers are written to the first token; of the gaps between tokens it keeps one mean a request"
HOW = "profile `concurrent` with `rampup_duration`; as many processes as it chooses"


def command(rung: Rung, task: Task) -> list[str]:
    """The command line. When its time is over it cuts off what is under way, so it counts, with a limit of twice the time."""
    profile = {"kind": "concurrent", "streams": [rung.streams], "rampup_duration": rung.ramp_s}
    backend = {
        "kind": "openai_http",
        "target": task.base_url,
        "model": task.model,
        "request_format": "/v1/chat/completions",
        "extras": {"body": {"ignore_eos": True}},
    }
    data = {"kind": "synthetic_text", "prompt_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
    spec = {
        "backend": backend,
        "profile": profile,
        "constraints": [
            {"kind": "max_requests", "count": rung.requests},
            {"kind": "max_duration", "seconds": 2 * (rung.load_s + rung.request_s)},
        ],
        "tokenizer": {"kind": "huggingface_auto", "model": str(task.tokenizer)},
        "data": [data],
        "outputs": [{"kind": "json", "path": str(task.folder / "guidellm.json")}],
        # Only what the model said is dropped; the figures of every request are kept.
        "metrics": {"kind": "generative", "sample_size": 0},
    }
    scenario = task.folder / "scenario.json"
    scenario.write_text(json.dumps({"spec": spec}))
    return [str(program("guidellm", "guidellm")), "run", "--config", str(scenario), "--disable-console-interactive"]


def read(rung: Rung, task: Task) -> Measured:
    """Its instants are of the wall clock, in seconds."""
    report = json.loads((task.folder / "guidellm.json").read_text())
    requests = report["benchmarks"][0]["requests"]
    ok = [request for request in requests["successful"] if _timings(request)["token_iterations"] == OUTPUT_TOKENS]
    if not ok:
        raise ToolError(f"no complete answer among {len(requests['successful'])}")
    begun = np.array([_timings(request)["request_start"] for request in ok])
    first = np.array([_timings(request)["first_token_iteration"] for request in ok])
    last = np.array([_timings(request)["last_token_iteration"] for request in ok])
    return Measured(
        start_ns=np.round(begun * 1e9).astype(np.int64) - task.wall_minus_monotonic_ns,
        ttft_ms=(first - begun) * 1e3,
        mean_gap_ms=(last - first) * 1e3 / (OUTPUT_TOKENS - 1),
        failed=len(requests["errored"]) + len(requests["successful"]) - len(ok),
    )


def _timings(request: dict[str, Any]) -> dict[str, Any]:
    timings: dict[str, Any] = request["info"]["timings"]
    return timings
