"""`loadgen run`, the whole product recording: controller, one worker, spool, `/metrics`, report."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from bench.side_by_side.measured import Measured, Task, ToolError
from bench.side_by_side.rungs import INPUT_TOKENS, OUTPUT_TOKENS, Rung
from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader

TITLE = "llm-loadgen"
DEFINITION = "TTFT from the last byte sent to the arrival of the first token; ITL of every token, by arrival"
HOW = "one worker; `--ramp`, `--warmup` and `--duration`; the figures are those of the level object"


GOOD_CODES = (0, 3)
"""3: a level is invalid by its own judgement. It is shown all the same, with the reason."""


def command(rung: Rung, task: Task) -> list[str]:
    """The command line."""
    cold = rung.start == "cold"
    window_s = rung.load_s if cold else rung.window_s
    program = ["bench.side_by_side.burning"] if rung.burn else ["loadgen", "run"]
    return [
        *(sys.executable, "-m", *program, "--base-url", task.base_url, "--workers", "0" if rung.burn else "1"),
        *("--input-tokens", str(INPUT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS)),
        *("--concurrency", str(rung.streams), "--duration", f"{window_s:g}s"),
        *("--ramp", f"{rung.ramp_s:g}s", "--warmup", f"{rung.skip_s:g}s"),
        *("--metrics-port", str(task.free_port), "--output-dir", str(task.folder / "run")),
    ]


def read(rung: Rung, task: Task) -> Measured:
    """The figures are the level object's; the records say which requests they are of."""
    folder = task.folder / "run"
    level = json.loads((folder / "levels" / "0.json").read_text())
    data = next(iter(RunReader(RunFolder.open(folder)).all()))
    begun_ns, until_ns = data.plan.window_start_ns, data.plan.window_end_ns
    sent = [r for r in data.records if r.sent_ns is not None and begun_ns <= r.sent_ns < until_ns]
    starts, ttfts, gaps = [], [], []
    for request in sent:
        if request.status == "ok" and request.sent_ns is not None and request.first_token_ns is not None:
            starts.append(request.sent_ns)
            ttfts.append((request.first_token_ns - request.sent_ns) / 1e6)
            gaps.append(np.diff(request.arrivals_ns) / 1e6)
    if not starts:
        raise ToolError("no request of the window ended ok")
    return Measured(
        start_ns=np.array(starts, np.int64),
        ttft_ms=np.array(ttfts),
        gaps_ms=gaps,
        failed=sum(1 for r in sent if r.status not in ("ok", "censored", "cancelled")),
        reported={f"{name}_ms": _reported(level, name) for name in ("ttft", "itl") if level[f"n_{name}"]},
        window_ns=(begun_ns, until_ns),
        remark=remark(level),
    )


def remark(level: dict[str, Any]) -> str:
    """The rules by which the level object calls itself invalid."""
    return ", ".join(reason["rule"] for reason in level["reasons"])


def _reported(level: dict[str, float], name: str) -> list[float]:
    return [round(level[f"{percentile}_{name}_ms"], 4) for percentile in ("p50", "p95", "p99")]
