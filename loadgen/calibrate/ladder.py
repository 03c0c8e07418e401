"""Climbs the ladder of loads until the client or the server gives out, and says what was found; measures nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadgen import host
from loadgen.calibrate.comparison import Figures
from loadgen.calibrate.step import INPUT_TOKENS, Conditions
from loadgen.errors import LoadgenError, RunInterruptedError

SCHEMA_VERSION = 1
MOST_ERROR_PERCENT = 10.0
"""TTFT or ITL off by more at P95: the tool's figures are of no use at this load."""

SLOW_SERVER = 1.1
"""The metronome's median gap over the one that was asked for: from here on the server is the limit."""

Measure = Callable[[int, Conditions, Path], Figures]


def climb(
    loads: Sequence[int],
    conditions: Conditions,
    folder: Path,
    *,
    measure: Measure,
    tell: Callable[[str], object],
    keep_going: bool = False,
) -> tuple[dict[str, Any], LoadgenError | None]:
    """(the report of what was measured, why it ended early if that is an error). `measure` is `run_step`.

    `tell` gets a sentence before each step; with `keep_going` no load is left out. Never raises for what a step raises, so nothing that was measured is lost.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    steps: list[Figures] = []
    failure: LoadgenError | None = None
    ended = "every load was measured"
    for number, streams in enumerate(loads, 1):
        tell(f"step {number}/{len(loads)}: {streams} streams × {conditions.rate:g} tokens/s")
        try:
            steps.append(measure(streams, conditions, folder / f"{streams}-streams"))
        except KeyboardInterrupt:
            failure = RunInterruptedError("The calibration was interrupted.")
            ended = f"it was interrupted at {streams} streams"
            break
        except LoadgenError as error:
            failure = error
            ended = f"{streams} streams could not be measured"
            break
        reason = None if keep_going else why_stop(steps[-1], conditions)
        if reason is not None:
            ended = reason
            break
    return {
        "schema_version": SCHEMA_VERSION,
        "started": started,
        "host": host.describe(),
        "conditions": _describe(conditions, steps),
        "steps": steps,
        **findings(steps),
        "ended": ended,
        "interrupted": isinstance(failure, RunInterruptedError),
    }, failure


def why_stop(step: Figures, conditions: Conditions) -> str | None:
    """Why no higher load need be tried; None when the climb goes on."""
    streams = step["streams"]
    if step["client_bound"]:
        return f"{streams} streams are marked client-bound"
    gap_ms = step["itl"]["p50"]["true_ms"]
    if gap_ms is not None and gap_ms > SLOW_SERVER * conditions.itl_ms:
        return f"the metronome itself could not keep the pace of {streams} streams: its gaps were {gap_ms:.3g} ms"
    for name in ("ttft", "itl"):
        error = step[name]["p95"]["error_percent"]
        if error is not None and abs(error) > MOST_ERROR_PERCENT:
            return f"{name.upper()} P95 is off by {error:+.3g} % at {streams} streams"
    return None


def findings(steps: Sequence[Figures]) -> dict[str, Any]:
    """`client_bound_at`: the first load that one worker did not keep up with; `ceiling`: the one below it; None if none."""
    bound = next((step for step in steps if step["client_bound"]), None)
    kept = steps if bound is None else steps[: steps.index(bound)]
    ceiling = kept[-1] if kept else None
    return {
        "ceiling": ceiling
        and {
            "streams": ceiling["streams"],
            "tokens_per_s": ceiling["tokens_per_s"]["true"],
            "reached": bound is not None,
        },
        "client_bound_at": bound
        and {"streams": bound["streams"], "tokens_per_s": bound["tokens_per_s"]["true"], "reasons": bound["reasons"]},
    }


def _describe(conditions: Conditions, steps: Sequence[Figures]) -> dict[str, Any]:
    stamped = [step["kernel_stamps"] for step in steps if step["kernel_stamps"] is not None]
    return {
        "ttft_ms": conditions.ttft_ms,
        "itl_ms": conditions.itl_ms,
        "tokens_per_s_per_stream": conditions.rate,
        "input_tokens": INPUT_TOKENS,
        "output_tokens": conditions.output_tokens,
        "ramp_s": conditions.ramp_s,
        "warmup_s": conditions.warmup_s,
        "window_s": conditions.window_s,
        "workers": 1,
        "endpoint": "chat",
        "transport": "HTTP/1.1 on the loopback interface, no TLS, kept alive",
        "kernel_stamps": min(stamped) if stamped else None,
        "cores": conditions.cores.describe(),
    }
