"""A level of conversations: figures by turn, what a prefix cache could know, and how answers were counted again."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from loadgen.record import LevelPlan, RequestRecord
from loadgen.report.figures import prefix_lines
from loadgen.report.html import page
from loadgen.report.summary import csv_text
from loadgen.report.table import report
from loadgen.report.turns import turn_lines, turn_table
from loadgen.spool import decode_block, encode_records
from loadgen.stats.classes import RequestKind
from loadgen.stats.level import level_object
from tests.level_records import normal, plan, request

KINDS = [RequestKind("all", 1.0, 40)]


def turn(number: int, session: int, first_ms: float, *, sent_ms: float = 0, **fields: Any) -> RequestRecord:
    """Turn n of a session has a prompt of 100 · n tokens, of which 100 · (n − 1) were there before."""
    return normal(
        **{
            "tokens": 5,
            "first_ms": first_ms,
            "gap_ms": 10,
            "sent_ms": sent_ms,
            "session": session,
            "turn": number,
            "index": session << 10 | number - 1,
            "input_tokens": 100 * number,
            "prefix_tokens": 100 * (number - 1) if number > 1 else 40,
            "turn_input_tokens": None if number == 1 else 100,
            **fields,
        }
    )


RECORDS = [turn(n, s, 300 if n == 1 else 50, sent_ms=10 * s + n) for s in range(20) for n in range(1, 8)]


def level(records: list[RequestRecord], asked: LevelPlan | None = None) -> dict[str, Any]:
    return level_object(asked or plan(), records, [], kinds=KINDS)


def test_each_turn_has_figures_of_its_own_and_the_later_ones_together_too() -> None:
    turns = level(RECORDS)["turns"]
    assert (turns["conversations"], turns["broken_conversations"]) == (20, 0)
    groups = {one["name"]: one for one in turns["by_turn"]}
    assert list(groups) == ["1", "2", "3", "4", "5-8", "later"]
    assert (groups["5-8"]["first_turn"], groups["5-8"]["last_turn"], groups["5-8"]["requests"]) == (5, 8, {"ok": 60})
    assert (groups["later"]["first_turn"], groups["later"]["last_turn"], groups["later"]["n_ttft"]) == (2, 7, 120)
    assert (groups["1"]["p50_ttft_ms"], groups["2"]["p95_ttft_ms"], groups["later"]["p95_ttft_ms"]) == (300, 50, 50)
    assert (groups["1"]["p50_tpot_ms"], groups["1"]["p50_e2el_ms"]) == (10, 340)
    assert (groups["3"]["mean_input_tokens"], groups["3"]["mean_output_tokens"]) == (300, 5)
    assert "p99_ttft_ms" in groups["1"]["weak_percentiles"]


def test_what_was_in_the_turn_before_is_the_intended_share_of_a_prefix_cache() -> None:
    made = level(RECORDS)
    groups = {one["name"]: one["intended_prefix_share"] for one in made["turns"]["by_turn"]}
    assert groups["1"] == pytest.approx(0.4), "the beginning that all share"
    assert groups["2"] == pytest.approx(100 / 200) and groups["4"] == pytest.approx(300 / 400)
    assert made["intended_prefix_share"] == pytest.approx((40 + sum(range(100, 700, 100))) / sum(range(100, 800, 100)))
    assert "were in the turn before" in prefix_lines([made])[0]


def test_a_conversation_with_a_failed_turn_is_broken() -> None:
    failed = request(5, status="http_503", finished_ms=9, session=3, turn=2)
    turns = level([*RECORDS, failed])["turns"]
    assert turns["broken_conversations"] == 1
    assert {one["name"]: one["requests"] for one in turns["by_turn"]}["2"] == {"ok": 20, "http_503": 1}


def test_answers_that_the_server_counts_otherwise_when_they_come_back_are_told() -> None:
    changed = [
        turn(2, 90, 50, input_tokens=197),
        turn(2, 91, 50, input_tokens=200),
        turn(2, 92, 50, input_tokens=201),
        turn(2, 93, 50, input_tokens=None),
        turn(1, 94, 50, input_tokens=7),
        # An answer of made-up text was counted before: a difference there is a mismatch.
        turn(2, 95, 50, input_tokens=150, input_tokens_requested=200),
    ]
    made = level(changed)
    turns = made["turns"]
    assert (turns["carried_answers"], turns["carried_answers_recounted"]) == (3, 2)
    assert turns["mean_recount_tokens"] == pytest.approx(-2 / 3)
    assert made["input_tokens_mismatched"] == 1
    assert "2 of 3 answers had another number of tokens" in turn_lines([made])[1]
    none = level([turn(1, 0, 50)])["turns"]
    assert (none["carried_answers_recounted"], none["mean_recount_tokens"]) == (None, None)
    assert [one["name"] for one in none["by_turn"]] == ["1"]


def test_a_window_in_which_conversations_only_begin_is_suspect() -> None:
    def said(records: list[RequestRecord], mean_turns: float) -> list[str]:
        made = level(records, replace(plan(), mean_turns=mean_turns))
        return [one["evidence"] for one in made["warnings"] if one["rule"] == "turns_of_the_start"]

    assert said(RECORDS, 7.0) == [] == said(RECORDS, 8.0), "one in seven is the first"
    (evidence,) = said(RECORDS[::7] + RECORDS[1::7], 7.0)
    assert evidence == "50 % of the requests were first turns, and of conversations of 7 turns on average 14 % are."
    few = [turn(1, s, 50) for s in range(3)]
    assert said(few, 2.0) == [], "three may be chance"


def test_requests_that_stand_alone_have_no_turns() -> None:
    made = level([normal(5, 50, 10, input_tokens=100)])
    assert made["turns"] is None and turn_table([made]) is None and turn_lines([made]) == []
    assert "<h2>Turns</h2>" not in page("s", [made], {}, {})
    assert "turns" not in next(csv.reader(io.StringIO(csv_text([made]))))


def test_table_report_and_csv_show_the_turns() -> None:
    made = level(RECORDS)
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(report([made], {}))
    text = console.export_text()
    assert "by turn" in text
    (line,) = [line.split() for line in text.splitlines() if line.split()[1:2] == ["2"]]
    assert line == ["1", "2", "20", "0", "200", "50%", "50.0", "~50.0", "~10.0", "~90.0"]
    html = page("s", [made], {}, {})
    assert "<h2>Turns</h2>" in html and "<td>5-8</td>" in html
    (row,) = csv.DictReader(io.StringIO(csv_text([made])))
    assert row["turns.conversations"] == "20" and float(row["turns.later.p95_ttft_ms"]) == 50
    assert "turns.by_turn" not in row


def test_in_an_open_loop_the_table_counts_from_when_a_turn_was_due() -> None:
    late = [turn(n, s, 50, sent_ms=400 + n, scheduled_ms=n) for s in range(4) for n in (1, 2)]
    made = level(late, plan(concurrency=None, request_rate=8.0))
    table = turn_table([made])
    assert table is not None
    assert [str(cell) for cell in table.columns[6].cells] == ["~450", "~450", "~450"]
    assert made["open_loop"]["offered"] == 8


def test_users_and_arrivals_in_one_table_have_their_own_figures_and_say_what_their_load_is() -> None:
    late = [turn(n, s, 50, sent_ms=400 + n, scheduled_ms=n) for s in range(4) for n in (1, 2)]
    table = turn_table([level(RECORDS), level(late, plan(concurrency=None, request_rate=8.0))])
    assert table is not None
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    assert columns[0] == ["1 user"] * (len(columns[0]) - 3) + ["8 req/s"] * 3
    assert columns[6][0] == "300" and columns[6][-3:] == ["~450"] * 3


def test_the_spool_keeps_turns_and_reads_what_has_none() -> None:
    written = turn(2, 0, 50, coalesced=[False] * 5)
    (back, alone) = decode_block(encode_records([written, normal(1, 1, 1, coalesced=[False])]))  # type: ignore[misc]
    assert alone.turn is None and alone.session is None
    assert (back.session, back.turn, back.prefix_tokens, back.turn_input_tokens) == (0, 2, 100, 100)
