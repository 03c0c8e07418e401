"""The level object: each figure of docs/metrics.md from records written down by hand."""

import json

import numpy as np
import orjson
import pytest

from loadgen import virtual
from loadgen.record import RequestRecord
from loadgen.stats.latencies import LATENCIES
from loadgen.stats.level import level_object
from server.simulator.settings import SimulatorSettings
from tests.level_records import MS, closed_loop, health, normal, plan, request


def test_one_token_answers_have_no_tpot_and_no_itl_and_count_in_throughput() -> None:
    # T05
    one = {"arrivals_ms": [120], "event_tokens": [1]}
    level = level_object(plan(), [request(**one), request(**one), normal(11, 100, 50)], [])
    assert (level["n_tpot"], level["mean_tpot_ms"]) == (1, 50.0)
    assert level["n_itl"] == 10
    assert level["output_throughput"] == 13.0
    assert (level["n_ttft"], level["p50_ttft_ms"]) == (3, 120.0)

    alone = level_object(plan(), [request(**one)], [])
    assert (alone["n_tpot"], alone["p50_tpot_ms"], alone["mean_tpot_ms"]) == (0, None, None)
    assert (alone["n_itl"], alone["p50_itl_ms"], alone["itl_estimated"]) == (0, None, None)


def test_fast_failures_do_not_pull_latencies_down_and_are_counted_by_category() -> None:
    # T13
    failures = [request(status="http_503", finished_ms=1, sent_ns=None, reason="overloaded") for _ in range(2)]
    level = level_object(plan(), [normal(10, 100, 10) for _ in range(8)] + failures, [])
    assert (level["n_ttft"], level["p50_ttft_ms"], level["p95_ttft_ms"]) == (8, 100.0, 100.0)
    assert level["error_rate"] == 0.2
    assert level["requests"] == {"ok": 8, "http_503": 2}
    assert level["error_reasons"] == [{"status": "http_503", "reason": "overloaded", "count": 2}]
    assert level["output_throughput"] == 80.0
    assert level["request_throughput"] == 8.0


def test_requests_are_served_by_the_share_of_their_tokens_that_came_in_the_window() -> None:
    whole = normal(10, 100, 50)
    half = request(900, [1000, 1040, 1140, 1180])  # two of its four tokens come after the window
    late = request(2000, [2100])
    failed = request(0, [100, 200], status="http_503", reason="overloaded")
    level = level_object(plan(0, 1100), [whole, half, late, failed], [])
    assert level["served_request_rate"] == pytest.approx(1.5 / 1.1)
    assert level["completed_request_rate"] == pytest.approx(1 / 1.1)
    assert level["intervals"]["served_request_rate"][0] <= 1.5 / 1.1 <= level["intervals"]["served_request_rate"][1]


def test_a_request_that_was_cut_off_is_served_by_what_others_of_its_length_had_in_all() -> None:
    def cut_off(asked: int | None) -> RequestRecord:
        return request(0, [100, 200, 300], n=None, status="censored", output_tokens_requested=asked)

    assert level_object(plan(), [cut_off(12)], [])["served_request_rate"] == pytest.approx(3 / 12)
    assert level_object(plan(), [cut_off(None)], [])["served_request_rate"] == 0
    before = [normal(2, 100, 10, sent_ms=-900), normal(6, 100, 10, sent_ms=-900), normal(10, 100, 10, sent_ms=-900)]
    longer = (1 / 6 + 1 / 10) / 2  # of a token; the one of two tokens had ended
    assert level_object(plan(), [*before, cut_off(100)], [])["served_request_rate"] == pytest.approx(3 * longer)
    assert level_object(plan(), [*before, cut_off(None)], [])["served_request_rate"] == pytest.approx(3 * longer)
    assert level_object(plan(), [*before, cut_off(4)], [])["served_request_rate"] == pytest.approx(3 / 4)


def test_where_all_ok_requests_had_what_they_were_asked_for_so_would_one_that_was_cut_off() -> None:
    before = [normal(n, 100, 10, sent_ms=-900, output_tokens_requested=n) for n in (2, 6, 10)]
    cut_off = request(0, [100, 200, 300], n=None, status="censored", output_tokens_requested=20)
    assert level_object(plan(), [*before, cut_off], [])["served_request_rate"] == pytest.approx(3 / 20)
    nobody_asked = request(0, [100, 200, 300], n=None, status="censored")
    longer = (1 / 6 + 1 / 10) / 2
    assert level_object(plan(), [*before, nobody_asked], [])["served_request_rate"] == pytest.approx(3 * longer)


def test_an_event_of_a_request_that_was_cut_off_brought_as_many_tokens_as_others_did() -> None:
    before = [normal(25, 10, 10, sent_ms=-900, n=100, output_tokens_requested=100) for _ in range(4)]
    cut_off = request(0, [10 * k for k in range(1, 21)], n=None, status="censored", output_tokens_requested=100)
    level = level_object(plan(), [*before, cut_off], [])
    assert (level["output_throughput"], level["served_request_rate"]) == (80, pytest.approx(0.8))


def test_one_request_of_a_user_bounds_no_rate() -> None:
    level = level_object(plan(0, 1100), [normal(100, 10, 10)], [])
    assert level["served_request_rate"] == pytest.approx(1 / 1.1)
    assert "served_request_rate" not in level["intervals"]


def test_drain_tail_is_in_the_full_run_and_not_in_the_window() -> None:
    # T18
    streams = [normal(100, 100, 10), normal(100, 100, 10), normal(100, 100, 10), normal(500, 100, 10)]
    level = level_object(plan(100, 1100, concurrency=4), streams, [])
    assert level["output_throughput"] == 400.0
    assert level["full_run"]["output_throughput"] == pytest.approx(800 / 5.090)
    assert level["full_run"]["duration_s"] == 5.09


def test_percentiles_over_two_workers_are_those_of_all_requests() -> None:
    # T22
    fast = [request(0, [100], worker=0) for _ in range(1000)]
    slow = [request(0, [2000], worker=1) for _ in range(10)]
    level = level_object(plan(), fast + slow, [])
    assert [level[f"{p}_ttft_ms"] for p in ("p50", "p95", "p99", "max")] == [100.0, 100.0, 100.0, 2000.0]


def test_chunks_of_several_tokens_are_not_token_gaps() -> None:
    # T03: gaps of 60 and 80 ms that bring 3 and 4 tokens are seven samples of 20 ms.
    level = level_object(plan(), [request(0, [200, 260, 340], event_tokens=[1, 3, 4], n=8)], [])
    assert (level["n_itl"], level["p50_itl_ms"], level["p95_itl_ms"], level["max_itl_ms"]) == (7, 20.0, 20.0, 20.0)
    assert (level["n_chunk_gap"], level["p50_chunk_gap_ms"], level["max_chunk_gap_ms"]) == (2, 60.0, 80.0)
    assert level["p50_tpot_ms"] == 20.0
    assert level["itl_estimated"] is False


def test_without_counts_n_is_spread_over_the_events_and_itl_is_flagged() -> None:
    level = level_object(plan(), [request(0, [100, 130, 160], n=9)], [])
    assert (level["n_itl"], level["p50_itl_ms"]) == (6, 10.0)
    assert level["output_throughput"] == 9.0
    assert level["itl_estimated"] is True


def test_time_of_an_event_that_brought_no_token_belongs_to_the_next_one() -> None:
    level = level_object(plan(), [request(0, [100, 130, 140], event_tokens=[1, 0, 2], n=3)], [])
    assert (level["n_itl"], level["mean_itl_ms"], level["p50_itl_ms"]) == (2, 20.0, 20.0)
    assert level["n_chunk_gap"] == 2


def test_tpot_leaves_out_all_tokens_of_the_first_event() -> None:
    level = level_object(plan(), [request(0, [100, 140], event_tokens=[4, 4], n=8)], [])
    assert level["p50_tpot_ms"] == 10.0


def test_tokens_that_came_in_one_arrival_have_no_infinite_speed() -> None:
    # T07: two events in one read; and a whole answer in a single event.
    level = level_object(plan(), [request(0, [150, 150], coalesced=[True, True]), request(0, [100], n=20)], [])
    assert (level["n_tpot"], level["n_itl"], level["n_chunk_gap"]) == (0, 0, 1)
    assert (level["coalesced_events"], level["coalesced_gaps"]) == (2, 1)
    assert level["max_chunk_gap_ms"] == 0.0


def test_a_stall_that_ends_in_a_burst_is_in_itl_and_the_gaps_of_zero_are_not() -> None:
    level = level_object(
        plan(), [request(0, [100, 110, 140, 140, 150], coalesced=[False, False, True, True, False])], []
    )
    assert (level["n_itl"], level["max_itl_ms"]) == (3, 30.0)
    assert (level["n_chunk_gap"], level["coalesced_gaps"]) == (4, 1)


def test_latency_belongs_to_the_window_of_the_send_and_tokens_to_that_of_their_arrival() -> None:
    before = normal(10, 100, 100, sent_ms=-500)  # tokens at -400 … 500: 0, 100, … 500 lie in the window
    inside = normal(10, 100, 100, sent_ms=500)  # tokens at 600 … 1500: 600 … 900 lie in the window
    level = level_object(plan(), [before, inside], [])
    assert level["requests"] == {"ok": 1}
    assert (level["n_ttft"], level["n_e2el"], level["max_e2el_ms"]) == (1, 1, 1000.0)
    assert level["output_throughput"] == 10.0
    # Gaps end at 0 … 500 of the one and at 700, 800, 900 of the other.
    assert level["n_itl"] == 9


def test_window_includes_its_start_and_excludes_its_end() -> None:
    edge = [request(0, [0]), request(1000, [1000])]
    level = level_object(plan(), edge, [])
    assert (level["requests"], level["output_throughput"]) == ({"ok": 1}, 1.0)


def test_censored_tokens_count_and_its_latencies_do_not() -> None:
    records = [normal(3, 100, 10), request(0, [200, 300], status="censored", finished_ms=2000)]
    level = level_object(plan(), records, [])
    assert level["output_throughput"] == 5.0
    assert (level["n_ttft"], level["censored"]) == (1, 1)
    assert level["requests"] == {"ok": 1, "censored": 1}
    assert level["error_rate"] == 0.0


def test_partial_tokens_of_a_failed_request_stand_apart() -> None:
    # T10
    broken = request(0, [100, 150], status="stream_error", finished_ms=200, reason="code 500: engine died")
    level = level_object(plan(), [normal(10, 100, 50) for _ in range(9)] + [broken], [])
    assert (level["output_throughput"], level["failed_output_tokens"], level["error_rate"]) == (90.0, 2.0, 0.1)
    assert (level["p50_e2el_ms"], level["p95_e2el_ms"]) == (550.0, 550.0)


def test_reasoning_before_content_gives_two_first_times() -> None:
    # T02
    level = level_object(plan(), [request(0, [100, 150, 300, 350], first_visible_ns=300 * MS)], [])
    assert (level["p50_ttft_ms"], level["p50_ttfo_ms"]) == (100.0, 300.0)
    unseen = level_object(plan(), [request(0, [100, 150], first_visible_ns=None)], [])
    assert (unseen["n_ttfo"], unseen["p50_ttfo_ms"]) == (0, None)


def test_achieved_concurrency_is_time_weighted_and_peak_is_the_most_at_once() -> None:
    records = [
        request(-100, [250], finished_ms=250),
        request(250, [500], finished_ms=500),
        request(300, [400], finished_ms=400),
    ]
    level = level_object(plan(), records, [])
    assert level["achieved_concurrency"] == pytest.approx((250 + 250 + 100) / 1000)
    # A user's next request begins at the instant its last one ends: that is one in flight, not two.
    assert level["peak_concurrency"] == 2


def test_input_throughput_counts_prompts_whose_first_token_lies_in_the_window() -> None:
    records = [
        normal(2, 100, 10, input_tokens=300),
        normal(2, 100, 10, sent_ms=950, input_tokens=5000),  # first token at 1050
        request(0, [200], status="censored", finished_ms=1500, input_tokens_requested=40),
    ]
    assert level_object(plan(), records, [])["input_throughput"] == 340.0
    unknown = level_object(plan(), [normal(2, 100, 10)], [])
    assert (unknown["input_throughput"], unknown["input_tokens_unknown"]) == (None, 1)


def test_open_loop_has_an_offered_rate_a_send_lag_and_latencies_from_the_schedule() -> None:
    # T17: rate 10/s, one at a time, each takes 500 ms.
    records = [request(500 * i, [500 * i + 500], scheduled_ms=100 * i) for i in range(8)]
    level = level_object(plan(), records, [])
    assert level["mean_e2el_ms"] == 500.0
    assert (level["mean_e2el_from_schedule_ms"], level["max_e2el_from_schedule_ms"]) == (1900.0, 3300.0)
    assert level["p50_e2el_from_schedule_ms"] == 1700.0
    assert level["client"]["send_lag_max_ms"] == 2800.0
    assert (level["offered_request_rate"], level["sent_request_rate"]) == (8.0, 2.0)
    assert level_object(plan(), [normal(2, 100, 10)], [])["offered_request_rate"] is None


def test_goodput_counts_requests_that_meet_every_threshold_and_no_failure() -> None:
    records = [
        normal(3, 100, 10),
        normal(3, 300, 10),  # first token too late
        normal(3, 100, 60),  # tokens too slow
        request(0, [50]),  # one token has no TPOT to miss
        request(status="http_500", finished_ms=1),
    ]
    level = level_object(plan(), records, [], slo={"ttft_p95": 200, "tpot_p95": 50, "error_rate": 0.1})
    assert level["request_goodput"] == 2.0
    told = {key: {name: one[name] for name in ("threshold", "value", "met")} for key, one in level["slo"].items()}
    assert told["ttft_p95"] == {"threshold": 200.0, "value": 300.0, "met": False}
    assert told["error_rate"] == {"threshold": 0.1, "value": 0.2, "met": False}
    assert level_object(plan(), records, [])["request_goodput"] is None
    assert level_object(plan(), records, [], slo={"error_rate": 0.1})["request_goodput"] is None


def test_goodput_takes_an_itl_threshold_over_the_request_s_own_gaps() -> None:
    steady, stalled = normal(21, 100, 10), request(0, [100 + 10 * i + (500 if i > 10 else 0) for i in range(21)])
    records = [steady, stalled]  # one gap of 20 is 510 ms: within P95, not within the maximum
    assert level_object(plan(), records, [], slo={"itl_p95": 10})["request_goodput"] == 2.0
    assert level_object(plan(), records, [], slo={"itl_max": 10})["request_goodput"] == 1.0
    assert level_object(plan(), records, [], slo={"itl_mean": 20})["request_goodput"] == 1.0
    assert level_object(plan(), records, [], slo={"chunk_gap_max": 400})["request_goodput"] == 1.0


def test_unknown_slo_is_refused_with_what_may_be_used() -> None:
    for key in ("ttft_p97", "speed_p95", "p95_ttft"):
        with pytest.raises(ValueError, match=f"slo.{key}: not an SLO; use error_rate, or one of ttft"):
            level_object(plan(), [], [], slo={key: 1})


def test_slo_of_a_figure_without_samples_is_neither_met_nor_missed() -> None:
    level = level_object(plan(), [request(0, [100])], [], slo={"tpot_p95": 50})
    nothing = {"value": None, "met": None, "interval": None, "holds": None}
    assert level["slo"]["tpot_p95"] == {"threshold": 50.0, **nothing}


def test_weak_percentiles_are_named() -> None:
    level = level_object(plan(), [request(0, [100], first_visible_ns=None) for _ in range(100)], [])
    assert level["weak_percentiles"] == ["p99_ttft_ms", "p99_e2el_ms"]


def test_lengths_asked_for_and_delivered_are_compared() -> None:
    records = [
        normal(8, 100, 10, output_tokens_requested=10, input_tokens=7, input_tokens_requested=7),
        normal(10, 100, 10, output_tokens_requested=10, input_tokens=9, input_tokens_requested=7),
    ]
    level = level_object(plan(), records, [])
    assert (level["output_tokens_requested"], level["output_tokens_delivered"]) == (20, 18)
    assert (level["mean_input_tokens"], level["mean_output_tokens"], level["input_tokens_mismatched"]) == (8.0, 9.0, 1)
    assert level["finish_reasons"] == {"length": 2}


def test_ten_most_frequent_error_reasons_are_kept() -> None:
    records = [
        request(status="connect", finished_ms=1, reason=f"reason {i:02}") for i in range(12) for _ in range(i + 1)
    ]
    reasons = level_object(plan(), records, [])["error_reasons"]
    assert [reason["count"] for reason in reasons] == [12, 11, 10, 9, 8, 7, 6, 5, 4, 3]


def test_client_figures_are_those_of_the_worst_worker_and_of_this_level() -> None:
    reports = [
        health(1, loop_lag_p99_ms=3.0),
        health(0, read_delay_p99_ms=None),
        health(0, level=1, loop_lag_p99_ms=99.0),
    ]
    client = level_object(plan(workers=2), closed_loop(1, 3), reports)["client"]
    assert (client["loop_lag_p99_ms"], client["read_delay_p99_ms"]) == (3.0, 0.2)
    assert [worker["worker"] for worker in client["workers"]] == [0, 1]


def test_send_lag_send_gap_and_coalescing_are_worked_out_for_each_worker() -> None:
    records = [
        normal(4, 50, 10, sent_ms=100, scheduled_ms=97, send_gap_ns=40_000, worker=0),
        normal(4, 50, 10, sent_ms=200, scheduled_ms=192, worker=1, coalesced=[False, True, True, False]),
    ]
    client = level_object(plan(workers=2), records, [health(0), health(1)])["client"]
    names = ("send_lag_p99_ms", "send_gap_max_ms", "coalesced_share")
    assert [tuple(worker[name] for name in names) for worker in client["workers"]] == [(3, 0.04, 0), (8, None, 0.5)]
    assert tuple(client[name] for name in names) == (8, 0.04, 0.5)


def test_the_wait_for_a_connection_is_a_figure_of_its_own_and_in_no_latency() -> None:
    records = [
        normal(4, 50, 10, sent_ms=100, connection_wait_ns=80_000_000),
        normal(4, 50, 10, sent_ms=200, connection_wait_ns=20_000),
        normal(4, 50, 10, sent_ms=300),  # there never was one, or an older program did not say
    ]
    level = level_object(plan(), records, [health()])
    assert level["client"]["connection_wait_max_ms"] == 80
    assert level["client"]["workers"][0]["connection_wait_p99_ms"] == 80
    assert level["max_ttft_ms"] == 50
    none = level_object(plan(), [normal(4, 50, 10, sent_ms=100)], [health()])["client"]
    assert none["connection_wait_max_ms"] is None


def test_in_a_closed_loop_there_is_no_send_lag_and_it_is_not_zero() -> None:
    client = level_object(plan(), closed_loop(1, 3), [health()])["client"]
    assert [client[f"send_lag_{name}_ms"] for name in ("p50", "p99", "max")] == [None] * 3
    assert client["workers"][0]["send_lag_max_ms"] is None
    assert client["send_gap_p99_ms"] is None  # nobody took the instant after the send


def test_neighbouring_level_s_records_do_not_enter_the_window() -> None:
    # T23: what was sent in the window of the level before belongs to that level only.
    mine, other = normal(5, 100, 20, sent_ms=1000, level=1), normal(5, 500, 20, sent_ms=0, level=0)
    level = level_object(plan(1000, 2000, level=1), [mine, other], [])
    assert (level["n_ttft"], level["max_ttft_ms"]) == (1, 100.0)
    assert level["full_run"]["requests"] == 1


def test_level_object_has_every_promised_field_and_is_strict_json() -> None:
    for records in ([], closed_loop(2, 30)):
        level = level_object(plan(concurrency=2, server={"max_num_seqs": 8}), records, [health()])
        text = orjson.dumps(level)
        assert json.loads(text) == level  # nothing but plain Python values; orjson would write NaN as null
        promised = {
            "schema_version", "level", "concurrency", "request_rate", "server", "valid", "reasons", "warnings",
            "window_s", "requests", "achieved_concurrency", "request_throughput", "output_throughput",
            "input_throughput", "request_goodput", "client", "server_metrics", "offered_request_rate",
            "sent_request_rate", "completed_request_rate", "failed_output_tokens", "censored", "coalesced_events",
            "itl_estimated", "full_run", "finish_reasons", "error_reasons", "weak_percentiles", "slo",
        }  # fmt: skip
        promised |= {f"n_{name}" for name in LATENCIES}
        promised |= {f"{s}_{name}_ms" for s in ("mean", "p50", "p90", "p95", "p99", "max") for name in LATENCIES}
        assert promised <= level.keys()


def test_level_without_records_measures_nothing_and_says_so() -> None:
    level = level_object(plan(), [], [])
    assert (level["p50_ttft_ms"], level["error_rate"], level["full_run"]["output_throughput"]) == (None, None, None)
    assert [reason["rule"] for reason in level["reasons"]] == ["no_request_succeeded", "load_not_reached"]


def test_window_without_length_and_event_arrays_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="must end after it starts"):
        level_object(plan(5, 5), [], [])
    with pytest.raises(ValueError, match="event_tokens"):
        level_object(plan(), [request(0, [1, 2], event_tokens=[1])], [])
    with pytest.raises(ValueError, match="coalesced"):
        level_object(plan(), [request(0, [1, 2], coalesced=[True])], [])


def test_large_instants_keep_their_nanoseconds() -> None:
    # A machine that has been up for a year: 3e16 ns is beyond what a float holds exactly.
    base_ms = 3e10
    base_ns = round(base_ms * MS)
    instants = {"dispatched_ns": base_ns, "sent_ns": base_ns + 1, "finished_ns": base_ns + 5}
    arrival = base_ns + 4
    record = request(0, [1], first_token_ns=arrival, last_token_ns=arrival, arrivals_ns=np.array([arrival]), **instants)
    level = level_object(plan(base_ms, base_ms + 1000), [record], [])
    assert level["p50_ttft_ms"] == 3e-6


def test_closed_loop_in_virtual_time_obeys_little_s_law() -> None:
    records = virtual.closed_loop(
        SimulatorSettings(), concurrency=8, input_tokens=64, output_tokens=32, duration_ns=30 * 10**9, start_ns=0
    )
    level = level_object(plan(5_000, 25_000, concurrency=8), records, [])
    assert level["achieved_concurrency"] == pytest.approx(8, rel=1e-6)
    assert level["peak_concurrency"] == level["users_seen"] == 8
    assert level["request_throughput"] * level["mean_e2el_ms"] / 1000 == pytest.approx(8, rel=0.05)
    assert level["output_throughput"] == pytest.approx(32 * level["request_throughput"], rel=0.05)
    assert (level["valid"], level["itl_estimated"]) == (True, False)
