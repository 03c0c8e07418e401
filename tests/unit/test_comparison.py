"""What counts as a regression, what as chance, what cannot be compared; runs are made in virtual time."""

from __future__ import annotations

import dataclasses
import math
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from loadgen.comparison.change import (
    IMPROVED,
    NOT_MEASURED,
    REGRESSED,
    SAME,
    UNCLEAR,
    Measured,
    change,
    wilson,
)
from loadgen.comparison.compare import compare
from loadgen.comparison.conditions import conditions_of, differences
from loadgen.comparison.figures import DEFAULTS, figure, figures, is_figure, parse_tolerances
from loadgen.comparison.renderings import junit, markdown, terminal
from loadgen.comparison.snapshot import (
    MeasuredLevel,
    Snapshot,
    baseline_json,
    read_baseline,
    read_snapshot,
    snapshot_of,
)
from loadgen.comparison.words import hint, remarks, verdict_text
from loadgen.errors import UsageError
from loadgen.locustfile.conditions import conditions_of as locustfile_conditions
from loadgen.measured_run import read_run
from loadgen.scenario.model import Scenario
from tests.virtual_run import VirtualRun

TTFT = figure("p95_ttft_ms", 0.10)
TOKENS = figure("output_throughput", 0.05)
ERRORS = figure("error_rate", 0.01)


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (Measured(100, (98, 102)), Measured(105, (103, 107)), SAME),  # certain, and within the tolerance
        (Measured(100, (98, 102)), Measured(115, (112, 118)), REGRESSED),
        (Measured(100, (98, 102)), Measured(85, (82, 88)), IMPROVED),
        (
            Measured(100, (60, 150)),
            Measured(101, (60, 155)),
            UNCLEAR,
        ),  # a value within the tolerance shows nothing by itself
        (Measured(100, (99, 101)), Measured(101, (80, 102)), UNCLEAR),
        (Measured(100, weak=True), Measured(101), UNCLEAR),
        (Measured(100, (0, 200)), Measured(101, (90, 110)), UNCLEAR),
        (Measured(100, (80, 130)), Measured(115, (90, 150)), UNCLEAR),  # beyond the tolerance, and chance may do so
        (Measured(100), Measured(115), REGRESSED),  # nothing but the tolerance to go by
        (Measured(100, weak=True), Measured(115), UNCLEAR),
        (Measured(100), Measured(115, weak=True), UNCLEAR),
        (Measured(None), Measured(115), NOT_MEASURED),
        (Measured(100), Measured(None), NOT_MEASURED),
    ],
)
def test_regression_is_worse_by_more_than_the_tolerance_and_than_chance(
    old: Measured, new: Measured, verdict: str
) -> None:
    assert change(TTFT, old, new).verdict == verdict


def test_less_throughput_is_worse_and_less_latency_is_better() -> None:
    assert change(TOKENS, Measured(100), Measured(90)).verdict == REGRESSED
    assert change(TOKENS, Measured(100), Measured(110)).verdict == IMPROVED
    assert change(TTFT, Measured(100), Measured(80)).verdict == IMPROVED


def test_error_rate_changes_by_points_and_not_by_shares() -> None:
    assert change(ERRORS, Measured(0.0), Measured(0.005)).verdict == SAME
    assert change(ERRORS, Measured(0.0), Measured(0.02)).verdict == REGRESSED
    assert change(ERRORS, Measured(0.0, wilson(0, 50)), Measured(0.0, wilson(0, 50))).verdict == SAME
    assert change(ERRORS, Measured(0.0, wilson(0, 50)), Measured(0.005, wilson(1, 200))).verdict == UNCLEAR
    few = change(ERRORS, Measured(0.0, wilson(0, 50)), Measured(0.02, wilson(1, 50)))
    assert few.verdict == UNCLEAR, "one failure of fifty proves nothing"
    many = change(ERRORS, Measured(0.0, wilson(0, 5000)), Measured(0.02, wilson(100, 5000)))
    assert many.verdict == REGRESSED


def test_interval_of_a_change_is_movers() -> None:
    made = change(TTFT, Measured(100, (90, 110)), Measured(120, (114, 126)))
    assert made.interval is not None
    down = math.hypot(math.log(120 / 114), math.log(110 / 100))
    up = math.hypot(math.log(126 / 120), math.log(100 / 90))
    assert made.interval[0] == pytest.approx(1.2 * math.exp(-down) - 1)
    assert made.interval[1] == pytest.approx(1.2 * math.exp(up) - 1)


def test_change_from_nothing_has_no_share() -> None:
    assert change(TTFT, Measured(0), Measured(5)).verdict == UNCLEAR
    assert change(TTFT, Measured(0), Measured(0)).verdict == SAME


def test_a_rate_that_may_have_fallen_to_nothing_has_regressed_and_its_bound_below_is_all_of_it() -> None:
    made = change(TOKENS, Measured(502, (489, 516)), Measured(127, (0, 365)))
    assert made.verdict == REGRESSED and made.interval is not None
    assert made.interval[0] == -1 and -0.5 < made.interval[1] < 0
    gone = change(TOKENS, Measured(502, (489, 516)), Measured(0, (0, 20)))
    assert (gone.verdict, gone.interval) == (REGRESSED, (-1.0, pytest.approx(20 / 489 - 1)))
    assert change(TOKENS, Measured(502, (400, 600)), Measured(400, (0, 700))).verdict == UNCLEAR


def test_wilson_interval_of_the_textbook() -> None:
    low, high = wilson(0, 20) or (None, None)
    assert low == 0.0 and high == pytest.approx(0.1611, abs=1e-4)
    assert wilson(0, 0) is None


def test_tolerances_are_read_and_wrong_ones_are_refused() -> None:
    assert parse_tolerances(["p95_ttft_ms=10%", "output_throughput=3%,p99_itl_ms=0.5"]) == {
        "p95_ttft_ms": 0.1,
        "output_throughput": 0.03,
        "p99_itl_ms": 0.5,
    }
    for wrong, told in (("p95_ttft_ms", "no number"), ("latency=1%", "no figure"), ("p95_ttft_ms=10", "could mean")):
        with pytest.raises(UsageError, match=told):
            parse_tolerances([wrong])


def test_every_default_figure_is_one_and_an_open_loop_counts_from_the_schedule() -> None:
    assert all(is_figure(name) for name in DEFAULTS)
    names = [one.name for one in figures({"p95_ttft_ms": 0.5}, open_loop=True)]
    assert "p95_ttft_ms" in names, "asked for by name"
    assert "p50_ttft_from_schedule_ms" in names and "p50_ttft_ms" not in names
    tolerances = {one.name: one.tolerance for one in figures({"p95_ttft_ms": 0.5}, open_loop=True)}
    assert tolerances["p95_ttft_from_schedule_ms"] == 0.5, "what an arriving user feels is compared in any case"
    own = {"p95_ttft_ms": 0.5, "p95_ttft_from_schedule_ms": 0.1}
    assert {one.name: one.tolerance for one in figures(own, open_loop=True)}["p95_ttft_from_schedule_ms"] == 0.1


def level(users: int, **changes: Any) -> MeasuredLevel:
    values: dict[str, Any] = {
        "level": users,
        "run": 0,
        "concurrency": users,
        "request_rate": None,
        "server": {"max_num_seqs": 16},
        "valid": True,
        "reasons": [],
        "warnings": [],
        "saturated": False,
        "window_s": 20.0,
        "ok": 500,
        "decided": 500,
        "figures": {"p95_ttft_ms": 100.0, "output_throughput": 1000.0, "error_rate": 0.0},
        "intervals": {"p95_ttft_ms": [95.0, 105.0], "output_throughput": [990.0, 1010.0]},
        "weak": [],
    }
    return MeasuredLevel(**{**values, **changes})


def settings(**asked: Any) -> dict[str, Any]:
    return {"asked": asked, "told": {"enforce_eager": False}}


def snapshot(*levels: MeasuredLevel, **changes: Any) -> Snapshot:
    values: dict[str, Any] = {
        "name": "x",
        "started": None,
        "made_by": "0.1.0",
        "conditions": {"model": "m", "engine": "vllm", "engine_version": "0.11", "settings": settings(max_num_seqs=16)},
        "swept": [],
        "slo": {},
        "within_slo": [],
        "levels": levels,
    }
    return Snapshot(**{**values, **changes})


def slow(users: int, **changes: Any) -> MeasuredLevel:
    return level(
        users,
        figures={"p95_ttft_ms": 200.0, "output_throughput": 800.0, "error_rate": 0.0},
        intervals={"p95_ttft_ms": [190.0, 210.0], "output_throughput": [790.0, 810.0]},
        **changes,
    )


def exit_code(made: dict[str, Any]) -> int:
    return int(made["verdict"]["exit_code"])


def test_the_same_run_has_no_regression_and_a_slower_one_has() -> None:
    assert exit_code(compare(snapshot(level(8)), snapshot(level(8)))) == 0
    made = compare(snapshot(level(8), level(16)), snapshot(level(8), slow(16)))
    assert exit_code(made) == 99
    assert made["verdict"]["regressed"] == 2
    wide = {"p95_ttft_ms": 1.5, "output_throughput": 0.3}
    assert exit_code(compare(snapshot(level(8)), snapshot(slow(8)), tolerances=wide)) == 0


def test_level_that_is_invalid_in_either_run_is_not_judged_and_beats_a_regression() -> None:
    bad = level(8, valid=False, reasons=["client_late"])
    for old, new in ((bad, level(8)), (level(8), bad)):
        made = compare(snapshot(old, level(16)), snapshot(new, slow(16)))
        assert exit_code(made) == 3
        (spoiled,) = [one for one in made["levels"] if one["status"] == "invalid"]
        assert spoiled["figures"] == [] and "client_late" in spoiled["text"]
    assert "NOT ANSWERED: 1 level" in verdict_text(made)


def test_valid_repeat_stands_for_a_level_whose_other_run_is_invalid() -> None:
    bad = level(8, valid=False, reasons=["client_late"], run=1)
    assert exit_code(compare(snapshot(level(8)), snapshot(level(8), bad))) == 0


def test_repeats_are_their_median_with_an_interval_that_holds_all() -> None:
    runs = [
        level(
            8,
            run=run,
            figures={"p95_ttft_ms": value, "output_throughput": 1000.0, "error_rate": 0.0},
            intervals={"p95_ttft_ms": [value - 2, value + 2], "output_throughput": [990.0, 1010.0]},
        )
        for run, value in enumerate((100.0, 110.0, 160.0))
    ]
    made = compare(snapshot(level(8)), snapshot(*runs))
    ttft = next(one for one in made["levels"][0]["figures"] if one["figure"] == "p95_ttft_ms")
    assert (ttft["run"], ttft["run_interval"]) == (110.0, (98.0, 162.0))


def test_levels_of_one_run_only_are_told_and_a_sweep_that_was_cut_off_answers_nothing() -> None:
    made = compare(snapshot(level(8), level(32)), snapshot(level(8), level(16)))
    assert {one["concurrency"]: one["status"] for one in made["levels"]} == {8: "compared", 16: "new", 32: "missing"}
    assert exit_code(made) == 0
    assert exit_code(compare(snapshot(level(8), level(32)), snapshot(level(8), cut_off=True))) == 3


def halved(users: int = 8, **more: float) -> MeasuredLevel:
    rates = {"request_throughput": 5.0, **more}
    return level(users, figures=rates, intervals={name: [0.95 * value, 1.05 * value] for name, value in rates.items()})


def test_a_baseline_of_before_a_figure_is_held_against_what_stood_in_its_place() -> None:
    old = snapshot(halved(request_throughput=10.0))
    new = snapshot(halved(request_throughput=5.0, served_request_rate=5.0))
    made = compare(old, new)
    assert exit_code(made) == 99
    told = {one["figure"]: one["verdict"] for one in made["levels"][0]["figures"]}
    assert told["request_throughput"] == REGRESSED and "served_request_rate" not in told


def test_a_figure_that_was_asked_for_and_is_not_in_the_baseline_leaves_the_level_without_an_answer() -> None:
    old, new = snapshot(halved()), snapshot(halved(served_request_rate=5.0))
    made = compare(old, new, tolerances={"served_request_rate": 0.1})
    assert exit_code(made) == 3
    assert "1 of 8 figures are not in the baseline" in verdict_text(made)
    assert "make the baseline anew" in (hint(made) or "")
    outcomes = {case.get("name"): [part.tag for part in case] for case in ET.fromstring(junit(made)).iter("testcase")}
    assert outcomes["served_request_rate"] == ["error"] and outcomes["p95_ttft_ms"] == ["skipped"]


def test_a_level_of_which_nothing_was_measured_in_both_is_not_compared() -> None:
    made = compare(snapshot(level(8), level(16)), snapshot(level(8), level(16, figures={}, intervals={})))
    assert [one["status"] for one in made["levels"]] == ["compared", "invalid"]
    assert exit_code(made) == 3 and made["verdict"]["compared_levels"] == 1


def test_runs_without_a_common_level_cannot_be_compared() -> None:
    made = compare(snapshot(level(8)), snapshot(level(16)))
    assert not made["comparable"] and exit_code(made) == 2
    assert "no level of the baseline" in verdict_text(made)


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("model", "other"),
        ("precision", {"dtype": "float16"}),
        ("engine", "sim"),
        ("engine_version", "0.12"),
        ("gpu", {"NVIDIA L4": 1}),
        ("endpoint", "completions"),
        ("lengths", "input 1; output 1, forced"),
        ("workload", {"shared_prefix_tokens": 64}),
        ("load", "open loop, poisson arrivals"),
        ("settings", {"asked": {"max_num_seqs": 32}, "told": {}}),
        ("settings", {"asked": {"max_num_seqs": 16, "swap_space": 4}, "told": {}}),
        ("settings", {"asked": {"max_num_seqs": 16}, "told": {"enforce_eager": True}}),
    ],
)
def test_other_conditions_are_not_comparable_unless_they_are_what_is_compared(condition: str, value: Any) -> None:
    known = {
        "model": "m",
        "precision": {"dtype": "bfloat16"},
        "engine": "vllm",
        "engine_version": "0.11",
        "gpu": {"NVIDIA H100": 1},
        "endpoint": "chat",
        "lengths": "input 128; output 64, forced",
        "workload": {},
        "load": "closed loop, no think time",
        "settings": settings(max_num_seqs=16),
    }
    old, new = snapshot(level(8), conditions=known), snapshot(slow(8), conditions={**known, condition: value})
    made = compare(old, new)
    assert exit_code(made) == 2 and made["levels"] == []
    assert verdict_text(made).startswith("Not comparable because the ")
    assert hint(made) == f"if that is what is to be compared, say so: --across {condition}"
    allowed = compare(old, new, across=[condition])
    assert exit_code(allowed) == 99
    assert any("that is what is compared" in line for line in markdown(allowed).splitlines())


def test_condition_that_one_side_does_not_tell_is_named_and_does_not_hinder() -> None:
    old = snapshot(level(8), conditions={"model": "m", "gpu": {"NVIDIA H100": 1}})
    made = compare(old, snapshot(level(8), conditions={"model": "m", "gpu": None}))
    assert made["not_checked"] == ["gpu"] and exit_code(made) == 0


def test_setting_that_only_one_side_tells_of_is_no_difference() -> None:
    old = snapshot(level(8), conditions={"settings": {"asked": None, "told": {"block_size": 16}}})
    new = snapshot(level(8), conditions={"settings": {"asked": {"max_num_seqs": 8}, "told": {"dtype": "half"}}})
    assert compare(old, new)["comparable"]
    precise = {"precision": {"dtype": "float16", "quantization": "awq"}}
    assert compare(
        snapshot(level(8), conditions=precise), snapshot(level(8), conditions={"precision": {"dtype": "float16"}})
    )["comparable"]


def test_while_requests_pile_up_latencies_are_not_compared_and_beginning_to_is_a_regression() -> None:
    rate = {"concurrency": None, "request_rate": 8.0}
    old = level(8, **rate, figures={"output_throughput": 1000.0, "p95_ttft_from_schedule_ms": 100.0})
    new = dataclasses.replace(old, saturated=True)
    made = compare(snapshot(old), snapshot(new))
    told = {one["figure"]: one["verdict"] for one in made["levels"][0]["figures"]}
    assert "p95_ttft_from_schedule_ms" not in told
    assert told["saturated"] == REGRESSED and exit_code(made) == 99


def test_throughputs_of_an_open_loop_that_the_server_keeps_up_with_follow_the_arrivals_and_are_not_compared() -> None:
    rate = {"concurrency": None, "request_rate": 2.0}
    rates = {"output_throughput": 120.0, "served_request_rate": 1.92, "p50_tpot_ms": 10.0, "error_rate": 0.0}
    more = {"output_throughput": 139.0, "served_request_rate": 2.23, "p50_tpot_ms": 10.0, "error_rate": 0.0}
    old, new = level(1, **rate, figures=rates, intervals={}), level(1, **rate, figures=more, intervals={})
    for first, second in ((old, new), (new, old)):
        made = compare(snapshot(first), snapshot(second))
        assert {one["figure"] for one in made["levels"][0]["figures"] if one["baseline"]} == {"p50_tpot_ms"}
        assert made["levels"][0]["left_out"] == ["output_throughput", "served_request_rate"]
        assert (exit_code(made), made["verdict"]["improved"]) == (0, 0)
        assert any("output_throughput, served_request_rate" in line for line in remarks(made)), (
            "what is left out is told"
        )
    asked = compare(snapshot(new), snapshot(old), tolerances={"output_throughput": 0.05})
    assert exit_code(asked) == 99 and asked["levels"][0]["left_out"] == ["served_request_rate"]
    full = compare(snapshot(new), snapshot(dataclasses.replace(old, saturated=True)))
    capacities = {one["figure"] for one in full["levels"][0]["figures"] if one["verdict"] == REGRESSED}
    assert capacities == {"output_throughput", "served_request_rate", "saturated"}


def test_other_arrivals_of_the_same_rate_raise_no_alarm(tmp_path: Path) -> None:
    one, other = (
        snapshot_of(read_run(VirtualRun(request_rate=(2,), window_s=60, seed=seed).write(tmp_path / str(seed))))
        for seed in (14, 8)
    )
    drawn = [run.levels[0].figures["served_request_rate"] for run in (one, other)]
    assert abs(drawn[1] / drawn[0] - 1) > 0.10, "else this test shows nothing"
    for first, second in ((one, other), (other, one)):
        assert exit_code(compare(first, second)) == 0


def test_where_no_level_could_be_compared_nothing_sounds_like_a_pass() -> None:
    bad = level(8, valid=False, reasons=["client_late"])
    made = compare(snapshot(level(8)), snapshot(bad))
    assert verdict_text(made) == "Nothing was compared; NOT ANSWERED: 1 level invalid or not measured."


def test_baseline_file_says_the_same_as_the_run_and_is_small(tmp_path: Path) -> None:
    made = snapshot_of(read_run(VirtualRun(concurrency=(1, 4, 8, 16), spread=0.3).write(tmp_path / "run")))
    file = tmp_path / "baseline.json"
    file.write_bytes(baseline_json(made))
    assert read_snapshot(file) == made
    assert file.stat().st_size < 6_000 * 4, "about 5 kB a level"
    assert b"records" not in file.read_bytes()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{}", "neither a run folder nor a baseline"),
        (b"no json", "neither a run folder nor a baseline"),
        (b'{"form": "loadgen baseline", "version": 99, "made_by": "9.9.9"}', "version 99, made by loadgen 9.9.9"),
        (b'{"form": "loadgen baseline", "version": 1, "levels": [{"a": 1}]}', "damaged"),
        (b'{"form": "loadgen baseline", "version": 1}', "damaged"),
    ],
)
def test_file_that_is_no_baseline_of_this_version_is_refused(content: bytes, told: str, tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=told) as refused:
        read_baseline(file)
    assert "--format baseline" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("conditions", "settings"), {"max_num_seqs": 16}),
        (("conditions", "settings"), {"asked": {}}),
        (("conditions",), []),
        (("within_slo",), [{"server": {}}]),
        (("swept",), None),
        (("levels", 0, "figures"), []),
        (("levels", 0, "figures", "output_throughput"), "fast"),
        (("levels", 0, "intervals", "output_throughput"), [None, None]),
        (("levels", 0, "intervals", "output_throughput"), [1, 2, 3]),
        (("levels", 0, "server"), None),
    ],
)
def test_a_damaged_baseline_is_refused_by_the_place_of_the_damage(
    where: tuple[str | int, ...], value: Any, tmp_path: Path
) -> None:
    told = orjson.loads(baseline_json(snapshot(level(8))))
    place = told
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    file = tmp_path / "baseline.json"
    file.write_bytes(orjson.dumps(told))
    with pytest.raises(UsageError, match="damaged") as refused:
        read_baseline(file)
    assert str(where[-1]) in str(refused.value)


def test_baseline_needs_a_valid_level_and_leaves_out_the_others() -> None:
    bad = level(16, valid=False, reasons=["client_late"])
    kept = orjson.loads(baseline_json(snapshot(level(8), bad)))["levels"]
    assert [one["concurrency"] for one in kept] == [8]
    with pytest.raises(UsageError, match="No level"):
        baseline_json(snapshot(bad))


def every_kind() -> dict[str, Any]:
    """A comparison with something of everything."""
    unsure = level(
        4,
        figures={"p95_ttft_ms": 150.0, "output_throughput": 1000.0, "error_rate": 0.0},
        intervals={"p95_ttft_ms": [80.0, 300.0], "output_throughput": [990.0, 1010.0]},
    )
    bad = level(16, valid=False, reasons=["client_late"])
    return compare(snapshot(level(4), level(8), level(16), level(32)), snapshot(unsure, slow(8), bad))


def test_junit_has_a_case_for_each_figure_with_the_outcome_of_its_verdict() -> None:
    root = ET.fromstring(junit(every_kind()))
    outcomes = {
        (case.get("classname"), case.get("name")): next((part.tag for part in case), None)
        for case in root.iter("testcase")
    }
    assert outcomes["concurrency 8", "p95_ttft_ms"] == "failure"
    assert outcomes["concurrency 4", "p95_ttft_ms"] == "skipped"
    assert outcomes["concurrency 4", "output_throughput"] == "system-out"
    assert outcomes["concurrency 16", "level"] == "error"
    assert outcomes["concurrency 32", "level"] == "skipped"
    assert (root.get("failures"), root.get("errors")) == ("2", "1")
    assert int(root.get("tests") or 0) == len(outcomes)
    other = ET.fromstring(junit(compare(snapshot(level(8)), snapshot(level(16)))))
    assert other.find("testcase/error") is not None


def test_markdown_is_a_table_a_level_with_regressions_in_bold() -> None:
    text = markdown(every_kind())
    assert text.startswith(
        "### Load test: 2 regressed, 1 of 16 figures unclear; 2 levels compared; NOT ANSWERED: 1 level"
    )
    bold = [line for line in text.splitlines() if line.startswith("| **")]
    assert len(bold) == 2 and "p95\\_ttft\\_ms" in "".join(bold)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.count("|") for line in rows} == {7}
    assert "**concurrency 16: invalid in the run: client\\_late**" in text


def test_terminal_names_every_level_and_ends_with_verdict_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=100).print(terminal(every_kind(), width=100))
    text = capsys.readouterr().out
    for users in (4, 8, 16, 32):
        assert f"concurrency {users}" in text
    assert "2 regressed" in text and text.strip().splitlines()[-1].startswith("hint: ")


def long_names() -> dict[str, Any]:
    """A comparison in an open loop, whose figures have the longest names, with changes of many digits."""
    rate = {"concurrency": None, "request_rate": 2.0}
    figures = {"p50_ttft_from_schedule_ms": 100.0, "p95_ttft_from_schedule_ms": 100.0, "p95_tpot_ms": 10.0}
    old = level(1, **rate, figures=figures, intervals={name: [value / 8, value * 8] for name, value in figures.items()})
    new = level(
        1, **rate, figures={"p50_ttft_from_schedule_ms": 140.0, "p95_ttft_from_schedule_ms": 145.0}, intervals={}
    )
    return compare(snapshot(old), snapshot(dataclasses.replace(new, intervals=old.intervals)))


@pytest.mark.parametrize("columns", [80, 110, 150])
@pytest.mark.parametrize("made", [every_kind, long_names])
def test_verdict_is_never_cut_and_its_reason_stands_below_the_table(
    made: Callable[[], dict[str, Any]], columns: int, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = made()
    Console(width=columns).print(terminal(comparison, width=columns))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    for level_ in comparison["levels"]:
        for one in level_["figures"]:
            assert any(line.startswith(one["figure"]) and line.endswith(one["verdict"]) for line in lines), one
    assert max(map(len, lines)) <= columns
    told = " ".join(lines)
    assert "p95_ttft_ms: unclear, " in told or "unclear, chance alone may do so" in told
    assert "(chance" not in told and "(may" not in told


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Snapshot]:
    """Snapshots of virtual runs, each made once."""
    made: dict[tuple[int, float], Snapshot] = {}

    def one(seed: int, slower: float = 1.0) -> Snapshot:
        if (seed, slower) not in made:
            path = tmp_path_factory.mktemp("runs") / "run"
            run = VirtualRun(concurrency=(4, 16, 24), spread=0.5, seed=seed, slower=slower)
            made[seed, slower] = snapshot_of(read_run(run.write(path)))
        return made[seed, slower]

    return one


def test_other_seeds_of_the_same_server_raise_no_alarm(run_of: Callable[..., Snapshot]) -> None:
    codes = [exit_code(compare(run_of(seed), run_of(seed + 1))) for seed in range(1, 4)]
    assert codes.count(99) <= 1, codes
    assert set(codes) <= {0, 99}


def test_a_server_that_is_ten_percent_slower_is_noticed(run_of: Callable[..., Snapshot]) -> None:
    for seed in range(1, 3):
        made = compare(run_of(seed), run_of(seed + 100, 1.1))
        worse = {one["figure"] for at in made["levels"] for one in at["figures"] if one["verdict"] == REGRESSED}
        assert exit_code(made) == 99
        assert {"output_throughput", "p50_tpot_ms"} <= worse


def test_settings_that_differ_are_found_in_real_runs(tmp_path: Path) -> None:
    old = snapshot_of(read_run(VirtualRun(concurrency=(8,)).write(tmp_path / "old")))
    new = snapshot_of(read_run(VirtualRun(concurrency=(8,), max_num_seqs=(4,)).write(tmp_path / "new")))
    made = compare(old, new)
    assert not made["comparable"]
    assert made["differences"][0]["baseline"] == {"max_num_seqs": 16}
    assert exit_code(compare(old, new, across=["settings"])) == 99
    longer = snapshot_of(read_run(VirtualRun(concurrency=(8,), input_tokens=256).write(tmp_path / "longer")))
    assert [one["condition"] for one in compare(old, longer)["differences"]] == ["lengths"]


def test_workload_differs_by_its_prefixes_and_its_dataset_but_not_by_its_seed(tmp_path: Path) -> None:
    plain = read_run(VirtualRun(concurrency=(4,), window_s=10).write(tmp_path / "run"))

    def of(**changes: Any) -> dict[str, Any]:
        workload = plain.scenario.workload.model_copy(update=changes)
        scenario = plain.scenario.model_copy(update={"workload": workload})
        return conditions_of(dataclasses.replace(plain, scenario=scenario), [])

    assert of(prompt_set=3, tokenizer="x") == of()
    assert of(shared_prefix_tokens=64)["workload"] == {"shared_prefix_tokens": 64}
    assert of(output_tokens=65)["lengths"] != of()["lengths"]
    files = {"dataset": {"path": "/data/chats.jsonl", "digest": "ab", "rows": 3, "format": "jsonl"}}
    told = conditions_of(dataclasses.replace(plain, provenance={**plain.provenance, **files}), [])
    assert told["workload"] == {"dataset": {"name": "chats.jsonl", "digest": "ab", "rows": 3}}


def test_open_loops_are_compared_rate_by_rate_from_the_schedule(tmp_path: Path) -> None:
    old = snapshot_of(read_run(VirtualRun(request_rate=(4, 8), window_s=30).write(tmp_path / "old")))
    new = snapshot_of(read_run(VirtualRun(request_rate=(4, 30), window_s=30, seed=2).write(tmp_path / "new")))
    made = compare(old, new)
    assert [(one["request_rate"], one["status"]) for one in made["levels"]] == [
        (4.0, "compared"),
        (8.0, "missing"),
        (30.0, "new"),
    ]
    assert "p95_ttft_from_schedule_ms" in {one["figure"] for one in made["levels"][0]["figures"]}
    users = snapshot_of(read_run(VirtualRun(concurrency=(4,)).write(tmp_path / "users")))
    assert [one["condition"] for one in compare(old, users)["differences"]] == ["load"]


def test_swept_settings_are_matched_level_by_level(tmp_path: Path) -> None:
    both = snapshot_of(read_run(VirtualRun(concurrency=(8,), max_num_seqs=(4, 16)).write(tmp_path / "both")))
    one = snapshot_of(read_run(VirtualRun(concurrency=(8,), max_num_seqs=(16,)).write(tmp_path / "one")))
    made = compare(both, one)
    assert made["comparable"]
    assert {level["server"]["max_num_seqs"]: level["status"] for level in made["levels"]} == {
        4: "missing",
        16: "compared",
    }


def test_setting_that_is_not_swept_is_compared_though_no_level_is_named_by_it(tmp_path: Path) -> None:
    """A level's `server` names max_num_seqs and what is swept; everything else stands in the scenario alone."""
    run = read_run(VirtualRun(concurrency=(4,), window_s=10).write(tmp_path / "run"))

    def on(**settings: Any) -> dict[str, Any]:
        values = run.scenario.model_dump(mode="json", exclude_unset=True)
        values |= {"target": {"server": "sim"}, "server": {"max_num_seqs": 16, **settings}}
        named = [{**level, "server": {"max_num_seqs": 16}} for level in run.levels]
        return conditions_of(dataclasses.replace(run, scenario=Scenario.model_validate(values), levels=named), [])

    small = on(simulated_model="llama-3.1-8b", gpu="A100")
    for other, condition in (
        (on(simulated_model="llama-3.1-8b", gpu="H100"), "gpu"),
        (on(simulated_model="llama-3.1-8b", gpu="A100", bandwidth_share=0.5), "settings"),
    ):
        assert [one.condition for one in differences(small, other)[0]] == [condition]
    assert not differences(small, small)[0]


def test_tasks_of_a_locustfile_are_not_compared_with_a_scenario_of_default_lengths(tmp_path: Path) -> None:
    run = read_run(VirtualRun(concurrency=(4,), window_s=10).write(tmp_path / "run"))
    words = locustfile_conditions("chat.py", ["ChatUser"], open_loop=False, warmup_s=0)
    about = {"file": "tests/chat.py", "names": ["ask"], "conditions": words}
    by_tasks = conditions_of(dataclasses.replace(run, provenance={**run.provenance, "locustfile": about}), [])
    assert {one.condition for one in differences(conditions_of(run, []), by_tasks)[0]} == {
        "lengths",
        "workload",
        "load",
    }


def test_figure_that_the_run_no_longer_measures_leaves_the_level_unanswered() -> None:
    blind = level(8, figures={"output_throughput": 1000.0, "error_rate": 0.0}, intervals={})
    made = compare(snapshot(level(8)), snapshot(blind))
    assert exit_code(made) == 3, "a gate that cannot see must not open"
    assert ET.fromstring(junit(made)).get("errors") == "1"
    assert exit_code(compare(snapshot(blind), snapshot(level(8)))) == 0
