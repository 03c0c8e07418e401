"""What `loadgen run` prints of the server's own metrics and of what limits each level, letter by letter."""

from dataclasses import replace
from typing import Any

from rich.console import Console

from loadgen.report.server_table import gpu_lines, limit_lines, server_headings, server_rows, server_table
from loadgen.server_metrics.sample import GpuSample, ServerSample
from loadgen.stats.classes import RequestKind
from loadgen.stats.level import level_object
from loadgen.stats.limit import with_limits
from tests.level_records import closed_loop, health, plan
from tests.server_samples import S, perfect_server

GPU = GpuSample(0, "NVIDIA H100", 0.97, 72 << 30, 80 << 30, 612.5, 700.0, 71, 1410, 1980, 2619, ("sw_power_cap",))


def level(number: int, users: int, *, gpu: bool = False, **fields: Any) -> dict[str, Any]:
    records = closed_loop(users, 40)

    def told(one: ServerSample) -> ServerSample:
        hits = one.counters["prefix_queries"] / 4
        return replace(one, counters={**one.counters, "prefix_hits": hits}, gpus=(GPU,) if gpu else ())

    samples = perfect_server(records, (0, 3 * S), cap=4, kv_usage=0.35, change=told)
    made = plan(0, 3000, level=number, concurrency=users, **{"server": {"max_num_seqs": 4}, **fields})
    kinds = [RequestKind("all", 1.0, 24)]
    return level_object(made, records, [health(level=number)], kinds=kinds, server=samples)


def printed(levels: list[dict[str, Any]], width: int = 80) -> str:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(server_table(levels))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def test_table_of_the_server_as_printed_to_a_pipe_of_80_columns() -> None:
    levels = with_limits([level(0, 2), level(1, 12)])
    assert (
        printed(levels)
        == """\
concur- run- wait- KV used   pre- cache hits    TTFT of it at
  rency ning   ing    most empted    (meant) mean ms   server limit
───────────────────────────────────────────────────────────────────────
      2 2.00     0     35%      0  25% (24%)    50.0     50.0 –
     12 4.00  8.00     35%      0  25% (24%)    50.0     50.0 scheduler"""
    )
    assert [len(row) for row in server_rows(levels)] == [len(server_headings(levels))] * 2
    assert server_headings(levels)[:4] == ["concurrency", "running", "waiting", "KV used most"]


def test_each_kind_of_limit_is_told_once_with_the_evidence_of_the_highest_level() -> None:
    levels = with_limits([level(0, 2), level(1, 8), level(2, 12)])
    (line,) = limit_lines(levels)
    assert line == (
        "limit at concurrency 8, 12: scheduler: (at 12) on average 4 requests run of the 4 that may (max_num_seqs), 8 wait; "
        "the KV cache is at most 35% full."
    )


def test_swept_settings_stand_before_the_load_and_the_table_still_fits() -> None:
    levels = with_limits(
        [level(i, 12, server={"max_num_seqs": seqs, "block_size": 16}) for i, seqs in enumerate((4, 1024))]
    )
    text = printed(levels)
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[-1].split()[:2] == ["1024", "12"]


def test_levels_without_metrics_have_no_table_and_say_why_once() -> None:
    bare = [level_object(plan(level=i, concurrency=2), closed_loop(2, 40), []) for i in range(2)]
    assert server_table(bare) is None
    assert limit_lines(bare) == []  # nobody asked what limits them
    (line,) = limit_lines(with_limits(bare))
    assert line == (
        "limit at concurrency 2: not known: (at 2) the server's metrics were not sampled, so what holds it back is not known."
    )


def test_a_gpu_is_told_of_the_level_with_the_highest_throughput_and_what_held_its_clocks_down() -> None:
    (line,) = gpu_lines([level(0, 2, gpu=True), level(1, 12, gpu=True)])
    assert line == (
        "at concurrency 12: GPU 0 (NVIDIA H100) 97 % of the time busy, 72 of 80 GiB, 612 of 700 W, 1410 of 1980 MHz, 71 °C; "
        "its clocks were held down: sw_power_cap 100 % of the samples."
    )
    assert gpu_lines([level(0, 2)]) == []
