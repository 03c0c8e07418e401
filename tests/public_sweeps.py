"""Two public sweeps of GPU servers (input 2048, output 512 tokens), as level objects; and how to write others down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadgen.stats.slo import evaluate

Row = tuple[float, float, float, float]
"""(concurrency, output tok/s, TTFT ms, TPOT ms)."""

LEVELS_OFF_NEAR_512: tuple[Row, ...] = (
    (1, 277, 362, 2.91),
    (8, 1881, 152, 3.96),
    (16, 3455, 160, 4.32),
    (32, 3798, 206, 7.86),
    (64, 8120, 324, 6.74),
    (128, 11556, 520, 8.91),
    (256, 15552, 1254, 11.77),
    (512, 18746, 2610, 15.46),
    (1024, 18829, 2563, 15.46),
)
PEAKS_NEAR_64: tuple[Row, ...] = (
    (1, 73, 170, 13.40),
    (8, 570, 71, 12.34),
    (16, 1054, 117, 11.17),
    (32, 2120, 172, 11.57),
    (64, 3816, 205, 12.70),
    (128, 3799, 222, 12.70),
    (256, 1586, 5551, 20.56),
    (512, 3775, 271, 12.69),
    (1024, 1587, 5544, 20.56),
)
OUTPUT_TOKENS = 512


def sweep(rows: Sequence[Row], *, slo: dict[str, float] | None = None, **server: Any) -> list[dict[str, Any]]:
    """A level object a row, with the fields that answers read; the figures have no intervals, as in a table."""
    return [written_level(number, *row, slo=slo, server=server) for number, row in enumerate(rows)]


def written_level(
    number: int,
    load: float,
    tok_s: float,
    ttft_ms: float | None,
    tpot_ms: float | None,
    *,
    slo: dict[str, float] | None = None,
    valid: bool = True,
    server: dict[str, Any] | None = None,
    intervals: dict[str, list[float]] | None = None,
    open_loop: bool = False,
    saturated: bool = False,
    error_rate: float | None = 0.0,
    **fields: Any,
) -> dict[str, Any]:
    """A level as written down: `load` users, or requests a second of an open loop. Without `intervals` each SLO figure is exact."""
    e2el_ms = None if ttft_ms is None or tpot_ms is None else ttft_ms + (OUTPUT_TOKENS - 1) * tpot_ms
    level: dict[str, Any] = {
        "level": number,
        "run": 0,
        "interrupted": False,
        "concurrency": None if open_loop else int(load),
        "request_rate": load if open_loop else None,
        "open_loop": {"saturated": saturated, "stationary": True} if open_loop else None,
        "server": server or {},
        "valid": valid,
        "reasons": [] if valid else [{"rule": "client_late", "evidence": "", "remedy": ""}],
        "requests": {"ok": 500},
        "output_throughput": float(tok_s),
        "request_throughput": tok_s / OUTPUT_TOKENS,
        "completed_request_rate": tok_s / OUTPUT_TOKENS,
        "served_request_rate": tok_s / OUTPUT_TOKENS,
        "achieved_concurrency": load,
        "peak_concurrency": load,
        "error_rate": error_rate,
        "intervals": intervals or {},
    }
    for statistic in ("mean", "p50", "p95"):
        level |= {
            f"{statistic}_{m}_ms": value for m, value in (("ttft", ttft_ms), ("tpot", tpot_ms), ("e2el", e2el_ms))
        }
        level |= {f"{statistic}_{m}_from_schedule_ms": level[f"{statistic}_{m}_ms"] for m in ("ttft", "e2el")}
    level |= fields
    if slo is None:
        return level | {"slo": None}
    exact = {name: (value, value) for name, value in level.items() if name.endswith("_ms") and value is not None}
    bounds = exact if intervals is None else {name: (low, high) for name, (low, high) in intervals.items()}
    return level | {"slo": evaluate(slo, level, bounds)}
