"""A level of a mixed workload: figures of each class, from the class of each record."""

import csv
import io
from typing import Any

import pytest

from loadgen.report.figures import prefix_lines
from loadgen.report.html import page
from loadgen.report.summary import csv_text
from loadgen.report.table import class_table
from loadgen.stats.classes import CLASS_LATENCIES, RequestKind
from loadgen.stats.level import level_object
from tests.level_records import normal, plan, request

KINDS = [RequestKind("chat", 0.75, 0), RequestKind("rag", 0.25, 500)]
CHAT = [normal(5, 50, 10, sent_ms=i, kind=0, input_tokens=100, input_tokens_requested=100) for i in range(6)]
RAG = [
    normal(3, 200, 20, sent_ms=0, kind=1, input_tokens=1000, input_tokens_requested=1000, output_tokens_requested=3),
    normal(3, 300, 20, sent_ms=0, kind=1, input_tokens=1001, input_tokens_requested=1000, output_tokens_requested=4),
    request(5, status="http_503", finished_ms=9, kind=1),
]


def level(kinds: list[RequestKind]) -> dict[str, Any]:
    return level_object(plan(), [*CHAT, *RAG], [], kinds=kinds)


def test_each_class_has_the_figures_of_its_own_requests() -> None:
    chat, rag = level(KINDS)["classes"]
    assert (chat["name"], chat["share"], rag["name"], rag["share"]) == ("chat", 0.75, "rag", 0.25)
    assert (chat["requests"], rag["requests"]) == ({"ok": 6}, {"ok": 2, "http_503": 1})
    assert (chat["n_ttft"], chat["p50_ttft_ms"], chat["max_e2el_ms"], chat["p95_tpot_ms"]) == (6, 50, 90, 10)
    assert (rag["n_ttft"], rag["p50_ttft_ms"], rag["p95_ttft_ms"], rag["max_e2el_ms"]) == (2, 200, 300, 340)
    assert (chat["mean_input_tokens"], rag["mean_input_tokens"]) == (100, 1000.5)
    assert (chat["mean_output_tokens"], rag["mean_output_tokens"]) == (5, 3)
    assert (rag["output_tokens_requested"], rag["output_tokens_delivered"]) == (7, 6)
    assert (chat["input_tokens_mismatched"], rag["input_tokens_mismatched"]) == (0, 1)
    assert "p95_ttft_ms" in rag["weak_percentiles"]


def test_the_classes_add_up_to_the_level() -> None:
    whole = level(KINDS)
    for figure in ("output_throughput", "request_throughput", "served_request_rate"):
        assert sum(one[figure] for one in whole["classes"]) == pytest.approx(whole[figure])
    for name in CLASS_LATENCIES:
        assert sum(one[f"n_{name}"] for one in whole["classes"]) == whole[f"n_{name}"]
    assert sum(one["requests"]["ok"] for one in whole["classes"]) == whole["requests"]["ok"]


def test_in_an_open_loop_the_tables_count_each_class_from_the_schedule() -> None:
    late = [normal(5, 50, 10, sent_ms=i + 400, scheduled_ms=i, kind=i % 2) for i in range(8)]
    opened = level_object(plan(concurrency=None, request_rate=8.0), late, [], kinds=KINDS)
    assert [one["p50_ttft_from_schedule_ms"] for one in opened["classes"]] == [450, 450]
    made = class_table([opened])
    assert made is not None
    assert [str(cell) for cell in made.columns[5].cells] == ["~450", "~450"]
    html = page("s", [opened], {}, {})
    assert "TTFT from schedule, ms" in html[html.index("<h2>Classes</h2>") :]


def test_one_class_is_the_level_itself() -> None:
    assert level(KINDS[:1])["classes"] == level([])["classes"] == []


def test_a_class_of_which_no_request_came_has_no_figures() -> None:
    none = level([*KINDS, RequestKind("rare", 0.01, 0)])["classes"][2]
    assert (none["requests"], none["n_ttft"], none["p95_ttft_ms"], none["mean_input_tokens"]) == (
        {"ok": 0},
        0,
        None,
        None,
    )


def test_the_intended_prefix_share_is_of_the_tokens_that_were_sent() -> None:
    assert level(KINDS)["intended_prefix_share"] == pytest.approx(1000 / (600 + 2001))
    assert level([RequestKind("all", 1.0, 50)])["intended_prefix_share"] == pytest.approx(
        6 * 50 / 600
    )  # the others are no kind
    assert level([])["intended_prefix_share"] is None


def test_the_csv_has_a_column_for_each_figure_of_each_class() -> None:
    (row,) = csv.DictReader(io.StringIO(csv_text([level(KINDS)])))
    assert (row["classes.chat.p50_ttft_ms"], row["classes.rag.p50_ttft_ms"]) == ("50.0", "200.0")
    assert (row["classes.rag.requests.http_503"], row["classes.rag.share"]) == ("1", "0.25")


def test_the_report_says_how_much_a_prefix_cache_can_save_where_something_is_shared() -> None:
    (line,) = prefix_lines([level(KINDS), level([RequestKind("all", 1.0, 50)])])
    assert line.startswith("38 to 50 % of the prompt tokens lie in shared prefixes")
    assert prefix_lines([level([]), level([RequestKind("all", 1.0, 0)])]) == []


def test_table_and_page_have_a_row_for_each_class_where_there_are_several() -> None:
    mixed, plain = level(KINDS), level([])
    made = class_table([mixed, mixed])
    assert made is not None and made.row_count == 4
    assert class_table([plain]) is None
    assert page("s", [mixed], {}, {}).count('<td class="word">rag</td>') == 1
    assert "<h2>Classes</h2>" not in page("s", [plain], {}, {})
