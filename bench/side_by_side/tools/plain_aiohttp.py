"""Plain aiohttp: `aiohttp_client.py`, an honest short client as most tools write it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from bench.side_by_side import aiohttp_client
from bench.side_by_side.measured import Measured, Task
from bench.side_by_side.rungs import INPUT_TOKENS, OUTPUT_TOKENS, Rung

TITLE = "plain aiohttp"
DEFINITION = "TTFT from before the request is written to when the task has the first token's line; ITL by line"
HOW = "`bench/side_by_side/aiohttp_client.py`: one task a stream, stdlib loop, first requests spread over the ramp"


def command(rung: Rung, task: Task) -> list[str]:
    """The command line; the body of all requests is written beside the result."""
    body = write_body(task)
    program = str(Path(aiohttp_client.__file__))
    times = [f"{rung.ramp_s:g}", f"{rung.load_s:g}"]
    return [sys.executable, program, task.base_url, str(rung.streams), *times, str(body), str(task.folder / "out.json")]


def write_body(task: Task) -> Path:
    """One request of the benchmark's length, as JSON."""
    words = " ".join(["load"] * (INPUT_TOKENS - 4))
    body = {
        "model": task.model,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": OUTPUT_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    path = task.folder / "body.json"
    path.write_text(json.dumps(body))
    return path


def read(rung: Rung, task: Task) -> Measured:
    """`perf_counter` is the monotonic clock on Linux."""
    found = json.loads((task.folder / "out.json").read_text())
    whole = [i for i, stamps in enumerate(found["token_ns"]) if len(stamps) == OUTPUT_TOKENS]
    start_ns = np.array(found["start_ns"], np.int64)[whole]
    token_ns = np.array([found["token_ns"][i] for i in whole], np.int64).reshape(-1, OUTPUT_TOKENS)
    return Measured(
        start_ns=start_ns,
        ttft_ms=(token_ns[:, 0] - start_ns) / 1e6,
        gaps_ms=list(np.diff(token_ns, axis=1) / 1e6),
        failed=found["failed"] + len(found["token_ns"]) - len(whole),
    )
