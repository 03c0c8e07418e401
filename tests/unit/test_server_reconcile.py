"""Client against server over the same time: what may differ, and what a larger difference means."""

from dataclasses import replace
from typing import Any

import pytest

from loadgen.report.server_table import outside_lines
from loadgen.server_metrics.sample import ServerSample
from loadgen.stats.capacity import capacities
from loadgen.stats.level import level_object
from loadgen.stats.server_rules import settings_mismatch
from tests.level_records import closed_loop, health, plan, request
from tests.server_samples import S, buckets, counting, perfect_server, showing

WINDOW = (0, 10 * S)
RECORDS = closed_loop(8, 60, tokens=20, first_ms=50, gap_ms=10)


def level(samples: list[ServerSample], records: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
    return level_object(
        plan(0, 10_000, concurrency=8, **fields), RECORDS if records is None else records, [health()], server=samples
    )


def rules(one: dict[str, Any]) -> set[str]:
    return {found["rule"] for found in (*one["reasons"], *one["warnings"])}


OF_THE_SERVER = {"other_traffic", "some_other_traffic", "tokens_disagree", "server_restarted", "settings_mismatch"}


def grown(share: float, *names: str) -> list[ServerSample]:
    """A server that did so much more besides ours, evenly over the window."""
    samples = perfect_server(RECORDS, WINDOW)
    return [
        counting(
            one, **{name: share * (samples[-1].counters[name] - samples[0].counters[name]) * i / 10 for name in names}
        )
        for i, one in enumerate(samples)
    ]


def test_a_server_that_served_only_us_agrees_in_every_count() -> None:
    one = level(perfect_server(RECORDS, WINDOW))
    found = one["server_metrics"]["reconciliation"]
    for name in ("first_tokens", "finished_requests", "output_tokens", "prompt_tokens", "in_flight"):
        assert found[name]["difference"] == 0, name
        assert found[name]["server"] == found[name]["client"] > 0
    assert found["ttft"]["difference_ms"] == pytest.approx(0, abs=1e-6)
    assert (found["other_traffic_share"], found["tokens_beyond_tolerance"]) == (0, 0)
    assert not rules(one) & OF_THE_SERVER


def test_tokens_on_their_way_at_the_windows_ends_are_no_difference() -> None:
    samples = perfect_server(RECORDS, WINDOW)
    late = samples[-1]
    samples[-1] = counting(late, generation_tokens=4)  # a step that the clients are about to see
    found = level(samples)["server_metrics"]["reconciliation"]
    assert found["output_tokens"]["difference"] == 4
    assert 4 <= found["tolerance_tokens"] < 100
    assert found["tokens_beyond_tolerance"] == 0


@pytest.mark.parametrize(("share", "rule"), [(0.2, "other_traffic"), (0.04, "some_other_traffic")])
def test_more_requests_in_flight_and_more_tokens_are_other_traffic(share: float, rule: str) -> None:
    samples = [showing(one, running=one.gauges["running"] + 2) for one in grown(share, "generation_tokens")]
    one = level(samples)
    assert rules(one) & OF_THE_SERVER == {rule}
    assert one["valid"] == (rule == "some_other_traffic")
    expected = share / (1 + share)
    found = one["server_metrics"]["reconciliation"]
    # What may have been on its way at the window's ends is not held against anybody.
    assert expected - 0.03 < found["other_traffic_share"] <= expected + 1e-9
    told = next(each for each in (*one["reasons"], *one["warnings"]) if each["rule"] == rule)["evidence"]
    assert "10 requests ran or waited there on average, 8 ours" in told


@pytest.mark.parametrize("share", [0.04, 0.2])
def test_of_a_server_that_is_stated_to_be_shared_others_are_a_doubt_and_no_reason(share: float) -> None:
    samples = [showing(one, running=one.gauges["running"] + 2) for one in grown(share, "generation_tokens")]
    one = level_object(plan(0, 10_000, concurrency=8), RECORDS, [health()], server=samples, shared_target=True)
    assert one["valid"] and one["shared_target"]
    assert rules(one) & OF_THE_SERVER == set()
    (doubt,) = (each for each in one["warnings"] if each["rule"] == "beside_other_traffic")
    assert "of what the server did was for others" in doubt["evidence"] and "beside that traffic" in doubt["evidence"]
    slo = {"ttft_p95": 60.0}
    kept = level_object(
        plan(0, 10_000, concurrency=8), RECORDS, [health()], server=samples, shared_target=True, slo=slo
    )
    (capacity,) = capacities([kept])
    assert capacity["level"] == 0 and "That is beside other traffic: about" in capacity["text"]
    alone = level_object(
        plan(0, 10_000, concurrency=8), RECORDS, [health()], server=perfect_server(RECORDS, WINDOW), shared_target=True
    )
    assert "beside_other_traffic" not in rules(alone)


def test_what_to_do_about_other_traffic_names_the_key_for_a_shared_server() -> None:
    one = level([showing(one, running=one.gauges["running"] + 2) for one in grown(0.2, "generation_tokens")])
    (reason,) = (each for each in one["reasons"] if each["rule"] == "other_traffic")
    assert "target.shared: true" in reason["remedy"]


def test_first_tokens_of_others_are_other_traffic_even_while_few_are_in_flight() -> None:
    samples = perfect_server(RECORDS, WINDOW)
    ours = samples[-1].histograms["ttft"]
    n = int(ours.counts[-1])
    samples[-1] = replace(samples[-1], histograms={"ttft": buckets([0.05] * (n * 3 // 2))})
    assert "other_traffic" in rules(level(samples))


def test_a_histogram_that_was_not_kept_at_both_ends_is_not_compared() -> None:
    samples = perfect_server(RECORDS, WINDOW)
    samples[-1] = replace(samples[-1], histograms={})
    found = level(samples)["server_metrics"]["reconciliation"]
    assert (found["first_tokens"]["server"], found["first_tokens"]["difference"]) == (None, None)
    assert found["output_tokens"]["difference"] == 0


def test_more_tokens_of_as_many_requests_are_a_disagreement_not_other_traffic() -> None:
    assert rules(level(grown(0.2, "generation_tokens"))) & OF_THE_SERVER == {"tokens_disagree"}


def test_fewer_tokens_than_arrived_came_from_another_server() -> None:
    samples = [
        replace(one, counters={**one.counters, "generation_tokens": one.counters["generation_tokens"] / 2})
        for one in perfect_server(RECORDS, WINDOW)
    ]
    one = level(samples)
    assert rules(one) & OF_THE_SERVER == {"tokens_disagree"}
    assert one["server_metrics"]["reconciliation"]["output_tokens"]["difference"] < 0


def test_what_the_server_generated_for_requests_that_we_gave_up_is_ours() -> None:
    given_up = [
        replace(one, status="timeout_total", reason="too long", output_tokens=None, output_tokens_source=None,
                arrivals_ns=one.arrivals_ns[:10], coalesced=one.coalesced[:10], output_tokens_requested=20)
        if i % 3 == 0 else one
        for i, one in enumerate(RECORDS)
    ]  # fmt: skip
    one = level(perfect_server(RECORDS, WINDOW), given_up)
    assert not rules(one) & OF_THE_SERVER


def test_a_server_that_counts_at_the_end_of_a_request_is_given_what_is_under_way() -> None:
    def at_end(one: ServerSample) -> ServerSample:
        done = one.counters["requests"] * 20
        counters = {**one.counters, "generation_tokens": done}
        return replace(one, kind="sglang", counters=counters)

    one = level(perfect_server(RECORDS, WINDOW, change=at_end))
    assert not rules(one) & OF_THE_SERVER


def test_answers_that_come_whole_have_no_first_token_to_compare() -> None:
    whole = [
        request(
            (r.sent_ns or 0) / 1e6,
            [r.finished_ns / 1e6],
            n=20,
            input_tokens=100,
            input_tokens_requested=100,
            output_tokens_requested=20,
            first_token_ns=None,
            first_visible_ns=None,
            user=r.user,
            index=r.index,
        )
        for r in RECORDS
    ]
    one = level(perfect_server(RECORDS, WINDOW), whole)
    found = one["server_metrics"]["reconciliation"]
    assert (found["first_tokens"]["client"], found["first_tokens"]["difference"]) == (None, None)
    assert not rules(one) & OF_THE_SERVER


def test_time_before_the_server_shows_in_ttft_and_in_flight() -> None:
    one = level(perfect_server(RECORDS, WINDOW, before_first_token_ns=40_000_000))
    found = one["server_metrics"]["reconciliation"]
    assert found["ttft"]["server_ms"] == pytest.approx(10)
    assert found["ttft"]["difference_ms"] == pytest.approx(-40)
    assert found["in_flight"]["server"] < found["in_flight"]["client"] <= 8
    assert (
        "40 ms of TTFT pass outside the server's account, longer than a scrape takes there and back (2 ms)"
        in found["text"]
    )
    assert outside_lines([one]) == [f"client and server at concurrency 8: {found['text']}."]
    assert outside_lines([level(perfect_server(RECORDS, WINDOW))]) == []


def test_settings_that_the_server_did_not_take_make_a_level_invalid() -> None:
    one = {"server": {"max_num_seqs": 8, "enforce_eager": True, "max_model_len": "auto"}}
    assert settings_mismatch(one) is None
    assert settings_mismatch({**one, "effective": None}) is None
    same = {"max_num_seqs": 8, "enforce_eager": None, "max_model_len": 4096}
    assert settings_mismatch({**one, "effective": same}) is None
    assert settings_mismatch({**one, "effective": {**same, "max_num_seqs": 4}}) == (
        "The server runs with other settings than the level asked for: max_num_seqs was asked to be 8 and is 4."
    )
    made_of = plan(0, 10_000, concurrency=8, server={"max_num_seqs": 8}, effective={"max_num_seqs": 4})
    assert "settings_mismatch" in rules(level_object(made_of, RECORDS, [health()]))


def test_answers_that_end_by_themselves_are_a_warning_but_not_of_a_dataset() -> None:
    short = [replace(one, output_tokens_requested=40) for one in RECORDS]
    one = level([], short)
    assert "short_outputs" in rules(one)
    assert "50 % of the output tokens" in next(w for w in one["warnings"] if w["rule"] == "short_outputs")["evidence"]
    assert "short_outputs" not in rules(level([], short, dataset_rows=1000))
    assert "short_outputs" not in rules(level([]))


def test_a_clock_that_moved_or_is_hardly_known_is_a_warning() -> None:
    assert "clock_drift" in rules(level([], clock_change_ns=2 * S))
    assert "clock_drift" not in rules(level([], clock_change_ns=1_000_000))
    assert "clock_drift" not in rules(level([]))
    late = level_object(plan(0, 10_000, concurrency=8), RECORDS, [health(clock_error_ns=200_000_000)])
    assert "clock_drift" in rules(late)
