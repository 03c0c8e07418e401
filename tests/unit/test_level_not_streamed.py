"""A level of whole answers: end-to-end latency and throughput, and null, never 0, for what only a stream has."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from loadgen.controller.display import level_line
from loadgen.controller.sweep_progress import Progress
from loadgen.record import RequestRecord
from loadgen.report.figures import how_to_read
from loadgen.report.html import page
from loadgen.report.table import report
from loadgen.stats.classes import RequestKind
from loadgen.stats.level import level_object
from loadgen.stats.progress import ProgressLog
from loadgen.stats.validity import judge
from tests.level_records import MS, normal, plan, request

ONLY_OF_A_STREAM = ("ttft", "ttfo", "tpot", "itl", "chunk_gap")


def whole(sent_ms: float, took_ms: float, tokens: int = 40, **fields: Any) -> RequestRecord:
    """An answer that came whole."""
    first = {"first_token_ns": None, "first_visible_ns": None}
    return request(
        sent_ms,
        [sent_ms + took_ms],
        n=tokens,
        event_tokens=[tokens],
        streamed=False,
        input_tokens=100,
        input_tokens_requested=100,
        **(first | fields),
    )


@pytest.fixture
def level() -> dict[str, Any]:
    return level_object(plan(), [whole(10 * k, 200, user=k) for k in range(30)], [])


def test_what_only_a_stream_has_is_absent(level: dict[str, Any]) -> None:
    for name in ONLY_OF_A_STREAM:
        assert level[f"n_{name}"] == 0
        for figure in ("mean", "p50", "p90", "p95", "p99", "max"):
            assert level[f"{figure}_{name}_ms"] is None, name
    assert level["itl_estimated"] is None and level["not_streamed"] == 30


def test_end_to_end_latency_and_throughput_are_those_of_the_answers(level: dict[str, Any]) -> None:
    assert (level["n_e2el"], level["p50_e2el_ms"], level["max_e2el_ms"]) == (30, 200, 200)
    assert (level["output_throughput"], level["input_throughput"]) == (30 * 40, 30 * 100)
    assert level["request_throughput"] == level["served_request_rate"] == 30
    assert level["coalesced_gaps"] == 0 and level["coalesced_events"] == 0


def test_tokens_belong_to_the_window_in_which_their_answer_arrived() -> None:
    level = level_object(plan(0, 1000), [whole(900, 200), whole(-150, 200), whole(100, 200)], [])
    assert level["output_throughput"] == 80 and level["input_throughput"] == 200
    assert level["n_e2el"] == 2


def test_an_answer_without_usage_brings_no_tokens_and_the_level_says_so() -> None:
    unknown = [
        request(10 * k, finished_ms=10 * k + 200, n=None, last_token_ns=(10 * k + 200) * MS, streamed=False)
        for k in range(30)
    ]
    level = level_object(plan(), unknown, [])
    assert level["output_throughput"] == 0 and level["mean_output_tokens"] is None
    assert level["p50_e2el_ms"] == 200
    assert "no_token_counts" in {reason["rule"] for reason in judge(level)[0]}


def test_no_rule_takes_a_whole_answer_for_a_failing(level: dict[str, Any]) -> None:
    fired = {one["rule"] for one in (*level["reasons"], *level["warnings"])}
    assert not fired & {"no_token_counts", "some_token_counts", "coalesced", "input_length", "client_late"}


def test_the_table_and_the_report_say_that_nothing_streams(level: dict[str, Any]) -> None:
    console = Console(width=120, file=io.StringIO())
    console.print(report([level], {}))
    assert isinstance(console.file, io.StringIO)
    assert "not streaming: answers come whole" in console.file.getvalue()
    assert "not streaming: answers come whole" in page("s", [level], {}, {})
    assert "not streaming" not in " ".join(how_to_read([level_object(plan(), [normal(5, 50, 10)], [])]))


def test_the_line_of_a_finished_level_has_the_latency_that_there_is(level: dict[str, Any]) -> None:
    line = level_line(level, Progress(levels=1, named_keys=(), remaining_s=0))
    assert "not streaming, E2E P50/P95 200.0/200.0 ms" in line and "TTFT" not in line


def test_classes_that_stream_keep_their_figures_beside_classes_that_do_not() -> None:
    kinds = [RequestKind("chat", 0.5, 0), RequestKind("jobs", 0.5, 0, model="big", streamed=False)]
    mixed = [*(normal(5, 50, 10, sent_ms=k, kind=0) for k in range(20)), *(whole(k, 300, kind=1) for k in range(20))]
    level = level_object(plan(), mixed, [], kinds=kinds, slo={"ttft_p95": 60.0})
    chat, jobs = level["classes"]
    assert (chat["streamed"], chat["model"], jobs["streamed"], jobs["model"]) == (True, None, False, "big")
    assert (chat["p95_ttft_ms"], jobs["p95_ttft_ms"], jobs["p95_tpot_ms"], jobs["p95_e2el_ms"]) == (50, None, None, 300)
    assert (level["n_ttft"], level["p95_ttft_ms"], level["not_streamed"]) == (20, 50, 20)
    assert level["slo"]["ttft_p95"]["met"] and level["request_goodput"] == 40
    assert "20 of 40 requests not streaming" in " ".join(how_to_read([level]))


def test_a_level_of_whole_answers_settles_by_their_end_to_end_latency() -> None:
    log = ProgressLog(now_ns=0, clock_offset_ns=0)
    log.note_finished(whole(1200, 250, user=8))
    log.note_finished(request(0, status="http_503", finished_ms=9, streamed=False))
    assert log.take().ttft_ns == [250 * MS, None]
