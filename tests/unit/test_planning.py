"""A plan's arithmetic, what it rests on, and that it never rests on what was not measured; runs are made in virtual time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadgen.errors import UsageError
from loadgen.measured_run import MeasuredRun, read_run
from loadgen.planning.demand import Demand, per_million_tokens
from loadgen.planning.deployment import deployment, gpus_of, settings_of
from loadgen.planning.lengths import Work
from loadgen.planning.plan import make_plan
from loadgen.planning.replica_count import count_text
from loadgen.planning.text import plan_lines
from loadgen.scenario.model import Scenario
from loadgen.scenario.slo import Slo
from loadgen.stats.level import level_object
from loadgen.stats.prefill import prefill_cost
from loadgen.virtual import closed_loop
from server.simulator.settings import SimulatorSettings
from tests.level_records import plan as level_plan
from tests.virtual_run import VirtualRun


@pytest.mark.parametrize(
    ("demand", "capacity_rps", "replicas"),
    [
        (Demand(40, 1.5, 0.2), 10, 8),  # 60 / 8 = 7.5
        (Demand(40, 1.0, 0.0), 8, 5),  # exactly 5, not 6
        (Demand(0.3, 1.0, 0.0), 0.1, 3),  # 0.3 / 0.1 is 2.9999999999999996
        (Demand(0.7, 1.0, 0.3), 0.1, 10),
        (Demand(1, 1.0, 0.2), 100, 1),
    ],
)
def test_replicas_are_the_peak_over_what_is_planned_with_rounded_up(
    demand: Demand, capacity_rps: float, replicas: int
) -> None:
    assert demand.replicas(capacity_rps) == replicas


def test_load_of_a_replica_and_price_of_a_million_tokens() -> None:
    assert Demand(40, 1.5, 0.2).load(8, 10) == {"requests_per_s": 7.5, "utilization": 0.75}
    assert per_million_tokens(3.6, 1000) == pytest.approx(1.0)
    assert per_million_tokens(3.6, 0) is None
    with pytest.raises(ValueError, match="above 0"):
        Demand(1).replicas(0)


@pytest.mark.parametrize(
    ("interval", "upper_bound", "text"),
    [
        ([6, 10], True, "7 replicas, at most 10 over the 95 % interval"),
        ([7, 7], True, "at most 7 replicas"),
        ([6, 10], False, "7 replicas (6 to 10 over the 95 % interval of the measured capacity)"),
        ([7, 7], False, "7 replicas"),
        (None, True, "7 replicas (how sure is not known: the capacity's 95 % interval has no lower end)"),
    ],
)
def test_number_of_replicas_says_how_sure_it_is(interval: list[int] | None, upper_bound: bool, text: str) -> None:
    assert count_text(7, interval, upper_bound=upper_bound) == text


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> MeasuredRun:
    """Two settings; concurrency 8 keeps 60 ms per token, 32 breaks the limit on TTFT; 1 tells what a prompt takes."""
    made = VirtualRun(concurrency=(1, 8, 32), max_num_seqs=(8, 16), window_s=40)
    return read_run(made.write(tmp_path_factory.mktemp("plan") / "run"))


def test_plan_is_the_arithmetic_of_the_level_it_names(measured: MeasuredRun) -> None:
    plan = make_plan(measured, Demand(40, 1.5, 0.2), gpu_cost_per_hour=2.5, gpus_per_replica=2)
    level = next(one for one in measured.levels if one["level"] == plan["basis"]["level"])
    assert level["valid"] and level["concurrency"] == 8
    assert all(one["holds"] for one in level["slo"].values())
    rps = level["served_request_rate"]
    low, high = level["intervals"]["served_request_rate"]
    assert plan["replicas"] == -(-60 // (0.8 * rps))
    assert plan["replicas_interval"] == [Demand(40, 1.5, 0.2).replicas(high), Demand(40, 1.5, 0.2).replicas(low)]
    assert plan["replicas_with_spare"] == plan["replicas"] + 1
    assert plan["gpus"] == 2 * (plan["replicas"] + 1)
    assert plan["load_at_peak"]["one_lost"]["requests_per_s"] == pytest.approx(60 / plan["replicas"])
    assert plan["load_at_peak"]["one_lost"]["utilization"] <= 0.8
    cost = plan["cost"]
    assert cost["replica_cost_per_hour"] == 5.0
    assert cost["fleet_cost_per_hour"] == 5.0 * (plan["replicas"] + 1)
    output, total = level["output_throughput"], level["output_throughput"] + level["input_throughput"]
    assert cost["at_capacity"]["per_million_output_tokens"] == pytest.approx(5e6 / 3600 / output)
    assert cost["at_capacity"]["per_million_total_tokens"] == pytest.approx(5e6 / 3600 / total)
    low_price, high_price = cost["at_capacity"]["per_million_output_tokens_interval"]
    assert low_price <= cost["at_capacity"]["per_million_output_tokens"] <= high_price
    tokens_per_hour = 40 * level["mean_output_tokens"] * 3600
    assert cost["as_deployed"]["per_million_output_tokens"] == pytest.approx(
        cost["fleet_cost_per_hour"] / tokens_per_hour * 1e6
    )


def test_capacity_whose_limit_was_not_found_is_only_a_bound(measured: MeasuredRun) -> None:
    plan = make_plan(measured, Demand(40))
    assert plan["upper_bound"]
    _, most = plan["replicas_interval"]
    assert f"t most {most} " in plan["text"].split(", for ")[0], "the first line has the bound of the interval"
    assert any("not resolved between concurrency 8 and 32" in note for note in plan["notes"])
    assert plan["replicas_at_missed_level"] <= plan["replicas"]


def test_what_holds_the_server_back_is_told_where_it_is_known(measured: MeasuredRun) -> None:
    plan = make_plan(measured, Demand(40))
    assert not any(line.startswith("limited by") for line in plan_lines(plan)), "nobody scraped the server"
    limit = {"kind": "kv_cache", "text": "the KV cache is full.", "evidence": {}}
    told = plan_lines({**plan, "basis": {**plan["basis"], "limit": limit}})
    assert "limited by    kv_cache: the KV cache is full." in told


def test_load_above_which_nothing_was_measured_says_so(tmp_path: Path) -> None:
    run = read_run(VirtualRun(concurrency=(8,), window_s=30).write(tmp_path / "one"))
    plan = make_plan(run, Demand(40))
    assert plan["upper_bound"] and plan["replicas_at_missed_level"] is None
    assert any("the limit was not reached: no level above concurrency 8" in note for note in plan["notes"])
    assert plan["sensitivity"]["cases"][0]["from"] is None, (
        "eight users are not light: nothing tells what a prompt takes"
    )
    text = "\n".join(plan_lines(plan))
    assert "not known: no lightly loaded level in this sweep" in text and "add concurrency 1" in text


def test_capacity_between_neighbours_is_no_bound(tmp_path: Path) -> None:
    slo = {"tpot_p95": "13ms"}  # 8 + 1.6 + 0.4 · 8 = 12.8 and, with a ninth user, 13.2 ms
    run = read_run(VirtualRun(concurrency=(8, 9), window_s=30, slo=slo, input_tokens=1).write(tmp_path / "run"))
    plan = make_plan(run, Demand(40))
    assert not plan["upper_bound"]
    assert plan["basis"]["concurrency"] == 8
    assert not plan["text"].startswith("At most")


def test_settings_are_compared_and_the_one_that_serves_most_is_deployed(measured: MeasuredRun) -> None:
    plan = make_plan(measured, Demand(40), gpu_cost_per_hour=2.5)
    assert [one["server"]["max_num_seqs"] for one in plan["alternatives"]] == [8, 16]
    assert plan["deploy"]["simulated"]
    assert plan["deploy"]["settings"]["max_num_seqs"] == plan["basis"]["server"]["max_num_seqs"]
    assert f"--max-num-seqs {plan['basis']['server']['max_num_seqs']}" in plan["deploy"]["command"]
    assert "decode_base_ms" not in plan["deploy"]["settings"], "no flag of vLLM"
    file = yaml.safe_load(plan["deploy"]["yaml"])
    assert file["max-num-seqs"] == plan["basis"]["server"]["max_num_seqs"]


def test_other_limits_give_another_plan_from_the_same_run(measured: MeasuredRun) -> None:
    run = read_run(measured.path, slo=Slo(tpot_p95="60ms"))
    plan = make_plan(run, Demand(40))
    assert plan["basis"]["concurrency"] == 32, "TTFT has no limit any more"


def test_limits_that_no_level_keeps_give_no_plan_and_exit_99(measured: MeasuredRun) -> None:
    plan = make_plan(read_run(measured.path, slo=Slo(ttft_p95="1ms")), Demand(40))
    assert (plan["replicas"], plan["exit_code"]) == (None, 99)
    assert "whatever the number of replicas" in plan["text"]
    assert plan_lines(plan) == [plan["text"]]


def test_run_whose_levels_are_all_invalid_gives_no_plan_and_exit_3(tmp_path: Path) -> None:
    late = VirtualRun(concurrency=(4,), window_s=20, health={"loop_lag_max_ms": 900.0})
    plan = make_plan(read_run(late.write(tmp_path / "run")), Demand(40))
    assert (plan["replicas"], plan["exit_code"]) == (None, 3)
    assert "worker_stalled" in plan["text"]


def test_run_whose_requests_all_failed_gives_no_plan_and_exit_1(tmp_path: Path) -> None:
    plan = make_plan(
        read_run(VirtualRun(concurrency=(4,), window_s=20, failing=True).write(tmp_path / "run")), Demand(4)
    )
    assert (plan["replicas"], plan["exit_code"]) == (None, 1)


def test_run_without_limits_is_refused_with_the_remedy(tmp_path: Path) -> None:
    run = read_run(VirtualRun(concurrency=(4,), window_s=20, slo={}).write(tmp_path / "run"))
    with pytest.raises(UsageError, match="no limits") as refused:
        make_plan(run, Demand(40))
    assert "--slo" in str(refused.value.hint)


def test_open_loop_plan_rests_on_a_rate_and_asks_for_no_confirmation(tmp_path: Path) -> None:
    run = read_run(VirtualRun(request_rate=(8, 30), window_s=90, slo={"ttft_p95": "500ms"}).write(tmp_path / "run"))
    plan = make_plan(run, Demand(40))
    assert plan["basis"]["request_rate"] == 8 and plan["basis"]["concurrency"] is None
    assert plan["basis"]["served_request_rate"] == pytest.approx(8, rel=0.15)
    assert not any("closed loop" in note for note in plan["notes"])
    assert "at 8 requests/s" in plan["text"]


def test_too_few_samples_are_no_ground_for_a_plan(tmp_path: Path) -> None:
    run = read_run(VirtualRun(concurrency=(1,), window_s=10).write(tmp_path / "run"))
    plan = make_plan(run, Demand(40))
    assert (plan["replicas"], plan["exit_code"]) == (None, 3)
    assert "too little was measured" in plan["text"]


def virtual_capacity(input_tokens: int, output_tokens: int, users: int) -> dict[str, Any]:
    settings = SimulatorSettings()
    records = closed_loop(
        settings,
        concurrency=users,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        duration_ns=40_000_000_000,
        start_ns=0,
        ramp_ns=3_000_000_000,
    )
    return level_object(level_plan(10_000, 35_000, concurrency=users), records, [])


@pytest.mark.parametrize(("input_tokens", "output_tokens"), [(128, 64), (1024, 32)])
def test_modelled_lengths_are_near_what_the_server_does(input_tokens: int, output_tokens: int) -> None:
    at, alone = virtual_capacity(input_tokens, output_tokens, 16), virtual_capacity(input_tokens, output_tokens, 1)
    work = Work.of(at["served_request_rate"], prefill_cost([alone, at]).ms)
    assert work is not None
    for factor_in, factor_out in ((0.75, 1), (1, 1.25), (1.25, 1.25)):
        truth = virtual_capacity(round(input_tokens * factor_in), round(output_tokens * factor_out), 16)
        assert work.capacity_rps(factor_in, factor_out) == pytest.approx(truth["request_throughput"], rel=0.08)


def test_measured_lengths_stand_in_for_the_model(measured: MeasuredRun, tmp_path: Path) -> None:
    longer = VirtualRun(concurrency=(8, 32), max_num_seqs=(8, 16), window_s=40, output_tokens=80)
    other = read_run(longer.write(tmp_path / "longer"))
    plan = make_plan(measured, Demand(40), other_lengths=[other])
    by_factors = {(case["input_factor"], case["output_factor"]): case for case in plan["sensitivity"]["cases"]}
    case = by_factors[1.0, 1.25]
    assert (case["from"], case["run"]) == ("measured", str(other.path))
    assert by_factors[1.0, 0.75]["from"] == "modelled"
    text = "\n".join(plan_lines(plan))
    assert f"measured in {other.path}" in text and "modelled" in text


def test_runs_of_another_server_do_not_stand_in(measured: MeasuredRun, tmp_path: Path) -> None:
    longer = VirtualRun(
        concurrency=(8, 32), max_num_seqs=(8, 16), window_s=40, output_tokens=80, target={"model": "another"}
    )
    plan = make_plan(measured, Demand(40), other_lengths=[read_run(longer.write(tmp_path / "other"))])
    assert {case["from"] for case in plan["sensitivity"]["cases"]} == {"modelled"}
    assert any("the model differs" in note for note in plan["notes"])


def test_flags_are_those_asked_for_or_else_those_that_the_server_told() -> None:
    asked = {"max_num_seqs": 8, "enable_prefix_caching": False, "quantization": None}
    assert settings_of("vllm", asked, {"max_num_seqs": 9}) == asked
    told = {"version": "0.11", "max_num_seqs": 256, "prefix_caching": True, "kv_cache_tokens": 10, "flags": None}
    assert settings_of(None, {}, told) == {"max_num_seqs": 256, "enable_prefix_caching": True}
    assert settings_of(None, {}, {"flags": {"model": "m", "port": 1, "dtype": "half"}}) == {"dtype": "half"}
    assert settings_of(None, {}, None) == {}


def test_command_line_and_file_say_the_same() -> None:
    made = deployment("org/model", {"max_num_seqs": 8, "enable_prefix_caching": False, "quantization": None})
    assert made["command"] == "vllm serve org/model --max-num-seqs 8 --no-enable-prefix-caching"
    assert yaml.safe_load(made["yaml"]) == {"model": "org/model", "max-num-seqs": 8, "enable-prefix-caching": False}


def test_gpus_of_a_replica_follow_from_how_it_is_split() -> None:
    assert gpus_of({"tensor_parallel_size": 4, "pipeline_parallel_size": 2}) == 8
    assert gpus_of({"max_num_seqs": 8}) is None


def test_deployment_has_every_setting_that_the_run_started_vllm_with(measured: MeasuredRun) -> None:
    asked = {
        "model": "m",
        "max_num_seqs": [8, 16],
        "tensor_parallel_size": 4,
        "quantization": "fp8",
        "enable_lora": True,
    }
    values = {**measured.scenario.model_dump(mode="json", exclude_unset=True), "target": {"server": "vllm"}}
    run = replace(measured, scenario=Scenario.model_validate({**values, "server": asked}))
    named = [{**level, "server": {"max_num_seqs": level["server"]["max_num_seqs"]}} for level in measured.levels]
    plan = make_plan(replace(run, levels=named), Demand(40))
    assert plan["deploy"]["settings"] == {
        "max_num_seqs": plan["basis"]["server"]["max_num_seqs"],
        "tensor_parallel_size": 4,
        "quantization": "fp8",
        "enable_lora": True,
    }
    assert plan["gpus_per_replica"] == 4
    assert plan["gpus_per_replica_from"] == "the measured settings"


def test_rates_at_which_requests_pile_up_give_exit_99_though_every_latency_limit_holds(tmp_path: Path) -> None:
    made = VirtualRun(request_rate=(60,), window_s=20, slo={"tpot_p95": "1s"})
    run = read_run(made.write(tmp_path / "run"))
    (level,) = run.levels
    assert level["valid"] and level["open_loop"]["saturated"] and level["slo"]["tpot_p95"]["holds"]
    plan = make_plan(run, Demand(40))
    assert (plan["replicas"], plan["exit_code"]) == (None, 99)


def test_simulator_that_was_there_already_is_told_and_a_limiting_setting_that_it_kept_to_itself(
    measured: MeasuredRun,
) -> None:
    scenario = measured.scenario.model_dump(mode="json", exclude_unset=True)
    scenario.pop("server", None)
    scenario["target"] = {"base_url": "http://127.0.0.1:8000", "model": "sim"}
    limit = {"kind": "scheduler", "text": "all that may run do", "evidence": {"max_running": 16}}
    effective = {"version": "0.32.0+simulator", "max_model_len": 8192}
    levels = [{**level, "server": {}, "effective": effective, "limit": limit} for level in measured.levels[:3]]
    plan = make_plan(replace(measured, scenario=Scenario.model_validate(scenario), levels=levels), Demand(40))
    assert plan["deploy"]["simulated"]
    assert any("lacks max_num_seqs" in note and "never more than 16 requests ran" in note for note in plan["notes"])
