"""What a real sweep against a real vLLM says, held against what that vLLM counted itself.

vLLM's counters are the truth here. They cannot be compared blindly: see docs/live-tests.md for what each one counts.
"""

import json
import statistics
from itertools import pairwise
from urllib.request import Request, urlopen

import pytest
from environment import Environment
from launch import MAX_NUM_SEQS, MODEL, Vllm
from scrape import Scrape, median_bucket, value_at
from sweep import CONCURRENCY, DURATION_S, INPUT_TOKENS, OUTPUT_TOKENS, Sweep

from loadgen.prompts.pool import make_recipe
from loadgen.prompts.tokenizers import LocalCounter, ServerCounter
from loadgen.record import RequestRecord
from loadgen.run_folder import LevelData

pytestmark = [pytest.mark.live, pytest.mark.timeout(3600)]  # the first test also builds the environment

EACH_LEVEL = pytest.mark.parametrize("level", range(len(CONCURRENCY)), ids=[f"concurrency-{c}" for c in CONCURRENCY])

UNDELIVERED_TOKENS = 3
"""Tokens of one abandoned request that vLLM may have counted after its client had gone: those of the steps that end
before it notices. One was the most seen; each step gives a request one token."""


def delivered_tokens(record: RequestRecord) -> int:
    """Tokens that reached the client, also of a request that it abandoned: vLLM sends one event a token."""
    if record.event_tokens is not None:
        return int(record.event_tokens.sum())
    return len(record.arrivals_ns)


def scrape_after(sweep: Sweep, instant_ns: int) -> Scrape:
    return next(s for s in [*sweep.vllm_samples, sweep.after] if s.asked_ns >= instant_ns)


def scrape_before(sweep: Sweep, instant_ns: int) -> Scrape:
    return next(s for s in [*reversed(sweep.vllm_samples), sweep.before] if s.answered_ns <= instant_ns)


def in_window(sweep: Sweep, level: int) -> list[Scrape]:
    plan = sweep.levels[level].plan
    return [s for s in sweep.vllm_samples if plan.window_start_ns <= s.asked_ns and s.answered_ns <= plan.window_end_ns]


def mean_over(before: Scrape, after: Scrape, histogram: str) -> float:
    """Mean in seconds of what vLLM observed between two scrapes: exact, unlike its buckets."""
    count = after.value(f"{histogram}_count") - before.value(f"{histogram}_count")
    return (after.value(f"{histogram}_sum") - before.value(f"{histogram}_sum")) / count


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


def test_no_request_failed(sweep: Sweep) -> None:
    assert {(r.status, r.reason) for r in sweep.unfinished if r.status not in ("cancelled", "censored")} == set()
    assert len(sweep.finished) >= 4 * len(CONCURRENCY)


# Counts, over the whole run


def test_vllm_finished_exactly_the_requests_that_are_recorded_as_ok(sweep: Sweep) -> None:
    ended = {
        reason: int(sweep.rise("vllm:request_success_total", finished_reason=reason))
        for reason in ("stop", "length", "error", "abort")
    }
    # A request may end in the server while its client is giving it up; such a one has nearly all of its tokens.
    on_the_brink = sum(delivered_tokens(r) >= OUTPUT_TOKENS - UNDELIVERED_TOKENS for r in sweep.unfinished)
    assert 0 <= ended.pop("length") - len(sweep.finished) <= on_the_brink
    assert ended == {"stop": 0, "error": 0, "abort": 0}  # vLLM does not count abandoned requests as "abort"


def test_tokens_of_finished_requests_are_exactly_those_that_vllm_counted(sweep: Sweep) -> None:
    requests = int(sweep.rise("vllm:request_generation_tokens_count"))
    beyond = requests - len(sweep.finished)  # see on_the_brink above; nearly always 0
    output = sum(r.output_tokens or 0 for r in sweep.finished)
    assert sweep.rise("vllm:request_generation_tokens_sum") == output + beyond * OUTPUT_TOKENS
    prompt = sum(r.input_tokens or 0 for r in sweep.finished)
    assert sweep.rise("vllm:request_prompt_tokens_sum") == prompt + beyond * INPUT_TOKENS


def test_tokens_of_all_requests_are_those_that_vllm_generated_but_for_the_undelivered_ones(sweep: Sweep) -> None:
    delivered = sum(map(delivered_tokens, sweep.records))
    generated = sweep.rise("vllm:generation_tokens_total")
    assert delivered <= generated <= delivered + UNDELIVERED_TOKENS * len(sweep.unfinished)


def test_every_finished_request_has_the_tokens_that_were_asked_for(sweep: Sweep) -> None:
    assert {(r.output_tokens, r.output_tokens_requested, r.output_tokens_source) for r in sweep.finished} == {
        (OUTPUT_TOKENS, OUTPUT_TOKENS, "usage")
    }
    assert {r.finish_reason for r in sweep.finished} == {"length"}


def test_every_token_of_a_finished_request_has_its_own_event_and_arrival(sweep: Sweep) -> None:
    """Also one without text (a special token, a part of a character): vLLM sends it with empty content and a count."""
    events = {len(r.arrivals_ns) for r in sweep.finished}
    assert events == {OUTPUT_TOKENS}
    assert {r.event_tokens.max() for r in sweep.finished if r.event_tokens is not None} == {1}


def test_every_request_has_the_prompt_length_that_was_asked_for(sweep: Sweep) -> None:
    lengths = {(r.input_tokens, r.input_tokens_requested) for r in sweep.records if r.input_tokens is not None}
    assert lengths == {(INPUT_TOKENS, INPUT_TOKENS)}


def test_no_two_prompts_share_a_block_of_the_prefix_cache(sweep: Sweep) -> None:
    assert sweep.rise("vllm:prefix_cache_queries_total") >= INPUT_TOKENS * len(sweep.finished)
    assert sweep.rise("vllm:prefix_cache_hits_total") == 0


# Figures, level by level


@EACH_LEVEL
def test_output_throughput_is_the_slope_of_vllms_token_counter(sweep: Sweep, level: int) -> None:
    plan = sweep.levels[level].plan
    start, end = (
        value_at(sweep.vllm_samples, instant_ns, "vllm:generation_tokens_total")
        for instant_ns in (plan.window_start_ns, plan.window_end_ns)
    )
    slope = (end - start) / ((plan.window_end_ns - plan.window_start_ns) / 1e9)
    assert sweep.summary[level]["output_throughput"] == pytest.approx(slope, rel=0.03)


@EACH_LEVEL
def test_median_ttft_lies_in_or_next_to_the_bucket_that_holds_vllms_median(sweep: Sweep, level: int) -> None:
    data = sweep.levels[level]
    _assert_near_bucket(sweep, data, "vllm:time_to_first_token_seconds", sweep.summary[level]["p50_ttft_ms"])


@EACH_LEVEL
def test_median_itl_lies_in_or_next_to_the_bucket_that_holds_vllms_median(sweep: Sweep, level: int) -> None:
    data = sweep.levels[level]
    _assert_near_bucket(sweep, data, "vllm:inter_token_latency_seconds", sweep.summary[level]["p50_itl_ms"])


def _assert_near_bucket(sweep: Sweep, data: LevelData, histogram: str, median_ms: float) -> None:
    before = scrape_after(sweep, data.plan.window_start_ns)
    after = scrape_before(sweep, data.plan.window_end_ns)
    bucket, edges = median_bucket(before, after, histogram)
    low = edges[bucket - 2] if bucket >= 2 else 0.0
    high = edges[bucket + 1] if bucket + 1 < len(edges) else edges[-1]
    assert low <= median_ms / 1e3 <= high


@EACH_LEVEL
def test_mean_itl_is_the_mean_of_vllms_own(sweep: Sweep, level: int) -> None:
    plan = sweep.levels[level].plan
    mean_s = mean_over(
        scrape_before(sweep, plan.window_start_ns),
        scrape_after(sweep, plan.window_end_ns),
        "vllm:inter_token_latency_seconds",
    )
    assert sweep.summary[level]["mean_itl_ms"] == pytest.approx(mean_s * 1e3, rel=0.05)


def test_mean_ttft_of_the_run_is_vllms_own_plus_the_way_to_it_and_back(sweep: Sweep) -> None:
    ttft_ns = [r.first_token_ns - r.sent_ns for r in sweep.records if r.first_token_ns is not None and r.sent_ns]
    vllm_s = mean_over(sweep.before, sweep.after, "vllm:time_to_first_token_seconds")
    # vLLM's begins when its handler has parsed the request and ends before the event is written.
    assert -0.002 <= statistics.mean(ttft_ns) / 1e9 - vllm_s <= 0.050


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
    running = [s.value("vllm:num_requests_running") for s in in_window(sweep, level)]
    waiting = [s.value("vllm:num_requests_waiting") for s in in_window(sweep, level)]
    assert statistics.median(map(sum, zip(running, waiting, strict=True))) == CONCURRENCY[level]
    assert statistics.median(running) == min(CONCURRENCY[level], MAX_NUM_SEQS)
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
    first = sweep.levels[0].plan.window_start_ns
    last = sweep.levels[-1].plan.window_end_ns
    answers = [s for s in sweep.loadgen_samples if first <= s.at_ns <= last]
    gaps_s = [(b.at_ns - a.at_ns) / 1e9 for a, b in pairwise(answers)]
    assert max(gaps_s) < 3
    tokens = [s.value("loadgen_output_tokens_total") for s in answers]
    assert tokens == sorted(tokens)
    assert tokens[-1] > tokens[0]


def test_metrics_showed_each_finished_level_with_the_figures_of_the_summary(sweep: Sweep) -> None:
    last = sweep.loadgen_samples[-1]
    measured = {have["level"]: have for name, have, _ in last.series if name == "loadgen_level_valid"}
    assert len(measured) >= len(CONCURRENCY) - 1, "levels that ended while the run went on"
    for label, have in measured.items():
        figures = sweep.summary[int(label)]
        assert have["concurrency"] == str(figures["concurrency"])
        assert have["model"] == MODEL
        assert last.value("loadgen_level_output_tokens_per_second", level=label) == pytest.approx(
            figures["output_throughput"], rel=1e-6
        )
        for quantile, key in (("0.5", "p50"), ("0.95", "p95"), ("0.99", "p99")):
            for stem in ("ttft", "itl"):
                shown_s = last.value(f"loadgen_level_{stem}_seconds", level=label, quantile=quantile)
                assert shown_s * 1e3 == pytest.approx(figures[f"{key}_{stem}_ms"], rel=1e-6)


# Prompts of an exact length, by the server's tokenizer and by the model's


def tokenize(vllm: Vllm, question: dict[str, object]) -> int:
    body = json.dumps({"model": MODEL, **question}).encode()
    with urlopen(Request(f"{vllm.base_url}/tokenize", body, {"Content-Type": "application/json"})) as answer:
        return int(json.load(answer)["count"])


@pytest.mark.parametrize("input_tokens", [64, 128, 1500])
def test_prompts_made_by_asking_the_server_have_the_length_that_it_counts(vllm: Vllm, input_tokens: int) -> None:
    recipe = make_recipe(ServerCounter(vllm.base_url, model=MODEL), endpoint="chat", input_tokens=input_tokens, seed=7)
    for k in range(5):
        message = {"role": "user", "content": recipe.build(level=0, k=k)}
        assert tokenize(vllm, {"messages": [message]}) == input_tokens


def test_prompts_made_with_the_models_tokenizer_have_the_length_that_the_server_counts(
    vllm: Vllm, environment: Environment
) -> None:
    counter = LocalCounter(environment.model_dir)
    chat = make_recipe(counter, endpoint="chat", input_tokens=INPUT_TOKENS, seed=7)
    completions = make_recipe(counter, endpoint="completions", input_tokens=INPUT_TOKENS, seed=7)
    for k in range(5):
        message = {"role": "user", "content": chat.build(level=0, k=k)}
        assert tokenize(vllm, {"messages": [message]}) == INPUT_TOKENS
        assert tokenize(vllm, {"prompt": completions.build(level=0, k=k)}) == INPUT_TOKENS
