"""What a run made of vLLM's own metrics, held against the records and against scrapes of the tests' own."""

from itertools import pairwise
from typing import Any

import pytest

from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from tests.live.launch import MAX_NUM_SEQS
from tests.live.sweep import CONCURRENCY, DURATION_S, OUTPUT_TOKENS, Sweep

pytestmark = [pytest.mark.live, pytest.mark.timeout(3600)]

EACH_LEVEL = pytest.mark.parametrize("level", range(len(CONCURRENCY)), ids=[f"concurrency-{c}" for c in CONCURRENCY])


def of_the_server(sweep: Sweep, level: int) -> dict[str, Any]:
    found = sweep.summary[level]["server_metrics"]
    assert found is not None, sweep.summary[level]["no_server_metrics"]
    return dict(found)


@EACH_LEVEL
def test_every_second_of_the_window_was_scraped_and_its_two_ends(sweep: Sweep, level: int) -> None:
    server, plan = of_the_server(sweep, level), sweep.plans[level]
    assert (server["kind"], server["restarts"], server["engines"]) == ("vllm", 0, 1)
    assert server["samples"] >= DURATION_S * 0.8
    assert server["span_s"] == pytest.approx(DURATION_S, abs=0.5)
    samples = next(d.server for d in RunReader(RunFolder.open(sweep.folder)).all() if d.plan.level == level)
    assert samples[0].asked_ns - plan.window_start_ns < 0.5e9
    assert min(abs(s.asked_ns - plan.window_end_ns) for s in samples) < 0.5e9
    assert all(later.started_s == earlier.started_s for earlier, later in pairwise(samples))


@EACH_LEVEL
def test_tokens_and_requests_agree_to_what_was_on_its_way(sweep: Sweep, level: int) -> None:
    found = of_the_server(sweep, level)["reconciliation"]
    assert abs(found["output_tokens"]["difference"]) <= found["tolerance_tokens"]
    # A scrape takes some milliseconds, and a step of this model gives each request one token.
    assert found["tolerance_tokens"] <= 8 * CONCURRENCY[level] + OUTPUT_TOKENS
    assert abs(found["first_tokens"]["difference"]) <= found["tolerance_requests"]
    assert found["tokens_beyond_tolerance"] == 0
    assert found["other_traffic_share"] == 0


@EACH_LEVEL
def test_ttft_by_the_server_is_a_little_shorter_and_no_more_requests_are_in_it(sweep: Sweep, level: int) -> None:
    server = of_the_server(sweep, level)
    ttft, in_flight = server["reconciliation"]["ttft"], server["reconciliation"]["in_flight"]
    assert -max(50, 0.1 * ttft["client_ms"]) < ttft["difference_ms"] <= 0
    assert in_flight["client"] == pytest.approx(CONCURRENCY[level], abs=0.01)
    # Its gauges are those of the last step: fewer than there are while the step with the next prompts goes on.
    assert 0.5 * CONCURRENCY[level] < in_flight["server"] <= CONCURRENCY[level] + 0.3
    assert server["max_running"] + server["max_waiting"] >= CONCURRENCY[level]


@EACH_LEVEL
def test_nothing_came_from_the_prefix_cache_since_nothing_was_meant_to(sweep: Sweep, level: int) -> None:
    assert of_the_server(sweep, level)["prefix_cache_hit_share"] == 0
    assert sweep.summary[level]["intended_prefix_share"] == 0


def test_the_scheduler_is_what_limits_the_level_beyond_max_num_seqs(sweep: Sweep) -> None:
    by_concurrency = dict(zip(CONCURRENCY, sweep.summary, strict=True))
    limit = by_concurrency[2 * MAX_NUM_SEQS]["limit"]
    assert limit["kind"] == "scheduler", limit
    assert limit["evidence"]["max_running"] == MAX_NUM_SEQS
    assert limit["evidence"]["mean_waiting"] == pytest.approx(MAX_NUM_SEQS, abs=1)
    assert by_concurrency[1]["limit"]["kind"] != "scheduler"


def test_no_level_was_made_doubtful_by_what_the_server_said(sweep: Sweep) -> None:
    fired = {one["rule"] for level in sweep.summary for one in (*level["reasons"], *level["warnings"])}
    assert not fired & {
        "server_restarted",
        "other_traffic",
        "some_other_traffic",
        "tokens_disagree",
        "settings_mismatch",
    }
