"""aiperf: its command line, and its file of one record a request."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bench.side_by_side.environments import program
from bench.side_by_side.measured import Measured, Task, ToolError
from bench.side_by_side.rungs import INPUT_TOKENS, OUTPUT_TOKENS, Rung

TITLE = "aiperf"
DEFINITION = (
    "TTFT from before the request is written to the first chunk with text; what it calls inter-token latency is one mean a "
    "request, so the figure here is its inter-chunk latency"
)
HOW = (
    "`--concurrency-ramp-duration` and a warm-up phase of one request a stream; counts by the server's usage, no user "
    "interface; as many workers as it chooses"
)


def command(rung: Rung, task: Task) -> list[str]:
    """The command line."""
    pace = ["--request-count", str(rung.requests)]
    if rung.start == "steady":
        pace = ["--benchmark-duration", f"{rung.load_s:g}"]
        pace += ["--concurrency-ramp-duration", f"{rung.ramp_s:g}", "--warmup-request-count", str(rung.streams)]
    # Told to be offline, it takes the tokenizer's folder for a name on the hub.
    online = ["env", "-u", "HF_HUB_OFFLINE", "-u", "TRANSFORMERS_OFFLINE"]
    return [
        *online,
        *(str(program("aiperf", "aiperf")), "profile", "--model", task.model, "--url", task.base_url),
        *("--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--tokenizer", str(task.tokenizer)),
        *("--isl", str(INPUT_TOKENS), "--isl-stddev", "0", "--osl", str(OUTPUT_TOKENS), "--osl-stddev", "0"),
        *("--extra-inputs", "ignore_eos:true", "--num-dataset-entries", "100", "--random-seed", "1"),
        *("--concurrency", str(rung.streams), *pace),
        *("--no-gpu-telemetry", "--no-server-metrics", "--ui", "none", "--export-level", "records"),
        *("--output-artifact-dir", str(task.folder)),
    ]


def read(rung: Rung, task: Task) -> Measured:
    """`request_start_ns` is of the wall clock; metrics are {value, unit}, in milliseconds."""
    return read_records(task.folder / "profile_export.jsonl", task.wall_minus_monotonic_ns)


def read_records(path: Path, wall_minus_monotonic_ns: int) -> Measured:
    """The requests of the profiling phase."""
    starts, ttfts, gaps, failed = [], [], [], 0
    with path.open() as lines:
        for line in lines:
            record = json.loads(line)
            if record["metadata"].get("benchmark_phase", "profiling") != "profiling":
                continue
            metrics = record["metrics"]
            if record.get("error") or len(metrics.get("inter_chunk_latency", {}).get("value", ())) != OUTPUT_TOKENS - 1:
                failed += 1
                continue
            starts.append(record["metadata"]["request_start_ns"] - wall_minus_monotonic_ns)
            ttfts.append(metrics["time_to_first_token"]["value"])
            gaps.append(np.array(metrics["inter_chunk_latency"]["value"], np.float64))
    if not starts:
        raise ToolError(f"no complete answer among {failed}")
    return Measured(start_ns=np.array(starts, np.int64), ttft_ms=np.array(ttfts), gaps_ms=gaps, failed=failed)
