"""inference-perf: its configuration, and its report of one entry a request."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from bench.side_by_side.environments import program
from bench.side_by_side.measured import Measured, Task, ToolError
from bench.side_by_side.rungs import INPUT_TOKENS, OUTPUT_TOKENS, Rung

TITLE = "inference-perf"
DEFINITION = "TTFT from before the request is written to the first chunk with text; ITL between chunks with text"
HOW = (
    "cold: load type `concurrent`. It has no ramp for that, and streams begun at once stay in step; so steady is load type "
    "`constant` at the rate that keeps as many requests in flight. As many processes as it chooses"
)


_GROUP = 10
"""Prompts that begin alike."""


def command(rung: Rung, task: Task) -> list[str]:
    """The command line. JSON is YAML, so the configuration is written as JSON."""
    load: dict[str, Any]
    if rung.start == "cold":
        load = {"type": "concurrent", "stages": [{"num_requests": rung.requests, "concurrency_level": rung.streams}]}
    else:
        rate = rung.streams / rung.request_s
        load = {
            "type": "constant",
            "stages": [{"rate": round(rate, 3), "duration": round(rung.load_s)}],
            "worker_max_concurrency": rung.streams,
        }
    groups = max(1, rung.requests // _GROUP)
    config = {
        "api": {"type": "chat", "streaming": True},
        # Of its made prompts only these can be sent to chat completions.
        "data": {
            "type": "shared_prefix",
            "shared_prefix": {
                "num_groups": groups,
                "num_prompts_per_group": _GROUP,
                "system_prompt_len": INPUT_TOKENS // 2,
                "question_len": INPUT_TOKENS // 2,
                "output_len": OUTPUT_TOKENS,
            },
        },
        "load": load,
        "server": {"type": "vllm", "model_name": task.model, "base_url": task.base_url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(task.tokenizer)},
        "report": {
            "request_lifecycle": {
                "per_request": True,
                "per_request_fields": {"request": False, "response": False, "response_chunks": False},
                "use_server_output_tokens": True,
            }
        },
        "storage": {"local_storage": {"path": str(task.folder / "reports")}},
    }
    path = task.folder / "config.yml"
    path.write_text(json.dumps(config))
    return [str(program("inference-perf", "inference-perf")), "--config_file", str(path)]


def read(rung: Rung, task: Task) -> Measured:
    """Its instants are of `perf_counter`, the monotonic clock on Linux, in seconds."""
    entries = json.loads((task.folder / "reports" / "per_request_lifecycle_metrics.json").read_text())
    starts, tokens, failed = [], [], 0
    for entry in entries:
        times = ((entry.get("info") or {}).get("response_metrics") or {}).get("output_token_times") or []
        if entry.get("error") or len(times) != OUTPUT_TOKENS:
            failed += 1
        else:
            starts.append(entry["start_time"])
            tokens.append(times)
    if not starts:
        raise ToolError(f"no complete answer among {failed}")
    begun, stamps = np.array(starts), np.array(tokens)
    return Measured(
        start_ns=np.round(begun * 1e9).astype(np.int64),
        ttft_ms=(stamps[:, 0] - begun) * 1e3,
        gaps_ms=list(np.diff(stamps, axis=1) * 1e3),
        failed=failed,
    )
