"""Public faults of load testers and streaming servers, reduced to a few bytes, against the decoder: exact values.

Times are milliseconds from *sent*. Each case is decoded as it stands, and cut in two at every byte: the cut may move an
arrival by its 5 ms, and nothing else.
"""

import math
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pytest

from loadgen.record import LevelPlan, RequestRecord, is_failure
from loadgen.stats.level import level_object
from loadgen.wire.decode import decode
from loadgen.wire.exchange import Exchange
from loadgen.wire.sse import FirstToken, parse
from tests.sse_events import (
    CU,
    DONE,
    END,
    FIN,
    NORMAL,
    RC,
    ROLE,
    SENT_NS,
    C,
    R,
    Script,
    U,
    cuts,
    event,
    exchange,
    refused,
)

T01 = [(50, ROLE), (400, C("Hel")), (450, C("lo") + END(2))]
T02 = [(20, ROLE), (100, R("Ok")), (150, R("ay")), (300, C("4")), (350, C("2") + END(4))]
T03 = [(100, ROLE), (200, CU("a", 1)), (260, CU("bcd", 4)), (340, CU("efgh", 8) + FIN("length") + U(9, 8) + DONE)]
T04 = [(100 + 10 * k, C("x")) for k in range(10)] + [(690, END(10))]
T05 = [(100, ROLE), (120, C("Yes") + FIN("length") + U(9, 1) + DONE)]
T06 = [
    (200, b": ping\n\n"),
    (400, b":\n\n"),
    (600, C("a")),
    (650, b": keep-alive\n\n"),
    (700, C("b") + END(2)),
]
T07 = [(150, (C("a") + C("b") + FIN("stop") + U(9, 2) + DONE).replace(b"\n", b"\r\n"))]
T08_WHOLE = C("中文")
T08_CUT = T08_WHOLE.index(b"\xe4") + 1
T08 = [(100, T08_WHOLE[:T08_CUT]), (130, T08_WHOLE[T08_CUT:] + END(2))]
T09 = [
    (100, C("a", usage=None)),
    (150, C("b", usage=None)),
    (200, C("c", usage=None) + FIN("stop", usage=None) + U(12, 3) + DONE),
]
T10_ERROR = {"error": {"message": "engine died", "type": "InternalServerError", "param": None, "code": 500}}
T10 = [(10, ROLE), (100, C("a")), (150, C("b")), (200, event(T10_ERROR) + DONE)]
T11 = [(at, C("x")) for at in (100, 150, 200, 250, 300)]
T12 = [(30, DONE)]
T15 = [(100, C("x" * 600_000)), (150, C("b") + END(2))]


@dataclass
class Figures:
    """The latencies of one record, in ms, worked out from it alone."""

    ttft: float | None
    ttfo: float | None
    gaps: list[float]
    tpot: float | None
    e2e: float | None


def ms(at_ns: int | None) -> float | None:
    return None if at_ns is None else (at_ns - SENT_NS) / 1e6


def figures(record: RequestRecord) -> Figures:
    arrivals = [ms(int(at)) or 0 for at in record.arrivals_ns]
    first = 1 if record.event_tokens is None else int(record.event_tokens[0])
    later = 0 if record.output_tokens is None else record.output_tokens - first
    return Figures(
        ttft=ms(record.first_token_ns),
        ttfo=ms(record.first_visible_ns),
        gaps=[b - a for a, b in pairwise(arrivals)],
        tpot=(arrivals[-1] - arrivals[0]) / later if later > 0 else None,
        e2e=ms(record.last_token_ns),
    )


def itl_samples(record: RequestRecord) -> list[float]:
    """A gap of g ms that brings k tokens is k samples of g/k; a gap of 0 between events that were read together is none."""
    assert record.event_tokens is not None
    gaps = zip(figures(record).gaps, record.event_tokens[1:], strict=True)
    return [gap / k for gap, k in gaps if gap > 0 for _ in range(k)]


def nearest_rank(values: list[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]


def decoded(seen: Exchange) -> RequestRecord:
    """The record; the watch on the hot path must have seen the first token in the very read that the record names."""
    record = decode(seen)
    watch = FirstToken()
    at = [at_ns for chunk, at_ns in zip(seen.chunks(), seen.chunk_ns, strict=True) if watch.feed(chunk)]
    assert at == ([] if record.first_token_ns is None else [record.first_token_ns])
    return record


WINDOW_S = 10


def level(records: list[RequestRecord]) -> dict[str, Any]:
    """The level object of a run that lies in its window as a whole."""
    plan = LevelPlan(
        level=0,
        concurrency=len(records),
        window_start_ns=SENT_NS - 1_000_000_000,
        window_end_ns=SENT_NS + (WINDOW_S - 1) * 1_000_000_000,
    )
    return level_object(plan, records, [])


def text(script: Script) -> str:
    """The text of a script as the decoder reads it, seen through the tokeniser that it asks when usage is missing."""
    texts: list[str] = []
    without_usage = [(at, b"".join(e for e in whole_events(data) if b'"usage"' not in e)) for at, data in script]
    decode(exchange(without_usage), count_tokens=lambda t: texts.append(t) or len(t))
    (joined,) = texts
    return joined


def whole_events(data: bytes) -> list[bytes]:
    end = b"\r\n\r\n" if b"\r" in data else b"\n\n"
    *whole, rest = data.split(end)
    return [e + end for e in whole] + [rest]


def test_t01_role_chunk_is_not_a_token() -> None:
    record = decoded(exchange(T01))
    assert figures(record) == Figures(ttft=400, ttfo=400, gaps=[50], tpot=50, e2e=450)
    assert (record.status, record.reason, record.output_tokens, record.output_tokens_source) == ("ok", "", 2, "usage")
    assert (record.input_tokens, record.finish_reason) == (9, "stop")
    assert not record.coalesced.any()


def test_t02_reasoning_comes_before_content() -> None:
    record = decoded(exchange(T02))
    seen = figures(record)
    assert (seen.ttft, seen.ttfo, seen.gaps, record.output_tokens) == (100, 300, [50, 150, 50], 4)
    assert seen.tpot == pytest.approx(250 / 3)
    assert record.status == "ok"


def test_t02_the_older_name_of_reasoning_is_the_same() -> None:
    older = [(20, ROLE), (100, RC("Ok")), (150, RC("ay")), (300, C("4")), (350, C("2") + END(4))]
    assert figures(decoded(exchange(older))) == figures(decoded(exchange(T02)))


def test_t03_several_tokens_an_event_with_counts() -> None:
    record = decoded(exchange(T03))
    assert record.event_tokens is not None and record.event_tokens.dtype == np.int32
    assert record.event_tokens.tolist() == [1, 3, 4]
    assert figures(record) == Figures(ttft=200, ttfo=200, gaps=[60, 80], tpot=20, e2e=340)
    assert itl_samples(record) == [20] * 7
    whole = level([record])
    assert (whole["n_itl"], whole["p50_itl_ms"], whole["p95_itl_ms"], whole["itl_estimated"]) == (7, 20, 20, False)
    assert (whole["n_chunk_gap"], whole["p50_chunk_gap_ms"], whole["p95_chunk_gap_ms"]) == (2, 60, 80)
    assert record.output_tokens == 8
    assert record.output_tokens / len(record.arrivals_ns) == pytest.approx(2.67, abs=0.01)
    assert (record.status, record.finish_reason) == ("ok", "length")


def test_t04_late_finish_and_usage_events_are_not_tokens() -> None:
    record = decoded(exchange(T04))
    assert figures(record) == Figures(ttft=100, ttfo=100, gaps=[10] * 9, tpot=10, e2e=190)
    assert ms(record.finished_ns) == 690
    assert record.status == "ok"


def test_t05_one_output_token_has_no_time_per_token() -> None:
    one = decoded(exchange(T05))
    assert figures(one) == Figures(ttft=120, ttfo=120, gaps=[], tpot=None, e2e=120)
    assert (one.status, one.output_tokens) == ("ok", 1)

    run = [one, decoded(exchange(T05)), decoded(exchange(NORMAL(11, 100, 50)))]
    tpots = [tpot for record in run if (tpot := figures(record).tpot) is not None]
    assert tpots == [50.0]
    assert sum(record.output_tokens or 0 for record in run) == 13
    whole = level(run)
    assert (whole["n_tpot"], whole["mean_tpot_ms"], whole["n_ttft"], whole["max_ttft_ms"]) == (1, 50, 3, 120)
    assert whole["output_throughput"] * WINDOW_S == pytest.approx(13)


def test_t06_keep_alive_comments_are_nothing() -> None:
    record = decoded(exchange(T06))
    assert figures(record) == Figures(ttft=600, ttfo=600, gaps=[100], tpot=100, e2e=700)
    assert (record.status, record.output_tokens) == ("ok", 2)


def test_t07_several_events_in_one_read_with_crlf_are_coalesced() -> None:
    record = decoded(exchange(T07))
    assert figures(record) == Figures(ttft=150, ttfo=150, gaps=[0], tpot=0, e2e=150)
    assert record.coalesced.tolist() == [True, True]
    assert (record.status, record.output_tokens, text(T07)) == ("ok", 2, "ab")
    whole = level([record])
    assert (whole["n_tpot"], whole["n_itl"], whole["coalesced_gaps"]) == (0, 0, 1)


def test_t08_a_character_cut_between_two_reads_stays_whole() -> None:
    record = decoded(exchange(T08))
    assert (figures(record).ttft, record.output_tokens, record.status) == (130, 2, "ok")
    assert text([(130, T08_WHOLE + END(2))]) == "中文"
    (data, _, _), *_ = parse(b"".join(chunk for _, chunk in T08))[0]
    assert "中文".encode() in data


def test_t09_usage_null_and_empty_choices() -> None:
    record = decoded(exchange(T09))
    assert (record.output_tokens, record.input_tokens, record.status) == (3, 12, "ok")
    assert figures(record).gaps == [50, 50]
    assert record.event_tokens is None


def test_t10_error_event_inside_a_200_stream() -> None:
    failed = decoded(exchange(T10))
    assert (failed.status, failed.reason) == ("stream_error", "500 InternalServerError: engine died")
    assert len(failed.arrivals_ns) == 2
    assert failed.output_tokens is None

    run = [decoded(exchange(NORMAL(10, 100, 50))) for _ in range(9)] + [failed]
    good = [record for record in run if record.status == "ok"]
    e2e = [figures(record).e2e or 0 for record in good]
    assert len(good) == 9
    assert sum(is_failure(record.status) for record in run) / len(run) == 0.10
    assert nearest_rank(e2e, 0.50) == nearest_rank(e2e, 0.95) == 550
    assert sum(record.output_tokens or 0 for record in good) == 90
    whole = level(run)
    assert whole["requests"] == {"ok": 9, "stream_error": 1}
    assert whole["error_rate"] == pytest.approx(0.10)
    assert (whole["p50_e2el_ms"], whole["p95_e2el_ms"]) == (550, 550)
    assert whole["output_throughput"] * WINDOW_S == pytest.approx(90)
    assert whole["failed_output_tokens"] == 2
    assert whole["error_reasons"] == [{"status": "stream_error", "reason": failed.reason, "count": 1}]


def test_t11_clean_close_without_ending_is_truncated() -> None:
    record = decoded(exchange(T11))
    assert record.status == "truncated"
    assert record.reason
    assert len(record.arrivals_ns) == 5
    assert (record.output_tokens, record.finish_reason) == (None, None)
    whole = level([record])
    assert (whole["requests"]["truncated"], whole["n_ttft"], whole["p50_e2el_ms"]) == (1, 0, None)
    assert whole["failed_output_tokens"] == 5


def test_t12_stream_without_any_token_is_empty() -> None:
    record = decoded(exchange(T12))
    assert (record.status, record.output_tokens) == ("empty", None)
    assert figures(record) == Figures(ttft=None, ttfo=None, gaps=[], tpot=None, e2e=None)

    run = [decoded(exchange(NORMAL(5, 100, 20))) for _ in range(4)] + [record]
    ttft = [at for r in run if (at := figures(r).ttft) is not None]
    assert (len(ttft), nearest_rank(ttft, 0.50)) == (4, 100)
    whole = level(run)
    assert (whole["requests"], whole["n_ttft"], whole["p50_ttft_ms"]) == ({"ok": 4, "empty": 1}, 4, 100)


def test_t13_fast_failures_do_not_flatter_the_successes() -> None:
    run = [decoded(exchange(NORMAL(10, 100, 10))) for _ in range(8)]
    run += [decoded(refused(503, f"overloaded, request req_{k}f3a")) for k in range(2)]
    ttft = [at for record in run if (at := figures(record).ttft) is not None]
    assert (len(ttft), nearest_rank(ttft, 0.50), nearest_rank(ttft, 0.95)) == (8, 100, 100)
    failed = [record for record in run if is_failure(record.status)]
    assert len(failed) / len(run) == 0.20
    assert {status: len(list(same)) for status, same in groupby(r.status for r in failed)} == {"http_503": 2}
    assert {record.reason for record in failed} == {"overloaded, request <id>"}
    assert sum(record.output_tokens or 0 for record in run) == 80
    whole = level(run)
    assert whole["requests"] == {"ok": 8, "http_503": 2}
    assert (whole["n_ttft"], whole["p50_ttft_ms"], whole["p95_ttft_ms"]) == (8, 100, 100)
    assert whole["error_rate"] == pytest.approx(0.20)
    assert whole["output_throughput"] * WINDOW_S == pytest.approx(80)
    assert whole["request_throughput"] * WINDOW_S == pytest.approx(8)


def test_t15_a_very_long_line_is_an_event_like_others() -> None:
    record = decoded(exchange(T15))
    assert (record.status, record.output_tokens, figures(record).ttft) == ("ok", 2, 100)
    in_reads = [T15[0][1][k : k + 65_536] for k in range(0, len(T15[0][1]), 65_536)]
    record = decoded(exchange([(100 + k, part) for k, part in enumerate(in_reads)] + T15[1:]))
    assert (record.status, record.output_tokens, figures(record).ttft) == ("ok", 2, 100 + len(in_reads) - 1)


CASES = {
    "T01": T01,
    "T02": T02,
    "T03": T03,
    "T04": T04,
    "T05": T05,
    "T06": T06,
    "T07": T07,
    "T08": T08,
    "T09": T09,
    "T10": T10,
    "T11": T11,
    "T12": T12,
}


def without_times(record: RequestRecord) -> tuple[object, ...]:
    return (
        record.status,
        record.reason,
        record.finish_reason,
        record.input_tokens,
        record.output_tokens,
        record.output_tokens_source,
        record.response_bytes,
        len(record.arrivals_ns),
        None if record.event_tokens is None else record.event_tokens.tolist(),
    )


@pytest.mark.parametrize("name", CASES)
def test_a_cut_at_any_byte_changes_nothing_but_an_arrival(name: str) -> None:
    whole = decoded(exchange(CASES[name]))
    for script in cuts(CASES[name]):
        record = decoded(exchange(script))
        assert without_times(record) == without_times(whole)
        later = record.arrivals_ns - whole.arrivals_ns
        assert np.isin(later, (0, 5_000_000)).all()
