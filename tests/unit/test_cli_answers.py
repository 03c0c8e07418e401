"""The commands that answer from runs: exit codes, strict JSON, and errors that say what to do."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from loadgen.cli import app
from tests.virtual_run import VirtualRun


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def strict_json(text: str) -> dict[str, Any]:
    """As `json.loads`, but NaN and Infinity are no JSON."""

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no JSON")

    told = json.loads(text, parse_constant=refuse)
    assert isinstance(told, dict)
    return told


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    made = {
        "good": VirtualRun(concurrency=(4, 8), window_s=20),
        "slow": VirtualRun(concurrency=(4, 8), window_s=20, slower=1.4, seed=2),
        "late": VirtualRun(concurrency=(4, 8), window_s=20, health={"loop_lag_max_ms": 900.0}),
        "failed": VirtualRun(concurrency=(4,), window_s=10, failing=True),
        "no-limits": VirtualRun(concurrency=(4,), window_s=10, slo={}),
        "other-model": VirtualRun(concurrency=(4, 8), window_s=20, target={"model": "another"}),
    }
    return {name: str(run.write(folder / name)) for name, run in made.items()}


@pytest.mark.parametrize(
    ("run", "more", "code", "told"),
    [
        ("good", [], 0, "replicas"),
        ("good", ["--slo", "ttft_p95<1ms"], 99, "There is no plan, whatever the number of replicas"),
        ("late", [], 3, "no level of the run is valid (worker_stalled)"),
        ("failed", [], 1, "no request of the run succeeded"),
    ],
)
def test_plan_exits_by_what_it_could_rest_on(
    runs: dict[str, str], run: str, more: list[str], code: int, told: str
) -> None:
    ended = invoke("plan", runs[run], "--target-rps", "40", *more)
    assert (ended.exit_code, told in ended.stdout) == (code, True), ended.output
    as_json = invoke("plan", runs[run], "--target-rps", "40", "--json", "--gpu-cost-per-hour", "2.5", *more)
    plan = strict_json(as_json.stdout)
    assert as_json.exit_code == plan["exit_code"] == code
    assert (plan["replicas"] is None) == (code != 0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--target-rps", "0"], "--target-rps is 0"),
        (["--target-rps", "nan"], "--target-rps is nan"),
        (["--target-rps", "4", "--peak-factor", "0.5"], "--peak-factor is 0.5"),
        (["--target-rps", "4", "--headroom", "100%"], "leaves nothing"),
        (["--target-rps", "4", "--headroom", "20"], "could mean"),
        (["--target-rps", "4", "--gpu-cost-per-hour", "-1"], "--gpu-cost-per-hour is -1"),
        (["--target-rps", "4", "--gpus-per-replica", "0"], "--gpus-per-replica is 0"),
        (["--target-rps", "4", "--slo", "ttft<1ms"], "--slo is"),
        (["--target-rps", "4", "--slo", "ttft_p95=1ms"], "--slo is"),
    ],
)
def test_plan_refuses_what_makes_no_sense_before_it_reads_the_run(
    runs: dict[str, str], words: list[str], told: str
) -> None:
    ended = invoke("plan", runs["good"], *words)
    assert ended.exit_code == 2 and told in ended.stderr, ended.stderr


def test_plan_of_a_run_without_limits_asks_for_them(runs: dict[str, str]) -> None:
    ended = invoke("plan", runs["no-limits"], "--target-rps", "4")
    assert ended.exit_code == 2 and "hint: give them, such as --slo" in ended.stderr


def test_compare_exits_99_on_a_regression_and_3_where_a_level_is_invalid(runs: dict[str, str], tmp_path: Path) -> None:
    for old, new, code in (
        ("good", "good", 0),
        ("good", "slow", 99),
        ("good", "late", 3),
        ("late", "good", 3),
        ("good", "other-model", 2),
    ):
        files = [tmp_path / f"{old}-{new}.{ending}" for ending in ("md", "xml", "json")]
        options = ["--markdown", str(files[0]), "--junit", str(files[1]), "--json", str(files[2])]
        ended = invoke("compare", runs[old], runs[new], *options)
        assert ended.exit_code == code, ended.output
        assert files[0].read_text().startswith("### Load test: ")
        suite = ET.fromstring(files[1].read_bytes())
        assert (int(suite.get("failures") or 0) > 0) == (code == 99)
        assert (int(suite.get("errors") or 0) > 0) == (code in (2, 3))
        assert strict_json(files[2].read_text())["verdict"]["exit_code"] == code


def test_compare_across_what_differs_compares(runs: dict[str, str]) -> None:
    refused = invoke("compare", runs["good"], runs["other-model"])
    assert "Not comparable because the model differs: sim, then another." in refused.stdout
    assert "--across model" in refused.stdout
    assert invoke("compare", runs["good"], runs["other-model"], "--across", "model").exit_code == 0
    assert invoke("compare", runs["good"], runs["good"], "--across", "colour").exit_code == 2


def test_committed_baseline_gates_as_the_run_does(runs: dict[str, str], tmp_path: Path) -> None:
    baseline = str(tmp_path / "baseline.json")
    assert invoke("export", runs["good"], "--format", "baseline", "-o", baseline).exit_code == 0
    told = strict_json(invoke("compare", baseline, runs["slow"], "--json", "-").stdout)
    same = strict_json(invoke("compare", runs["good"], runs["slow"], "--json", "-").stdout)
    assert told["verdict"] == same["verdict"]
    wide = invoke("compare", baseline, runs["slow"], "--tolerance", "output_throughput=60%,p50_tpot_ms=60%")
    assert wide.exit_code == 99, "the other figures still are worse"


@pytest.mark.parametrize("command", [["compare", "{missing}", "{good}"], ["plan", "{missing}", "--target-rps", "4"]])
def test_folder_that_is_no_run_is_refused(command: list[str], runs: dict[str, str], tmp_path: Path) -> None:
    ended = invoke(*(word.format(missing=tmp_path / "missing", good=runs["good"]) for word in command))
    assert ended.exit_code == 2 and "does not exist" in ended.stderr


def test_check_claim_answers_in_words_and_in_json() -> None:
    words = ["check-claim", "--tok-s", "278", "--params", "70B", "--dtype", "bf16", "--bandwidth", "3.35TB/s"]
    ended = invoke(*words)
    assert ended.exit_code == 0
    assert ended.stdout.startswith("278 tokens/s: NEEDS BATCHING, as the sum of many requests.")
    assert "70 B parameters x 2 bytes = 140 GB" in ended.stdout
    told = strict_json(invoke(*words, "--json").stdout)
    assert told["least_batch"] == 12 and len(told["missing"]) == 12
    assert all(math.isfinite(value) for value in told.values() if isinstance(value, float))


def test_claim_with_every_condition_lacks_none() -> None:
    ended = invoke(
        *("check-claim", "--tok-s", "100", "--model", "meta-llama/Llama-3.1-8B", "--config", "llama-3.1-8b"),
        *("--dtype", "bf16", "--quantization", "none", "--gpu", "H100", "--gpus", "1", "--engine", "vLLM 0.11.0"),
        *("--concurrency", "1", "--input-len", "1024", "--output-len", "256", "--max-model-len", "8192"),
        *("--counts", "output", "--spec-decode", "0", "--prefix-caching", "off", "--cuda-graphs", "on"),
    )
    assert ended.exit_code == 0, ended.output
    assert "PLAUSIBLE" in ended.stdout and "Every condition" in ended.stdout


def test_claim_that_counts_prompts_is_cut_down_to_the_output() -> None:
    words = [
        "check-claim",
        "--tok-s",
        "1000",
        "--params",
        "8B",
        "--dtype",
        "bf16",
        "--gpu",
        "H100",
        "--counts",
        "total",
    ]
    assert invoke(*words).exit_code == 2
    told = strict_json(invoke(*words, "--input-len", "900", "--output-len", "100", "--json").stdout)
    assert told["tok_s"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tok-s", "0", "--params", "7B", "--gpu", "H100"], "--tok-s is 0"),
        (["--tok-s", "10", "--params", "7B"], "--gpu H100, or --bandwidth"),
        (["--tok-s", "10", "--params", "7B", "--gpu", "H100", "--counts", "all"], "--counts is 'all'"),
        (["--tok-s", "10", "--params", "7B", "--gpu", "H100", "--cuda-graphs", "yes"], "--cuda-graphs is 'yes'"),
    ],
)
def test_claim_that_cannot_be_read_is_refused(words: list[str], told: str) -> None:
    ended = invoke("check-claim", *words)
    assert ended.exit_code == 2 and told in ended.stderr


def test_kv_cache_says_bytes_and_what_fits() -> None:
    shape = ["kv-cache", "--layers", "32", "--kv-heads", "32", "--head-size", "128", "--length", "2048"]
    assert "1,073,741,824 bytes" in invoke(*shape, "--dtype", "fp16").stdout
    told = strict_json(invoke(*shape, "--batch", "4", "--params", "7B", "--gpu", "A100-80GB", "--json").stdout)
    assert told["bytes"] == 4 * 2**30
    assert told["sequences_that_fit"] == int((0.92 * 80 * 2**30 - 14e9) // 524_288 // 2048)
    assert invoke("kv-cache", "--length", "2048").exit_code == 2
    alone = strict_json(invoke(*shape, "--memory", "24GiB", "--gpu-memory-utilization", "1", "--json").stdout)
    assert alone["sequences_that_fit"] == 24, "nothing else is in memory"
