"""Each rule of validity fires on its own case and on no healthy level."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadgen.stats.client_rules import MOST_COALESCED
from loadgen.stats.level import level_object
from loadgen.stats.validity import RULES
from tests.level_records import MS, closed_loop, health, normal, plan, request


def fired(*args: Any, **kwargs: Any) -> tuple[list[str], list[str]]:
    level = level_object(*args, **kwargs)
    assert level["valid"] == (not level["reasons"])
    return [reason["rule"] for reason in level["reasons"]], [warning["rule"] for warning in level["warnings"]]


HEALTHY = closed_loop(2, 30, kernel_stamps=True)
USER_SPACE = closed_loop(2, 30)


def test_healthy_level_fires_no_rule() -> None:
    assert fired(plan(concurrency=2), HEALTHY, [health()]) == ([], [])


def test_every_rule_says_what_to_do_and_has_its_own_name() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.remedy.endswith(".") for rule in RULES)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"interrupted": True, "drained_ns": None}, "interrupted"),
        ({"lost_workers": 1, "workers": 1}, "worker_lost"),
    ],
)
def test_interruption_and_lost_workers_make_a_level_invalid(changes: dict[str, Any], rule: str) -> None:
    assert fired(plan(concurrency=2, **changes), HEALTHY, [health()]) == ([rule], [])


def test_level_in_which_everything_failed_names_the_failure() -> None:
    records = [request(i, status="http_503", finished_ms=i + 1, reason="overloaded") for i in range(999)]
    level = level_object(plan(concurrency=1), records, [health()])
    assert level["reasons"][0]["rule"] == "no_request_succeeded"
    assert level["reasons"][0]["evidence"] == "None of 999 requests succeeded: 999 × http_503 (overloaded)."


def remedies(level: dict[str, Any]) -> dict[str, str]:
    return {one["rule"]: one["remedy"] for one in level["reasons"]}


def test_after_a_stop_by_a_guard_nobody_is_told_to_run_the_level_again_as_it_was() -> None:
    def remedy(by: str) -> str:
        changes: dict[str, Any] = {"interrupted": True, "interrupted_by": by, "drained_ns": None}
        return remedies(level_object(plan(concurrency=2, **changes), HEALTHY, [health()]))["interrupted"]

    assert remedy("") == "Run the level again."
    for by in ("The run stops: … safety.stop_on_stall is 3 s.", "The server ended."):
        assert remedy(by).startswith("Look at the server first") and "Run the level again" not in remedy(by)
    assert remedy("The run stops: … safety.max_request_rate, 5.").startswith("Lower the load")


@pytest.mark.parametrize("status", ["timeout_first_token", "timeout_between_tokens", "timeout_total", "censored"])
def test_a_server_that_stopped_answering_is_not_looked_for_at_another_address(status: str) -> None:
    records = [request(i, status=status, finished_ms=i + 900, reason="no token within 60 s") for i in range(20)]
    remedy = remedies(level_object(plan(concurrency=20), records, [health()]))["no_request_succeeded"]
    assert "stopped answering" in remedy and "URL" not in remedy
    # Users that hang since before the window have sent nothing in it.
    hanging = [request(i - 500, status=status, finished_ms=5000, reason="no token") for i in range(20)]
    remedy = remedies(level_object(plan(concurrency=20), hanging, [health()]))["no_request_succeeded"]
    assert "stopped answering" in remedy


@pytest.mark.parametrize("status", ["http_401", "connect", "timeout_connect", "not_a_stream"])
def test_a_target_that_refuses_is_looked_for_at_its_address(status: str) -> None:
    records = [request(i, status=status, finished_ms=i + 1, reason="no") for i in range(20)]
    assert "check the URL" in remedies(level_object(plan(), records, [health()]))["no_request_succeeded"]
    assert "check the URL" in remedies(level_object(plan(), [], [health()]))["no_request_succeeded"]


def test_few_samples_are_invalid_and_somewhat_few_are_suspect() -> None:
    def sent(n: int) -> tuple[list[str], list[str]]:
        length = 1000 / n
        records = [
            normal(2, 1, length - 2, sent_ms=length * i, finished_ms=length * (i + 1), kernel_stamps=True)
            for i in range(n)
        ]
        return fired(plan(), records, [health()])

    assert sent(9) == (["too_few_samples"], [])
    assert sent(10) == ([], ["few_samples"])
    assert sent(19) == ([], ["few_samples"])
    assert sent(20) == ([], [])


def test_load_below_nine_tenths_is_not_the_load_that_was_asked_for() -> None:
    assert fired(plan(concurrency=3), HEALTHY, [health()]) == (["load_not_reached"], [])


def test_one_missing_user_of_many_is_noticed() -> None:
    records = closed_loop(19, 30, kernel_stamps=True)
    level = level_object(plan(concurrency=20), records, [health()])
    assert level["achieved_concurrency"] > 18
    assert [reason["evidence"] for reason in level["reasons"]] == [
        "Only 19 of 20 users sent requests, at most 19 at once."
    ]


def test_lag_bends_user_space_stamps_but_not_the_kernel_s() -> None:
    late = [health(loop_lag_p99_ms=11.0)]
    assert fired(plan(concurrency=2), USER_SPACE, late) == (["client_late"], [])
    assert fired(plan(concurrency=2), HEALTHY, late) == ([], ["client_somewhat_late"])
    fast = closed_loop(2, 30, gap_ms=3)
    assert fired(plan(concurrency=2), fast, [health(loop_lag_p99_ms=4.0)]) == (["client_late"], [])
    assert fired(plan(concurrency=2), fast, [health(loop_lag_p99_ms=2.0)]) == ([], [])


def test_coalescing_is_the_client_s_fault_only_when_the_client_was_late() -> None:
    merged = [replace(r, coalesced=r.coalesced | [False, False, False, True, True]) for r in
              (replace(r, coalesced=r.arrivals_ns < 0) for r in HEALTHY)]  # fmt: skip
    assert fired(plan(concurrency=2), merged, [health()]) == ([], ["coalesced"])
    assert fired(plan(concurrency=2), merged, [health(loop_lag_p99_ms=30.0)]) == (["client_late"], [])


def test_one_late_worker_of_several_is_not_diluted_by_the_punctual_ones() -> None:
    records = [replace(one, worker=worker) for worker in range(4) for one in closed_loop(2, 30, kernel_stamps=True)]
    records[-1] = replace(records[-1], coalesced=np.array([True, True, True, True, False]))
    level = level_object(plan(end_ms=3000, concurrency=8), records, [health(worker) for worker in range(4)])
    assert level["coalesced_events"] / level["events"] < MOST_COALESCED < level["client"]["coalesced_share"]
    assert [warning["rule"] for warning in level["warnings"]] == ["coalesced"]


def test_sends_behind_their_schedule_are_the_client_s_fault() -> None:
    def sent(late_ms: float) -> tuple[list[str], list[str]]:
        planned = [
            replace(one, scheduled_ns=one.dispatched_ns, dispatched_ns=one.dispatched_ns + round(late_ms * MS))
            for one in HEALTHY
        ]
        return fired(plan(concurrency=2), planned, [health()])

    assert sent(9) == ([], [])
    assert sent(11) == (["sends_late"], [])


def test_a_long_collection_inside_the_window_is_suspect_and_a_short_one_is_not() -> None:
    def collected(longest_ms: float) -> tuple[list[str], list[str]]:
        return fired(plan(concurrency=2), HEALTHY, [health(gc_pauses=3, gc_pause_max_ms=longest_ms)])

    assert collected(9.0) == ([], [])
    assert collected(84.0) == ([], ["client_collected"])


def test_saturated_loop_thread_is_invalid() -> None:
    assert fired(plan(concurrency=2), HEALTHY, [health(cpu_loop_thread=0.95)]) == (["client_cpu"], [])


def test_missing_token_counts_are_invalid_and_tokenised_ones_suspect() -> None:
    without = [replace(record, output_tokens=None, output_tokens_source=None) for record in HEALTHY]
    assert fired(plan(concurrency=2), without, [health()]) == (["no_token_counts"], [])
    tokenised = [replace(record, output_tokens_source="tokenized") for record in HEALTHY]
    assert fired(plan(concurrency=2), tokenised, [health()]) == ([], ["estimated_tokens"])
    level = level_object(plan(concurrency=2), without, [health()])
    assert (level["n_itl"], level["n_tpot"]) == (0, 0)


def test_one_missing_token_count_in_hundreds_is_suspect() -> None:
    records = closed_loop(20, 12, kernel_stamps=True)
    records[3] = replace(records[3], output_tokens=None, output_tokens_source=None)
    assert fired(plan(concurrency=20), records, [health()]) == ([], ["some_token_counts"])


def test_requests_cut_off_hide_the_tail() -> None:
    def cut(n: int) -> tuple[list[str], list[str]]:
        records = closed_loop(10, 12, kernel_stamps=True)
        records[1 : n + 1] = [replace(record, status="censored") for record in records[1 : n + 1]]
        return fired(plan(concurrency=10), records, [health()])

    assert cut(1) == ([], [])
    assert cut(4) == ([], ["some_cut_off"])
    assert cut(9) == (["cut_off"], [])


def test_failures_and_wrong_prompt_lengths_are_suspect() -> None:
    records = list(HEALTHY)
    records[5] = replace(records[5], status="http_500", reason="boom")
    assert fired(plan(concurrency=2), records, [health()]) == ([], ["errors"])
    other = [replace(record, input_tokens=101) for record in HEALTHY]
    assert fired(plan(concurrency=2), other, [health()]) == ([], ["input_length"])


def test_worker_that_did_not_report_its_lag_is_noticed() -> None:
    assert fired(plan(concurrency=2, workers=2), HEALTHY, [health()]) == ([], ["client_not_watched"])
