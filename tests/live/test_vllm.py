"""What a real sweep against a real vLLM says, held against what that vLLM counted itself.

vLLM's counters are the truth here. They cannot be compared blindly: see docs/live-tests.md for what each one counts.
"""

from itertools import pairwise

import pytest

from loadgen.record import CANCELLED, OK
from tests.live.agreement import (
    around_median_ms,
    delivered_tokens,
    mean_itl_ms,
    mean_ttft_ms,
    output_throughput,
    tokens_arrived,
)
from tests.live.launch import MAX_NUM_SEQS, MODEL
from tests.live.sweep import CONCURRENCY, DURATION_S, INPUT_TOKENS, OUTPUT_TOKENS, PROBE_OUTPUT_TOKENS, Sweep

pytestmark = [pytest.mark.live, pytest.mark.timeout(3600)]  # the first test also builds the environment

EACH_LEVEL = pytest.mark.parametrize("level", range(len(CONCURRENCY)), ids=[f"concurrency-{c}" for c in CONCURRENCY])

ONE_PROBE = 1
"""The request that `loadgen run` sends before the first level: vLLM counts it, no record does."""

UNDELIVERED_TOKENS = 3
"""Tokens of one abandoned request that vLLM may have counted after its client had gone: those of the steps that end
before it notices. One was the most seen; each step gives a request one token."""


# What the run leaves


def test_the_sweep_measures_every_level_and_calls_each_valid(sweep: Sweep) -> None:
    assert [level["concurrency"] for level in sweep.summary] == list(CONCURRENCY)
    assert [(level["valid"], level["reasons"]) for level in sweep.summary] == [(True, [])] * len(CONCURRENCY)
    assert [level["window_s"] for level in sweep.summary] == pytest.approx([DURATION_S] * len(CONCURRENCY), rel=0.01)


def test_the_run_folder_is_the_one_that_was_asked_for_and_has_a_report(sweep: Sweep) -> None:
    assert sweep.output.rstrip().splitlines()[-1] == f"run folder: {sweep.folder}"
    assert (sweep.folder / "report.html").stat().st_size > 10_000
    for name in ("summary.csv", "metrics.prom", "scenario.yaml", "provenance.json"):
        assert (sweep.folder / name).stat().st_size > 0, name


def test_no_request_failed_and_the_drain_gave_none_up(sweep: Sweep) -> None:
    assert {r.status for r in sweep.records} <= {OK, CANCELLED}, {r.reason for r in sweep.unfinished}
    # Only the users' last requests are abandoned, when the run ends.
    assert len(sweep.unfinished) <= max(CONCURRENCY)


# Counts, over the whole run


def test_vllm_finished_exactly_the_requests_that_are_recorded_as_ok(sweep: Sweep) -> None:
    ended = {
        reason: int(sweep.rise("vllm:request_success_total", finished_reason=reason))
        for reason in ("stop", "length", "error", "abort")
    }
    assert 0 <= ended.pop("length") - ONE_PROBE - len(sweep.finished) <= on_the_brink(sweep)
    assert ended == {"stop": 0, "error": 0, "abort": 0}  # vLLM does not count abandoned requests as "abort"


def test_tokens_of_finished_requests_are_exactly_those_that_vllm_counted(sweep: Sweep) -> None:
    beyond = int(sweep.rise("vllm:request_generation_tokens_count")) - ONE_PROBE - len(sweep.finished)
    assert 0 <= beyond <= on_the_brink(sweep)
    output = PROBE_OUTPUT_TOKENS + sum(r.output_tokens or 0 for r in sweep.finished)
    assert sweep.rise("vllm:request_generation_tokens_sum") == output + beyond * OUTPUT_TOKENS
    prompt = INPUT_TOKENS + sum(r.input_tokens or 0 for r in sweep.finished)
    assert sweep.rise("vllm:request_prompt_tokens_sum") == prompt + beyond * INPUT_TOKENS


def on_the_brink(sweep: Sweep) -> int:
    """Abandoned requests that may have ended in vLLM all the same, since nearly all of their tokens had come: mostly 0."""
    return sum(delivered_tokens(r) >= OUTPUT_TOKENS - UNDELIVERED_TOKENS for r in sweep.unfinished)


def test_tokens_of_all_requests_are_those_that_vllm_generated_but_for_the_undelivered_ones(sweep: Sweep) -> None:
    delivered = PROBE_OUTPUT_TOKENS + sum(map(delivered_tokens, sweep.records))
    generated = sweep.rise("vllm:generation_tokens_total")
    assert delivered <= generated <= delivered + UNDELIVERED_TOKENS * len(sweep.unfinished)


def test_every_finished_request_has_the_tokens_that_were_asked_for(sweep: Sweep) -> None:
    assert {(r.output_tokens, r.output_tokens_requested, r.output_tokens_source) for r in sweep.finished} == {
        (OUTPUT_TOKENS, OUTPUT_TOKENS, "usage")
    }
    assert {r.finish_reason for r in sweep.finished} == {"length"}


def test_every_token_of_a_finished_request_has_its_own_event_and_arrival(sweep: Sweep) -> None:
    """Also one without text (a special token, a part of a character): vLLM sends it with empty content and a count."""
    assert {len(r.arrivals_ns) for r in sweep.finished} == {OUTPUT_TOKENS}
    assert {r.event_tokens.max() for r in sweep.finished if r.event_tokens is not None} == {1}


def test_every_request_has_the_prompt_length_that_was_asked_for(sweep: Sweep) -> None:
    lengths = {(r.input_tokens, r.input_tokens_requested) for r in sweep.records if r.input_tokens is not None}
    assert lengths == {(INPUT_TOKENS, INPUT_TOKENS)}


def test_no_two_prompts_share_a_block_of_the_prefix_cache(sweep: Sweep) -> None:
    assert sweep.rise("vllm:prefix_cache_queries_total") >= INPUT_TOKENS * len(sweep.finished)
    assert sweep.rise("vllm:prefix_cache_hits_total") == 0


# Figures, level by level


def test_at_every_moment_as_many_tokens_have_arrived_as_vllm_had_counted(sweep: Sweep) -> None:
    scrapes = [
        s
        for s in sweep.vllm_samples
        if sweep.plans[0].window_start_ns <= s.asked_ns and s.answered_ns <= sweep.plans[-1].window_end_ns
    ]
    assert len(scrapes) > DURATION_S * len(CONCURRENCY)
    before = sweep.before.value("vllm:generation_tokens_total") + PROBE_OUTPUT_TOKENS
    at_least = tokens_arrived(sweep, [s.asked_ns for s in scrapes])
    at_most = tokens_arrived(sweep, [s.answered_ns for s in scrapes])
    for s, low, high in zip(scrapes, at_least, at_most, strict=True):
        counted = s.value("vllm:generation_tokens_total") - before
        assert low <= counted <= high + 2 * MAX_NUM_SEQS  # it counts a step's tokens just before it sends them


@EACH_LEVEL
def test_output_throughput_is_that_of_every_token_that_arrived_in_the_window(sweep: Sweep, level: int) -> None:
    """Also of those whose requests were sent before it, in the level before."""
    plan, figures = sweep.plans[level], sweep.summary[level]
    start, end = tokens_arrived(sweep, [plan.window_start_ns, plan.window_end_ns])
    assert figures["output_throughput"] * figures["window_s"] == pytest.approx(end - start, abs=0.5)


@EACH_LEVEL
def test_output_throughput_is_the_slope_of_vllms_token_counter(sweep: Sweep, level: int) -> None:
    pair = output_throughput(sweep, level)
    assert pair.ours == pytest.approx(pair.vllm, rel=0.03)


@EACH_LEVEL
def test_mean_itl_is_the_mean_of_vllms_own(sweep: Sweep, level: int) -> None:
    pair = mean_itl_ms(sweep, level)
    assert pair.ours == pytest.approx(pair.vllm, rel=0.03)


def test_mean_ttft_of_the_run_is_vllms_own_plus_the_way_to_it_and_back(sweep: Sweep) -> None:
    pair = mean_ttft_ms(sweep)
    assert pair is not None, "the records and vLLM never agreed on how many first tokens there had been"
    assert 0 < pair.ours - pair.vllm < 50


@EACH_LEVEL
@pytest.mark.parametrize(
    ("figure", "histogram"),
    [("p50_ttft_ms", "vllm:time_to_first_token_seconds"), ("p50_itl_ms", "vllm:inter_token_latency_seconds")],
)
def test_median_lies_in_or_next_to_the_bucket_that_holds_vllms(
    sweep: Sweep, level: int, figure: str, histogram: str
) -> None:
    low_ms, high_ms = around_median_ms(sweep, level, histogram)
    assert low_ms <= sweep.summary[level][figure] <= high_ms


@EACH_LEVEL
def test_nothing_that_was_measured_is_absent(sweep: Sweep, level: int) -> None:
    figures = sweep.summary[level]
    for metric in ("ttft", "ttfo", "itl", "chunk_gap", "tpot", "e2el"):
        for key in ("mean", "p50", "p90", "p95", "p99", "max"):
            assert figures[f"{key}_{metric}_ms"] > 0, f"{key}_{metric}_ms"
        assert figures[f"n_{metric}"] > 0
    # A closed loop has no schedule: absent, not 0.
    assert figures["p50_ttft_from_schedule_ms"] is None
    assert figures["p50_e2el_from_schedule_ms"] is None


@EACH_LEVEL
def test_vllm_has_as_many_requests_as_the_level_says(sweep: Sweep, level: int) -> None:
    plan = sweep.plans[level]
    samples = [s for s in sweep.vllm_samples if plan.window_start_ns <= s.at_ns <= plan.window_end_ns]
    running = [s.value("vllm:num_requests_running") for s in samples]
    waiting = [s.value("vllm:num_requests_waiting") for s in samples]
    # vLLM shows what its last step had: less than there is whenever a request has just ended. So the highest counts.
    assert max(map(sum, zip(running, waiting, strict=True))) == CONCURRENCY[level]
    assert max(running) == min(CONCURRENCY[level], MAX_NUM_SEQS)
    assert sweep.summary[level]["achieved_concurrency"] == pytest.approx(CONCURRENCY[level], rel=0.05)


def test_the_sweep_shows_the_schedulers_limit(sweep: Sweep) -> None:
    """Beyond max_num_seqs, requests wait: throughput stays, TTFT grows by the time of a whole request."""
    by_concurrency = dict(zip(CONCURRENCY, sweep.summary, strict=True))
    at_limit, beyond = by_concurrency[MAX_NUM_SEQS], by_concurrency[2 * MAX_NUM_SEQS]
    assert at_limit["output_throughput"] > 1.5 * by_concurrency[1]["output_throughput"]
    assert beyond["output_throughput"] < 1.4 * at_limit["output_throughput"]
    assert beyond["p50_ttft_ms"] > 2 * at_limit["p50_ttft_ms"]


# The run's own /metrics


def test_metrics_answered_throughout_the_run_and_counted_upwards(sweep: Sweep) -> None:
    first, last = sweep.plans[0].window_start_ns, sweep.plans[-1].window_end_ns
    answers = [s for s in sweep.loadgen_samples if first <= s.at_ns <= last]
    assert len(answers) > 10
    assert max(b.at_ns - a.at_ns for a, b in pairwise(answers)) < 3e9
    tokens = [s.value("loadgen_output_tokens_total") for s in answers]
    assert tokens == sorted(tokens)
    assert tokens[-1] > tokens[0]


def test_metrics_showed_each_finished_level_with_the_figures_of_the_summary(sweep: Sweep) -> None:
    assert sweep.loadgen_samples, "/metrics never answered"
    last = sweep.loadgen_samples[-1]
    shown = {labels["level"]: labels for name, labels, _ in last.series if name == "loadgen_level_valid"}
    assert len(shown) >= len(CONCURRENCY) - 1  # the last one may end with the run
    for level, labels in shown.items():
        figures = sweep.summary[int(level)]
        assert labels["concurrency"] == str(figures["concurrency"])
        assert labels["model"] == MODEL
        rate = last.value("loadgen_level_output_tokens_per_second", level=level)
        assert rate == pytest.approx(figures["output_throughput"], rel=1e-6)
        for quantile, key in (("0.5", "p50"), ("0.95", "p95"), ("0.99", "p99")):
            for stem in ("ttft", "itl"):
                shown_s = last.value(f"loadgen_level_{stem}_seconds", level=level, quantile=quantile)
                assert shown_s * 1e3 == pytest.approx(figures[f"{key}_{stem}_ms"], rel=1e-6)
