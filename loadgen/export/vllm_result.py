"""Takes a level with its records, gives the result that `vllm bench serve --save-result --save-detailed` would name so.

The names are those of vLLM 0.32; the figures keep the definitions of docs/metrics.md: they are of the window, and latencies
count from the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np

from loadgen.measured_run import MeasuredRun
from loadgen.record import OK, RequestRecord
from loadgen.run_reader import LevelData
from loadgen.stats.columns import columns
from loadgen.stats.latencies import per_request_ns
from loadgen.stats.load import within

_SECOND = 1_000_000_000


def result_path(level: Mapping[str, Any], swept: list[str]) -> str:
    """Where `vllm bench sweep serve` would put it: `SERVE--max_num_seqs=16-BENCH--max_concurrency=8/run=0.json`."""
    parts = []
    if swept:
        parts += ["SERVE-", "-".join(f"{name}={level['server'].get(name)}" for name in swept)]
    load = (
        f"request_rate={level['request_rate']:g}"
        if level["request_rate"] is not None
        else f"max_concurrency={level['concurrency']}"
    )
    name = "-".join([*parts, "BENCH-", load]).replace("/", "_").replace("..", "__")
    return f"{name}/run={level['run']}.json"


def vllm_result(run: MeasuredRun, level: Mapping[str, Any], data: LevelData) -> dict[str, Any]:
    """The JSON object of one level: seconds in lists, milliseconds in `*_ms`."""
    window = (data.plan.window_start_ns, data.plan.window_end_ns)
    c = columns(data.records)
    inside = within(c.anchor_ns, window)
    records = [record for record, kept in zip(data.records, inside.tolist(), strict=True) if kept]
    records.sort(key=lambda record: record.dispatched_ns)
    ok = [record for record in records if record.status == OK]
    scenario = run.scenario
    input_tokens, output_tokens = (_total(ok, name) for name in ("input_tokens", "output_tokens"))
    total = None if level["input_throughput"] is None else level["input_throughput"] + level["output_throughput"]
    return {
        "date": _date(run.provenance.get("started")),
        "endpoint_type": _backend(scenario.target.endpoint),
        "backend": _backend(scenario.target.endpoint),
        "label": scenario.name,
        "model_id": run.target.get("model"),
        "tokenizer_id": scenario.workload.tokenizer or run.target.get("model"),
        "num_prompts": len(records),
        "request_rate": "inf" if level["request_rate"] is None else level["request_rate"],
        "burstiness": (level["open_loop"] or {}).get("burstiness") or 1.0,
        "max_concurrency": level["concurrency"] or (level["open_loop"] or {}).get("max_in_flight"),
        "duration": level["window_s"],
        "completed": len(ok),
        "failed": len(records) - len(ok),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": level["request_throughput"],
        "request_goodput": level["request_goodput"],
        "output_throughput": level["output_throughput"],
        "total_token_throughput": total,
        "input_lens": [record.input_tokens or record.input_tokens_requested or 0 for record in records],
        "output_lens": [record.output_tokens or 0 if record.status == OK else 0 for record in records],
        "ttfts": [_seconds(record.sent_ns, record.first_token_ns) for record in records],
        "itls": [(np.diff(record.arrivals_ns) / _SECOND).tolist() for record in records],
        "latencies": [_seconds(record.sent_ns, record.last_token_ns) for record in records],
        "start_times": [(record.sent_ns or record.dispatched_ns) / _SECOND for record in records],
        "generated_texts": [""] * len(records),
        "errors": ["" if record.status == OK else f"{record.status}: {record.reason}" for record in records],
        "max_output_tokens_per_s": _busiest_second(data.records, window),
        "max_concurrent_requests": level["peak_concurrency"],
        **_latencies(level, c, inside),
        "loadgen_level": level["level"],
        "loadgen_valid": level["valid"],
        "loadgen_reasons": [reason["rule"] for reason in level["reasons"]],
    }


def _latencies(level: Mapping[str, Any], c: Any, inside: Any) -> dict[str, Any]:
    """`mean_`, `median_`, `std_` and percentiles of the four latencies of vLLM."""
    durations = per_request_ns(c)
    told: dict[str, Any] = {}
    for name in ("ttft", "tpot", "itl", "e2el"):
        told[f"mean_{name}_ms"] = level[f"mean_{name}_ms"]
        told[f"median_{name}_ms"] = level[f"p50_{name}_ms"]
        if name in durations:
            samples = durations[name][inside & ~np.isnan(durations[name])]
            told[f"std_{name}_ms"] = float(samples.std()) / 1e6 if samples.size else None
        told |= {f"p{percent}_{name}_ms": level[f"p{percent}_{name}_ms"] for percent in (50, 90, 95, 99)}
    return told


def _total(ok: list[RequestRecord], name: str) -> int | None:
    """None where of one request it is not known."""
    counts = [getattr(record, name) for record in ok]
    return None if None in counts else sum(counts)


def _seconds(start_ns: int | None, end_ns: int | None) -> float:
    # vLLM writes 0.0 where there is nothing; its own readers expect a number.
    return 0.0 if start_ns is None or end_ns is None else (end_ns - start_ns) / _SECOND


def _busiest_second(records: list[RequestRecord], window: tuple[int, int]) -> float:
    arrivals = [record.arrivals_ns for record in records if record.status == OK]
    every = np.concatenate(arrivals) if arrivals else np.empty(0, np.int64)
    every = every[within(every, window)]
    return float(np.bincount((every - window[0]) // _SECOND).max()) if every.size else 0.0


def _backend(endpoint: str) -> str:
    return "openai-chat" if endpoint == "chat" else "openai"


def _date(started: str | None) -> str | None:
    return None if started is None else datetime.fromisoformat(started).strftime("%Y%m%d-%H%M%S")
