"""A soak that ended before its time: what it still says, what it leaves out, and that nobody takes a drift for a pass."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from rich.console import Console

from loadgen.controller.live import LiveRun
from loadgen.controller.soak_watch import soak_hint
from loadgen.judgement import judge
from loadgen.outputs import conditions, write_outputs
from loadgen.report.html import page
from loadgen.report.phases_table import why
from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from loadgen.scenario.model import Scenario
from loadgen.soak_reader import JUDGED_NS
from loadgen.spool import SpoolWriter, encode_records
from loadgen.stats.answers import answer_lines, answers, verdict
from loadgen.stats.soak import BAD, DOUBT, GOOD, soak_object, standing
from loadgen.stats.soak_windows import Rest
from tests.unit.test_report_html import CONDITIONS
from tests.unit.test_soak_windows import START_NS, GrowingRun, row
from tests.unit.test_soak_windows import verdict as soak_of

SOAK: dict[str, Any] = {
    "load": {"request_rate": 2, "duration": "1h", "warmup": "0s"},
    "soak": {"window": "1m"},
}


def cut_run(path: Path, minutes: int, *, at_s: float, by: str = "", killed: bool = False) -> RunFolder:
    """A soak of an hour of which so many minutes were written, and that ended after so many seconds."""
    run = GrowingRun(path, 60)
    for minute in range(minutes):
        run.grow(minute)
    if not killed:
        end_ns = START_NS + round(at_s * 1e9)
        run.folder.note_level(
            dataclasses.replace(run.plan, interrupted=True, interrupted_by=by, window_end_ns=end_ns), {0: 0, 1: 5_000}
        )
    return run.folder


def level_of(folder: RunFolder, **scenario: Any) -> dict[str, Any]:
    (level,) = judge(RunReader(folder).all(), Scenario.model_validate({**SOAK, **scenario}))
    return level


def rules(level: dict[str, Any], field: str) -> set[str]:
    return {found["rule"] for found in level[field]}


def test_a_soak_that_its_user_ended_after_enough_windows_is_a_shorter_soak(tmp_path: Path) -> None:
    level = level_of(cut_run(tmp_path / "run", 12, at_s=700))
    assert level["interrupted"] and level["valid"], level["reasons"]
    assert "soak_cut_short" in rules(level, "warnings")
    # It tells that itself: nobody is told to update workers that had no time to say how late they were.
    assert "client_not_watched" not in rules(level, "warnings")
    soak = level["soak"]
    assert len(soak["windows"]) == 11 and soak["left_out_s"] == 40
    told = f"Its last 40 s are no whole window and left out of the trends; {sum(soak['left_out_requests'].values())} requests ended"
    assert told in soak["text"]


def test_a_soak_with_too_few_windows_for_a_trend_is_as_invalid_as_any_level_that_was_cut_off(tmp_path: Path) -> None:
    level = level_of(cut_run(tmp_path / "run", 8, at_s=470))
    assert rules(level, "reasons") == {"interrupted"} and not level["warnings"]
    assert "from 8 windows without a mark on" in level["reasons"][0]["evidence"]


def test_a_soak_that_a_guard_or_the_server_ended_stays_invalid(tmp_path: Path) -> None:
    level = level_of(cut_run(tmp_path / "run", 12, at_s=700, by="The run stops: 9 of 10 requests failed."))
    assert rules(level, "reasons") == {"interrupted"}
    assert "9 of 10 requests failed" in level["reasons"][0]["evidence"]
    assert "length: the soak's last 600 s, until it was stopped" in why(level)


def test_after_the_loss_of_the_controller_what_was_under_way_is_left_out(tmp_path: Path) -> None:
    folder = cut_run(tmp_path / "run", 12, at_s=0, killed=True)
    # One that took 20 s: whoever was under way in the last 20 s may be missing.
    (data,) = RunReader(folder).all()
    assert data.soak_rest is not None and len(data.soak or ()) == 11
    ended_ns = data.plan.window_end_ns
    slow = max(data.records, key=lambda one: one.finished_ns)
    by_ns = 20_000_000_000
    spool = SpoolWriter(folder.spool(2))
    spool.append(
        encode_records(
            [
                dataclasses.replace(
                    slow,
                    worker=2,
                    index=999_999,
                    dispatched_ns=slow.dispatched_ns - by_ns,
                    scheduled_ns=(slow.scheduled_ns or 0) - by_ns,
                    sent_ns=(slow.sent_ns or 0) - by_ns,
                )
            ]
        )
    )
    (data,) = RunReader(folder).all()
    plan = data.plan
    assert plan.interrupted and plan.window_end_ns == ended_ns - by_ns
    assert plan.window_start_ns > plan.window_end_ns - JUDGED_NS  # nothing older was kept
    level = level_of(folder)
    assert level["valid"] and "soak_cut_short" in rules(level, "warnings"), level["reasons"]


def test_what_ended_after_the_last_whole_window_is_counted_and_told() -> None:
    rest = Rest(42.0, {"ok": 94, "http_503": 6})
    found = soak_object([row(k) for k in range(10)], window_s=60.0, max_drift=0.1, judged_s=642.0, rest=rest)
    assert found["requests"] == {"ok": 1094, "http_503": 6} and found["left_out_requests"] == {"ok": 94, "http_503": 6}
    assert found["error_rate"] == pytest.approx(6 / 1100)
    assert (
        "Its last 42 s are no whole window and left out of the trends; 100 requests, 6 of them failed, ended"
        in found["text"]
    )
    assert "6 of all 1100 requests failed (0.55%)" in found["text"]
    # Its drain alone is no unfinished window.
    drained = soak_object(
        [row(k) for k in range(10)], window_s=60.0, max_drift=0.1, judged_s=600.0, rest=Rest(0.0, {"ok": 2})
    )
    assert "whole window" not in drained["text"] and drained["requests"] == {"ok": 1002}


def test_a_level_of_a_shared_target_says_so_and_no_other_does(tmp_path: Path) -> None:
    folder = cut_run(tmp_path / "run", 2, at_s=110)
    assert level_of(folder, target={"shared": True})["shared_target"] is True
    assert level_of(folder)["shared_target"] is False


def drifting(name: str, by: float) -> dict[str, Any]:
    return soak_of([row(k, **{name: 100 + by * k}) for k in range(40)])


@pytest.mark.parametrize(
    ("name", "by", "worse"),
    [
        ("p50_tpot_ms", 2, True),
        ("p50_tpot_ms", -2, False),
        ("output_throughput", 2, False),
        ("output_throughput", -2, True),
    ],
)
def test_a_drift_is_said_to_be_for_the_worse_or_for_the_better(name: str, by: float, worse: bool) -> None:
    found = drifting(name, by)
    assert found["drift"] == "yes" and found["worse"] is worse and found["figures"][name]["better"] is not worse
    assert found["text"].startswith("DRIFT for the worse over" if worse else "Drift for the better over")


def test_a_figure_that_got_better_is_not_among_those_that_got_worse() -> None:
    found = soak_of([row(k, p50_ttft_ms=100 + 2 * k, p50_tpot_ms=100 - k) for k in range(40)])
    worse, better = found["text"].split(". For the better: ")
    assert "TTFT P50 +" in worse and "TPOT" not in worse and "TPOT P50 -" in better


def soak_level(tmp_path: Path, soak: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {**level_of(cut_run(tmp_path / "run", 12, at_s=660)), "interrupted": False, "soak": soak, **changed}


def test_a_soak_that_did_not_go_well_is_the_first_answer_and_not_green(tmp_path: Path) -> None:
    level = soak_level(tmp_path, soak_of([row(k) for k in range(40)]))
    cases = (
        (level["soak"], GOOD),
        (soak_of([row(k) for k in range(5)]), DOUBT),
        (drifting("p50_ttft_ms", -1), DOUBT),
        (drifting("p50_ttft_ms", 2), BAD),
    )
    for soak, expected in cases:
        levels = [{**level, "soak": soak}]
        said = answers(levels)
        assert standing(said["soak"]) == expected
        titles = [title for title, _ in answer_lines(said)]
        assert len(titles) > 1
        assert titles.index("Soak") == (len(titles) - 1 if expected == GOOD else 0)
        text = page("night", levels, CONDITIONS, said)
        assert f'<div class="{expected}"><strong>Soak</strong>' in text
        assert ('<div class="good">' in text) == (expected != BAD)


def test_a_soak_without_drift_on_an_invalid_level_is_no_pass(tmp_path: Path) -> None:
    invalid = {"valid": False, "reasons": [{"rule": "other_traffic", "evidence": "x", "remedy": "y"}]}
    said = answers([soak_level(tmp_path, soak_of([row(k) for k in range(40)]), **invalid)])
    assert standing(said["soak"]) == DOUBT
    assert said["soak"][0]["text"].endswith("The level is invalid: other_traffic.")


def test_the_windows_table_says_of_the_whole_soak_what_the_soak_says(tmp_path: Path) -> None:
    level = soak_level(tmp_path, soak_of([row(k) for k in range(5)]))
    assert why(level).endswith("over the whole soak: undecided")
    assert "length: the soak's last 600 s, as long as was given; within these: " in why(level)
    assert why({**level, "soak": drifting("p50_ttft_ms", 2)}).endswith("over the whole soak: drift for the worse")


def test_a_drift_for_the_worse_is_exit_code_99_where_that_was_asked_for(tmp_path: Path) -> None:
    level = soak_level(tmp_path, drifting("p50_ttft_ms", 2))
    assert verdict([level])["exit_code"] == 0
    assert verdict([level], fail_on_drift=True)["exit_code"] == 99
    assert verdict([{**level, "valid": False}], fail_on_drift=True)["exit_code"] == 3
    for soak in (drifting("p50_ttft_ms", -1), soak_of([row(k) for k in range(5)]), None):
        assert verdict([{**level, "soak": soak}], fail_on_drift=True)["exit_code"] == 0


def test_a_report_of_a_soak_that_drifted_ends_with_99_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = Scenario.model_validate({**SOAK, "soak": {"window": "1m", "fail_on_drift": True}})
    run = GrowingRun(tmp_path / "run", 20)
    (run.folder.path / "scenario.yaml").write_text(scenario.to_yaml())
    for minute in range(20):
        run.grow(minute, slower_ms=20 * minute)
    run.end()
    judged = write_outputs(run.folder, Console(width=300))
    printed = capsys.readouterr().out
    assert judged.levels[0]["valid"], judged.levels[0]["reasons"]
    assert judged.exit_code == 99 and "soak.fail_on_drift is set: exit code 99" in printed
    assert printed.index("Soak: DRIFT for the worse") < printed.index("Highest output throughput")


def test_the_last_window_is_in_metrics_when_the_run_is_over(tmp_path: Path) -> None:
    level = level_of(cut_run(tmp_path / "run", 12, at_s=700))
    live = LiveRun(Scenario.model_validate({**SOAK, "metrics": {"port": None}}))
    live.set_soak(10, level["soak"]["windows"][9])
    live.add_level(level)
    served = generate_latest(live._metrics.registry).decode()
    assert "\nloadgen_soak_windows 11.0\n" in served
    last = level["soak"]["windows"][-1]
    assert f"\nloadgen_soak_window_requests_per_second {last['request_throughput']}\n" in served


def test_the_time_of_an_interrupted_soak_is_all_of_it(tmp_path: Path) -> None:
    scenario = Scenario.model_validate(SOAK)
    level = level_of(cut_run(tmp_path / "run", 12, at_s=700))
    assert level["window_s"] == 600
    assert "(interrupted after 700 s)" in conditions(scenario, {}, [level])["window"]


def test_nobody_is_told_that_a_soak_can_be_taken_up_where_it_ended() -> None:
    told = soak_hint("`loadgen run --resume RUN` measures what is left")
    assert "cannot be taken up where it ended" in told and "begins the soak anew" in told
