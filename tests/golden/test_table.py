"""What `loadgen run` prints at its end, letter by letter."""

from typing import Any

from rich.console import Console

from loadgen.report.table import report, table
from loadgen.stats.level import level_object
from tests.level_records import closed_loop, health, plan, request

CONDITIONS = {
    "model": "llama",
    "precision": None,
    "input tokens": 100,
    "output tokens": 5,
    "target": "http://127.0.0.1:8000",
    "seed": 7,
}


def level(number: int, users: int, *, first_ms: float = 50, **fields: Any) -> dict[str, Any]:
    records = closed_loop(users, 30, first_ms=first_ms, kernel_stamps=True)
    slo = {"ttft_p95": 60.0}
    return level_object(plan(level=number, concurrency=users, **fields), records, [health(level=number)], slo=slo)


def failed(number: int, users: int) -> dict[str, Any]:
    records = [request(i, status="http_503", finished_ms=i + 1, reason="[busy]") for i in range(1000)]
    return level_object(plan(level=number, concurrency=users), records, [health(level=number)])


def printed(renderable: Any, width: int = 80) -> str:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def test_table_conditions_and_notes_as_printed_to_a_pipe_of_80_columns() -> None:
    text = printed(report([level(0, 1), level(1, 16, first_ms=1075), failed(2, 32)], CONDITIONS))
    assert text == EXPECTED


EXPECTED = """\
concur-  n          TTFT   TTFT   TPOT   TPOT    E2E total total
  rency ok failed P50 ms P95 ms P50 ms P95 ms P95 ms tok/s req/s SLO valid
──────────────────────────────────────────────────────────────────────────
      1 12      0   50.0  ~50.0   10.0  ~10.0  ~90.0  55.0  11.0 met doubt
     16  1      0  ~1075  ~1075  ~10.0  ~10.0  ~1115     0     0 –   NO
     32  0   1000      –      –      –      –      –     0     0 –   NO

model llama · precision not reported · input tokens 100 · output tokens 5 ·
target http://127.0.0.1:8000 · seed 7
TTFT, TPOT, E2E: one request, as its user feels it. tok/s (output) and req/s:
totals of all users.
req/s counts a request by the share of its tokens that came in the window.
Percentiles are nearest-rank over the ok requests sent in the window; n says how
many.
~ fewer than five samples lie beyond this percentile.
INVALID at concurrency 16: 1 ok requests; at least 10 are needed for a median.
  hint: Measure longer: raise `duration`, or shorten the outputs.
INVALID at concurrency 32: None of 1000 requests succeeded: 1000 × http_503
([busy]).
  hint: Send one request by hand to see what the target answers; check the URL,
the model's name and the key.
INVALID at concurrency 32: 1 requests in flight on average, 32 asked for (3.12
%).
  hint: Lengthen the warm-up, or look for what holds users back: slow connects,
failures, a limit on connections.
doubt at concurrency 1: 12 ok requests: P95 and P99 are the largest sample.
  hint: Measure longer before trusting P95."""


def test_swept_settings_get_a_table_each() -> None:
    levels = [
        level(i, users, server={"max_num_seqs": seqs}) for i, (seqs, users) in enumerate([(8, 1), (8, 2), (16, 1)])
    ]
    lines = printed(report(levels, CONDITIONS)).splitlines()
    assert [line for line in lines if line.startswith("max_num_seqs")] == ["max_num_seqs 8", "max_num_seqs 16"]
    assert sum("rency ok failed" in line for line in lines) == 2


def test_one_table_of_mixed_settings_names_them_in_a_column() -> None:
    text = printed(table([level(0, 1, server={"max_num_seqs": 8}), level(1, 1, server={"max_num_seqs": 16})]), 100)
    print(text)
    assert text.splitlines()[0].startswith("     max")
    assert text.splitlines()[1].startswith("num_seqs")


def test_large_figures_still_fit_80_columns() -> None:
    busy = {**level(0, 1), "concurrency": 2048, "requests": {"ok": 123_456, "http_503": 12_345}}
    busy |= {"p50_ttft_ms": 12_345.6, "p95_ttft_ms": 23_456.7, "p95_e2el_ms": 123_456.7, "output_throughput": 234_567.8}
    text = printed(table([busy]))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_no_levels_print_no_error() -> None:
    assert printed(report([], {})).startswith("No level was measured.")


def test_repeats_have_a_column_that_tells_them_apart() -> None:
    lines = printed(report([{**level(number, 2), "run": number} for number in range(2)], CONDITIONS)).splitlines()
    assert lines[1].split()[0] == "run"
    assert [line.split()[:2] for line in lines[3:5]] == [["1", "2"], ["2", "2"]]
