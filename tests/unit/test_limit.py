"""What limits each level: on the simulator's engine, whose limits are known, and on levels written down by hand."""

from typing import Any

import pytest

from loadgen.stats.level import level_object
from loadgen.stats.limit import KINDS, limit_of, with_limits
from loadgen.virtual import closed_loop
from server.simulator.settings import SimulatorSettings
from tests.level_records import health, plan
from tests.server_samples import S, perfect_server

MS = 1_000_000


def run(
    concurrency: tuple[int, ...], *, cap: int, input_tokens: int = 32, output_tokens: int = 32
) -> list[dict[str, Any]]:
    """A sweep over the simulator's engine in virtual time: 20 s a level, of which six are measured."""
    settings = SimulatorSettings(max_num_seqs=cap)
    levels = []
    for number, users in enumerate(concurrency):
        records = closed_loop(
            settings,
            concurrency=users,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            duration_ns=20 * S,
            level=number,
            start_ns=0,
            ramp_ns=S,
        )
        window = (2 * S, 8 * S)
        made = plan(2_000, 8_000, concurrency=users, level=number, server={"max_num_seqs": cap})
        samples = perfect_server(records, window, cap=cap)
        levels.append(level_object(made, records, [health(level=number)], server=samples))
    return with_limits(levels)


def kinds(levels: list[dict[str, Any]]) -> list[str]:
    return [level["limit"]["kind"] for level in levels]


def test_a_server_at_max_num_seqs_is_limited_by_its_scheduler() -> None:
    levels = run((1, 4, 16, 32), cap=8)
    assert kinds(levels) == ["none", "none", "scheduler", "scheduler"]
    last = levels[-1]["limit"]
    assert last["text"].startswith("on average 8 requests run of the 8 that may (max_num_seqs), 24 wait")
    assert (last["evidence"]["running_cap"], last["evidence"]["mean_waiting"]) == (8, pytest.approx(24, abs=0.1))


def test_a_server_with_room_whose_steps_get_longer_is_limited_by_compute() -> None:
    levels = run((4, 16, 64, 128), cap=256)
    assert kinds(levels) == ["none", "none", "compute", "compute"]
    evidence = levels[2]["limit"]["evidence"]
    assert evidence["compared_with"] == 1
    assert evidence["tpot_ratio"] > 1.5
    assert evidence["throughput_ratio"] < 2.5 < evidence["load_ratio"] * 0.7
    assert "concurrency 16" in levels[2]["limit"]["text"]


def test_long_prompts_and_short_answers_are_limited_by_prefill() -> None:
    levels = run((1, 2, 4, 8), cap=64, input_tokens=1000, output_tokens=4)
    assert kinds(levels)[1:] == ["prefill"] * 3
    assert levels[-1]["limit"]["evidence"]["prefill_share"] == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(
    "seen",
    [
        # One request ends in every step, so that a scrape between two steps never sees sixteen.
        {"mean_running": 15.0, "max_running": 15, "at_max_running_share": 1.0, "mean_waiting": 3.0},
        # Arrivals in bunches: all places are taken now and then.
        {"mean_running": 12.3, "max_running": 16, "at_max_running_share": 0.14, "mean_waiting": 4.4},
    ],
    ids=["a place is free between steps", "bunches"],
)
def test_short_prompts_that_wait_do_so_for_a_place(seen: dict[str, Any]) -> None:
    (level,) = run((20,), cap=16, input_tokens=64)
    level["effective"] = {"max_num_seqs": 16, "max_num_batched_tokens": 2048}
    level["server_metrics"] |= seen
    assert limit_of(level, [])["kind"] == "scheduler"
    # Where one prompt takes half of a step, bunches may as well wait for its tokens.
    level["mean_input_tokens"] = 1024
    assert limit_of(level, [])["kind"] == ("scheduler" if seen["mean_running"] == 15 else "prefill")


def test_without_metrics_nothing_is_known_and_the_reason_is_told() -> None:
    (level,) = with_limits([{**run((4,), cap=8)[0], "server_metrics": None, "no_server_metrics": "it has no /metrics"}])
    assert level["limit"]["kind"] == "unknown"
    assert level["limit"]["text"] == "it has no /metrics, so what holds it back is not known"


def test_one_level_alone_does_not_tell_whether_more_load_would_bring_more() -> None:
    (level,) = run((4,), cap=8)
    assert level["limit"]["kind"] == "unknown"
    assert "shows only against another level" in level["limit"]["text"]


def test_levels_of_another_setting_or_an_invalid_one_are_not_compared_with() -> None:
    low, high = run((4, 64), cap=256)
    assert limit_of(high, [low, high])["kind"] == "compute"
    assert limit_of(high, [{**low, "server": {"max_num_seqs": 4}}, high])["kind"] == "unknown"
    assert limit_of(high, [{**low, "run": 1}, high])["kind"] == "unknown"
    assert limit_of(high, [{**low, "valid": False}, high])["kind"] == "unknown"


def test_a_client_that_did_not_keep_up_is_the_limit_whatever_the_server_says() -> None:
    level = run((32,), cap=8)[0]
    late = {"rule": "client_cpu", "evidence": "A loop thread used 99 % of a core.", "remedy": ""}
    found = limit_of({**level, "reasons": [late], "valid": False}, [])
    assert found["kind"] == "client"
    assert "99 % of a core" in found["text"]


def changed(level: dict[str, Any], reconciliation: dict[str, Any] | None = None, **server: Any) -> dict[str, Any]:
    figures = {**level["server_metrics"], **server}
    figures["reconciliation"] = {**figures["reconciliation"], **(reconciliation or {})}
    return {**level, "server_metrics": figures}


def test_a_full_cache_with_preemptions_is_the_limit_below_max_num_seqs() -> None:
    level = run((32,), cap=64)[0]
    full = {"max_kv_usage": 0.99, "mean_running": 24.0, "max_running": 27, "mean_waiting": 8.0}
    found = limit_of(changed(level, preemptions=120, **full), [])
    assert found["kind"] == "kv_cache"
    assert "99% full" in found["text"] and "120 requests were preempted" in found["text"]
    # A prompt that does not fit waits, and nobody is thrown out.
    assert limit_of(changed(level, preemptions=0, **{**full, "max_kv_usage": 0.92}), [])["kind"] == "kv_cache"
    assert limit_of(changed(level, preemptions=0, max_kv_usage=0.99), [])["kind"] == "unknown"


def test_at_the_cap_with_a_nearly_full_cache_it_is_the_scheduler_until_requests_are_preempted() -> None:
    level = run((32,), cap=8)[0]
    assert limit_of(changed(level, max_kv_usage=0.95), [])["kind"] == "scheduler"
    assert limit_of(changed(level, max_kv_usage=0.95, preemptions=1), [])["kind"] == "scheduler"
    assert limit_of(changed(level, max_kv_usage=0.95, preemptions=100), [])["kind"] == "kv_cache"


def test_a_batch_that_ends_together_is_at_the_cap_though_its_mean_is_lower() -> None:
    # As a real vLLM showed it: until the step with the next prompts is over, its gauge says that nothing runs.
    level = run((32,), cap=8)[0]
    seen = {"mean_running": 6.2, "max_running": 8, "mean_waiting": 24.0}
    assert limit_of(changed(level, **seen, at_max_running_share=0.7), [])["kind"] == "scheduler"
    assert limit_of(changed(level, **seen, at_max_running_share=0.1), [])["kind"] == "prefill"


def test_requests_that_wait_while_batch_and_cache_have_room_wait_for_the_steps_tokens() -> None:
    level = run((32,), cap=64)[0]
    found = limit_of(changed(level, mean_running=20.0, max_running=30, mean_waiting=12.0), [])
    assert found["kind"] == "prefill"
    assert "max_num_batched_tokens" in found["text"]


def test_a_cap_that_nobody_told_is_guessed_from_what_never_is_exceeded() -> None:
    level = {**run((32,), cap=8)[0], "server": {}}
    found = limit_of(level, [])
    assert (found["kind"], found["evidence"]["running_cap"]) == ("scheduler", None)
    assert "probably max_num_seqs" in found["text"]


def test_several_engines_have_a_cap_each_and_effective_settings_go_before_asked_ones() -> None:
    level = run((32,), cap=8)[0]
    assert limit_of(changed(level, engines=2), [])["evidence"]["running_cap"] == 16
    assert limit_of({**level, "effective": {"max_num_seqs": 4}}, [])["evidence"]["running_cap"] == 4
    assert limit_of({**level, "effective": {"max_num_seqs": None}}, [])["evidence"]["running_cap"] == 8


def test_time_and_requests_that_the_server_never_sees_are_the_gateways() -> None:
    level = run((16,), cap=64)[0]
    outside = {
        "ttft": {"server_ms": 30.0, "client_ms": 200.0, "difference_ms": -170.0},
        "in_flight": {"server": 9.0, "client": 16.0, "difference": -7.0},
    }
    found = limit_of(changed(level, outside), [])
    assert found["kind"] == "gateway"
    assert "200 ms on average, of which the server knows 30 ms" in found["text"]
    near = {**outside, "in_flight": {"server": 15.8, "client": 16.0, "difference": -0.2}}
    assert limit_of(changed(level, near), [])["kind"] != "gateway"


def test_every_kind_is_one_of_the_list_and_evidence_has_always_the_same_names() -> None:
    levels = run((1, 32), cap=8)
    assert {level["limit"]["kind"] for level in levels} <= set(KINDS)
    names = {tuple(level["limit"]["evidence"]) for level in levels}
    assert len(names) == 1
