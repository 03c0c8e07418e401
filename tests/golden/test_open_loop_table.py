"""What a run of an open loop prints and draws: three rates, latency from the schedule, words that fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadgen.report.html import page
from loadgen.report.table import report
from loadgen.stats.answers import answers
from loadgen.stats.level import level_object
from tests.golden.test_table import printed
from tests.level_records import MS, health, normal, plan

CONDITIONS = {"model": "llama", "load": "open loop, poisson arrivals", "seed": 7}


def level(number: int, rate: float, *, wait_ms: float = 0) -> dict[str, Any]:
    """Requests at equal distances, each sent `wait_ms` after its instant because it had no place."""
    gap_ms = 1000 / rate
    records = [
        replace(
            normal(5, 50, 10, sent_ms=k * gap_ms + wait_ms, scheduled_ms=k * gap_ms, index=k, kernel_stamps=True),
            waited_ns=round(wait_ms * MS),
        )
        for k in range(-20, round(4 * rate))
    ]
    asked = plan(
        level=number,
        end_ms=3000,
        concurrency=None,
        request_rate=rate,
        max_in_flight=8 if wait_ms else None,
        overflow="queue" if wait_ms else None,
    )
    return level_object(asked, records, [health(level=number, dropped=0)], slo={"ttft_p95": 60.0})


def test_the_table_of_a_request_rate_sweep_as_printed_to_a_pipe_of_80_columns() -> None:
    levels = [level(0, 10), level(1, 40, wait_ms=20)]
    assert printed(report(levels, CONDITIONS)) == EXPECTED


EXPECTED = """\
asked   n          TTFT   TTFT   TPOT    E2E total offer-
req/s  ok failed P50 ms P95 ms P95 ms P95 ms tok/s     ed sent done SLO  valid
──────────────────────────────────────────────────────────────────────────────
   10  30      0   50.0  ~50.0  ~10.0  ~90.0  50.0   10.0 10.0 10.0 met  yes
   40 120      0   70.0   70.0   10.0    110   200   40.0 40.0 40.0 miss doubt

model llama · load open loop, poisson arrivals · seed 7
TTFT, TPOT, E2E: one request, as its user feels it. tok/s (output) and req/s:
totals of all users.
Percentiles are nearest-rank over the ok requests sent in the window; n says how
many.
TTFT and E2E count from when the schedule wanted the request sent. offered,
sent, done: requests/s that the schedule placed in the window, that were sent in
it, and that ended ok in it.
Counted from the send (the server alone), TTFT P95 is ~50.0, 50.0 ms.
~ fewer than five samples lie beyond this percentile.
doubt at 40 requests/s: Of 120 arrivals 120 waited, 20 ms on average over all,
since at most 8 requests may be in flight.
  hint: Raise max_in_flight, or read latencies from the schedule, which hold
that wait."""


def test_large_figures_of_an_open_loop_fit_80_columns() -> None:
    busy = {**level(0, 10), "request_rate": 1234.5, "requests": {"ok": 12_345, "http_503": 123_456}}
    rates = dict.fromkeys(("offered_request_rate", "sent_request_rate", "completed_request_rate"), 1234.5)
    text = printed(report([busy | rates | {"output_throughput": 98_765.4}], CONDITIONS))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_report_shows_both_views_and_draws_against_the_rate() -> None:
    levels = [level(0, 10), level(1, 40, wait_ms=20)]
    text = page("rates", levels, CONDITIONS, answers(levels))
    for words in ("TTFT from schedule", "TTFT, service", "offered req/s", "asked req/s", "request rate (requests/s)"):
        assert words in text
    assert "concurrency (users)" not in text
    assert "10 requests/s keeps every SLO with its 95 % bound" in text
