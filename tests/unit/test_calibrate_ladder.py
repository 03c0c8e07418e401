"""Climbing the ladder, choosing cores, telling what was found, refusing what cannot be: nothing is measured here."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner

from loadgen import cli
from loadgen.calibrate.cores import Cores, choose
from loadgen.calibrate.ladder import climb
from loadgen.calibrate.step import ENOUGH_REQUESTS, Conditions
from loadgen.calibrate.text import render
from loadgen.errors import LoadgenError, RunInterruptedError

TWO_CORES = Cores(1, 0, (0,), same_physical_core=False)
CONDITIONS = Conditions(ttft_ms=50, rate=100, output_tokens=128, window_s=5, cores=TWO_CORES)


def against(reported: float | None, true: float | None) -> dict[str, Any]:
    error = None if reported is None or true is None else reported - true
    percent = 100 * error / true if error is not None and true else None
    return {"reported_ms": reported, "true_ms": true, "error_ms": error, "error_percent": percent}


def step(streams: int, **fields: Any) -> dict[str, Any]:
    """One step, as measured."""
    ttft = {p: against(50.03, 50.0) for p in ("p50", "p95", "p99")}
    itl = {p: against(10.0, 10.0) for p in ("p50", "p95", "p99")}
    return {
        "streams": streams,
        "requests": 100,
        "requests_unmatched": 0,
        "tokens": 100,
        "ttft": {"n_reported": 100, "n_true": 100, "weak": ["p99"], **ttft},
        "itl": {"n_reported": 100, "n_true": 100, "weak": [], **itl},
        "tokens_per_s": {"reported": streams * 96.0, "true": streams * 96.0, "error": 0, "error_percent": 0},
        "arrival_error": {"n": 9, "p50_us": 3.0, "p95_us": 5.0, "p99_us": 12.0, "p99_9_us": 30.0, "max_us": 99.0},
        "coalesced_share": 0.0,
        "cpu_us_per_token": 11.5,
        "loop_lag_p99_ms": 0.4,
        "kernel_stamps": 1.0,
        "server_late_p99_ms": 0.1,
        "valid": True,
        "reasons": [],
        "client_bound": False,
        "worker_peak_rss_mb": 90.0,
        "worker_waited_share": 0.001,
        **fields,
    }


BOUND = {"client_bound": True, "valid": False, "reasons": [{"rule": "client_cpu", "evidence": "It was busy."}]}


def climbed(
    *steps: Any, loads: tuple[int, ...] = (1, 2, 4), keep_going: bool = False
) -> tuple[dict[str, Any], LoadgenError | None, list[int]]:
    """The ladder over prepared steps; one that is an exception is raised."""
    asked: list[int] = []

    def measure(streams: int, conditions: Conditions, folder: Path) -> dict[str, Any]:
        assert folder.name == f"{streams}-streams"
        asked.append(streams)
        prepared = steps[len(asked) - 1]
        if isinstance(prepared, BaseException):
            raise prepared
        return step(streams, **prepared)

    report, failure = climb(
        loads, CONDITIONS, Path("folder"), measure=measure, tell=lambda text: None, keep_going=keep_going
    )
    return report, failure, asked


def shown(report: dict[str, Any], width: int = 80) -> str:
    text = io.StringIO()
    Console(file=text, width=width).print(render(report))
    return text.getvalue()


def test_the_climb_ends_at_the_first_client_bound_load() -> None:
    report, failure, asked = climbed({}, BOUND, {})
    assert failure is None
    assert asked == [1, 2]
    assert report["ceiling"] == {"streams": 1, "tokens_per_s": 96.0, "reached": True}
    assert report["client_bound_at"]["streams"] == 2
    assert "One worker kept up with 1 stream, 96 tokens/s." in shown(report)
    assert "Marked client-bound at 2 streams: It was busy." in shown(report)


def test_a_ladder_that_is_climbed_to_its_end_says_that_the_ceiling_is_higher() -> None:
    report, _, asked = climbed({}, {}, {})
    assert asked == [1, 2, 4]
    assert report["ceiling"] == {"streams": 4, "tokens_per_s": 384.0, "reached": False}
    assert report["client_bound_at"] is None
    assert "its ceiling was not reached" in shown(report)


def test_who_wants_to_see_more_gets_every_load_and_the_same_ceiling() -> None:
    report, _, asked = climbed({}, BOUND, {}, keep_going=True)
    assert asked == [1, 2, 4]
    assert report["ceiling"]["streams"] == 1
    assert report["client_bound_at"]["streams"] == 2


@pytest.mark.parametrize("name", ["ttft", "itl"])
def test_an_error_that_makes_the_figures_useless_ends_the_climb(name: str) -> None:
    wrong = {**step(1)[name], "p95": against(60.0, 50.0)}
    report, _, asked = climbed({}, {name: wrong}, {})
    assert asked == [1, 2]
    assert report["ended"] == f"{name.upper()} P95 is off by +20 % at 2 streams"


def test_a_server_that_cannot_keep_the_pace_ends_the_climb_and_is_not_taken_for_the_client() -> None:
    slow = {**step(1)["itl"], "p50": against(12.0, 12.0)}
    report, _, asked = climbed({}, {"itl": slow}, {})
    assert asked == [1, 2]
    assert "the metronome itself could not keep the pace" in report["ended"]
    assert report["client_bound_at"] is None


def test_an_interrupt_keeps_what_was_measured() -> None:
    report, failure, _ = climbed({}, KeyboardInterrupt())
    assert isinstance(failure, RunInterruptedError)
    assert failure.exit_code == 130
    assert report["interrupted"] is True
    assert [one["streams"] for one in report["steps"]] == [1]
    assert report["ceiling"]["streams"] == 1


def test_a_step_that_cannot_be_run_keeps_what_was_measured_before_it() -> None:
    report, failure, _ = climbed({}, LoadgenError("too many files"))
    assert str(failure) == "too many files"
    assert report["interrupted"] is False
    assert [one["streams"] for one in report["steps"]] == [1]


def test_nothing_measured_is_said_and_not_shown_as_zero() -> None:
    report, _, _ = climbed(KeyboardInterrupt())
    assert report["ceiling"] is None
    assert shown(report).startswith("Nothing was measured.")


def test_the_report_is_plain_json_and_says_its_conditions() -> None:
    report, _, _ = climbed({}, {}, {})
    back = orjson.loads(orjson.dumps(report))
    assert back["schema_version"] == 1
    assert back["conditions"]["itl_ms"] == 10
    assert back["conditions"]["cores"]["separated"] is True
    assert {"cpu", "cores", "kernel", "python", "loadgen"} <= back["host"].keys()


@pytest.mark.parametrize("figures", [{}, BOUND, {"arrival_error": dict.fromkeys(step(1)["arrival_error"])}])
def test_the_tables_fit_a_terminal_of_eighty_columns_whole(figures: dict[str, Any]) -> None:
    text = shown(climbed({}, {}, figures, loads=(1, 64, 1000))[0])
    assert "…" not in text
    assert "50.03 +0.030 +0.06%" in text
    assert "1,000" in text


def test_a_worker_that_had_to_wait_for_its_core_is_told() -> None:
    assert "waited" not in shown(climbed({}, {}, {})[0])
    assert "At 1 stream the worker waited 21% of the time" in shown(climbed({"worker_waited_share": 0.21}, {}, {})[0])


def test_two_cores_are_parted_between_server_and_worker() -> None:
    cores = choose({0, 1}, {})
    assert cores == TWO_CORES
    assert cores.separated


def test_the_controller_gets_a_core_of_its_own_where_there_is_one() -> None:
    assert choose({2, 5, 7}, {}) == Cores(7, 2, (5,), same_physical_core=False)


def test_hyper_threads_of_one_core_are_kept_apart() -> None:
    siblings = {0: frozenset({1}), 1: frozenset({0}), 2: frozenset({3}), 3: frozenset({2})}
    cores = choose({0, 1, 2, 3}, siblings)
    assert (cores.server, cores.worker) == (3, 0)
    only_two = choose({0, 1}, siblings)
    assert only_two.same_physical_core
    assert not only_two.separated


def test_one_core_cannot_be_parted_and_the_report_says_so() -> None:
    alone = Conditions(ttft_ms=50, rate=100, output_tokens=128, window_s=5, cores=choose({3}, {}))
    report, _ = climb([1], alone, Path("folder"), measure=lambda *_: step(1), tell=lambda text: None)
    assert report["conditions"]["cores"]["separated"] is False
    assert "NOT SEPARATED: there is one core only" in shown(report, 200)


def test_few_streams_get_short_answers_so_that_there_are_enough() -> None:
    one = CONDITIONS.for_streams(1)
    assert one.output_tokens < CONDITIONS.output_tokens
    assert CONDITIONS.window_s / one.request_s >= ENOUGH_REQUESTS
    assert CONDITIONS.for_streams(64) == CONDITIONS


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--streams", "1,x"], "--streams is '1,x'"),
        (["--streams", "0"], "--streams is '0'"),
        (["--streams", ""], "--streams is ''"),
        (["--streams", "99999"], "from 1 to 20000"),
        (["--rate", "0"], "--rate is 0"),
        (["--rate", "nan"], "--rate is nan"),
        (["--duration", "5 parsecs"], "--duration is '5 parsecs'"),
        (["--duration", "1ms"], "--duration is 0.001 s"),
        (["--ttft", "2h"], "--ttft is 7200 s"),
        (["--output-tokens", "1"], "--output-tokens is 1"),
        (["--json", "/nowhere/at/all.json"], "--json /nowhere/at/all.json"),
        (["-o", "/proc/nothing"], "/proc/nothing cannot be made"),
        (["-o", os.sep], "is not empty"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_remedy(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(cli.app, ["calibrate", *arguments])
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.splitlines()[-1].startswith("hint: ")
