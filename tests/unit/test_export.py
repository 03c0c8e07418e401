"""A run as vLLM's result files and as a CSV of its requests: the same figures, under other names."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadgen.cli import app
from loadgen.comparison.snapshot import read_baseline
from loadgen.export.vllm_result import vllm_result
from loadgen.measured_run import MeasuredRun, read_run
from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from tests.virtual_run import VirtualRun

SAMPLE = Path(__file__).parents[1] / "samples/bench/vllm/vllm.json"
"""A result of `vllm bench serve --save-result --save-detailed`."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> MeasuredRun:
    made = VirtualRun(concurrency=(2, 4), max_num_seqs=(2, 4), window_s=10, spread=0.3)
    return read_run(made.write(tmp_path_factory.mktemp("export") / "run"))


def export(*words: str) -> str:
    ended = CliRunner().invoke(app, ["export", *words])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def test_vllm_results_have_vllms_names_and_lie_where_its_sweep_puts_them(run: MeasuredRun, tmp_path: Path) -> None:
    export(str(run.path), "--format", "vllm", "-o", str(tmp_path))
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json"))
    assert files == [
        f"SERVE--max_num_seqs={seqs}-BENCH--max_concurrency={users}/run=0.json" for seqs in (2, 4) for users in (2, 4)
    ]
    told = json.loads((tmp_path / files[-1]).read_bytes())
    wanted = set(json.loads(SAMPLE.read_bytes())) - {"queue_times", "rtfx", "std_itl_ms"}
    assert wanted - set(told) == set(), "every name of vLLM's but those of things that are not measured here"


def test_vllm_results_say_what_the_level_says(run: MeasuredRun, tmp_path: Path) -> None:
    export(str(run.path), "--format", "vllm", "-o", str(tmp_path))
    told = json.loads((tmp_path / "SERVE--max_num_seqs=4-BENCH--max_concurrency=4/run=0.json").read_bytes())
    level = run.levels[3]
    assert level["server"]["max_num_seqs"] == 4 and level["concurrency"] == 4
    for name in ("request_throughput", "output_throughput", "mean_ttft_ms", "p95_ttft_ms", "p99_itl_ms", "p95_e2el_ms"):
        assert told[name] == pytest.approx(level[name]), name
    assert told["median_tpot_ms"] == level["p50_tpot_ms"]
    assert told["completed"] == level["requests"]["ok"] == len(told["ttfts"])
    assert told["total_output_tokens"] == sum(told["output_lens"])
    assert sum(told["ttfts"]) / len(told["ttfts"]) * 1e3 == pytest.approx(told["mean_ttft_ms"])
    for itls, ttft, latency, tokens in zip(
        told["itls"], told["ttfts"], told["latencies"], told["output_lens"], strict=True
    ):
        assert len(itls) == tokens - 1
        assert ttft + sum(itls) == pytest.approx(latency)
    assert told["start_times"] == sorted(told["start_times"])
    assert (told["model_id"], told["backend"], told["loadgen_valid"]) == ("sim", "openai-chat", True)


def test_load_that_a_sweep_comes_back_to_has_a_file_for_each_time(tmp_path: Path) -> None:
    run = VirtualRun(concurrency=(2, 4, 2), window_s=5, warmup_s=1, drain_s=2).write(tmp_path / "run")
    export(str(run), "--format", "vllm", "-o", str(tmp_path / "out"))
    files = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.json"))
    assert files == [
        "BENCH--max_concurrency=2/run=0.json",
        "BENCH--max_concurrency=2/run=1.json",
        "BENCH--max_concurrency=4/run=0.json",
    ]


def test_total_of_tokens_that_nobody_counted_is_absent_and_not_zero(run: MeasuredRun) -> None:
    (first, *_) = RunReader(RunFolder.open(run.path)).all()
    uncounted = dataclasses.replace(
        first, records=[dataclasses.replace(one, output_tokens=None) for one in first.records]
    )
    told = vllm_result(run, run.levels[0], uncounted)
    assert told["total_output_tokens"] is None
    assert told["total_input_tokens"] == sum(told["input_lens"]) > 0


def test_csv_has_a_row_for_every_request_and_empty_cells_for_what_was_not_measured(run: MeasuredRun) -> None:
    rows = list(csv.DictReader(export(str(run.path), "--format", "csv", "-o", "-").splitlines()))
    assert len({(row["level"], row["index"]) for row in rows}) == len(rows)
    for level in run.levels:
        mine = [row for row in rows if row["level"] == str(level["level"]) and row["in_window"] == "true"]
        assert sum(row["status"] == "ok" for row in mine) == level["requests"]["ok"]
        ttfts = sorted(float(row["ttft_ms"]) for row in mine if row["ttft_ms"])
        assert ttfts[-1] == pytest.approx(level["max_ttft_ms"])
        assert all(0 <= float(row["sent_s"]) < level["window_s"] for row in mine)
    assert {row["ttft_from_schedule_ms"] for row in rows} == {""}
    assert {row["scheduled_s"] for row in rows} == {""}


def test_failed_requests_have_a_row_with_their_reason_and_no_latency(tmp_path: Path) -> None:
    failing = VirtualRun(concurrency=(2,), window_s=5, failing=True).write(tmp_path / "run")
    rows = list(csv.DictReader(export(str(failing), "--format", "csv", "-o", "-").splitlines()))
    assert rows and {row["status"] for row in rows} == {"http_503"}
    assert {(row["reason"], row["ttft_ms"], row["output_tokens"]) for row in rows} == {("busy", "", "")}
    export(str(failing), "--format", "vllm", "-o", str(tmp_path / "vllm"))
    told = json.loads((tmp_path / "vllm/BENCH--max_concurrency=2/run=0.json").read_bytes())
    assert told["completed"] == 0 and told["failed"] > 0
    assert set(told["errors"]) == {"http_503: busy"}
    assert told["mean_ttft_ms"] is None


def test_exports_go_into_the_run_folder_unless_told_otherwise(tmp_path: Path) -> None:
    run = VirtualRun(concurrency=(2,), window_s=20).write(tmp_path / "run")
    assert export(str(run), "--format", "csv") == f"written: {run / 'requests.csv'}\n"
    assert export(str(run), "--format", "baseline") == f"written: {run / 'baseline.json'}\n"
    assert len(read_baseline(run / "baseline.json").levels) == 1
    assert (run / "requests.csv").is_file()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--format", "parquet"], 2, "it takes vllm, csv, baseline"),
        (["--format", "vllm", "-o", "-"], 2, "writes a folder"),
        (["--format", "csv", "-o", "/no/such/folder/x.csv"], 1, "cannot be written"),
    ],
)
def test_what_cannot_be_exported_is_said(run: MeasuredRun, words: list[str], code: int, told: str) -> None:
    ended = CliRunner().invoke(app, ["export", str(run.path), *words])
    assert (ended.exit_code, told in ended.stderr) == (code, True), ended.stderr
    assert ended.stderr.startswith("error: ")


def test_run_without_a_valid_level_is_no_baseline_and_exits_3(tmp_path: Path) -> None:
    late = VirtualRun(concurrency=(2,), window_s=10, health={"loop_lag_max_ms": 900.0}).write(tmp_path / "run")
    ended = CliRunner().invoke(app, ["export", str(late), "--format", "baseline"])
    assert ended.exit_code == 3 and "No level" in ended.stderr
    assert not (late / "baseline.json").exists()
