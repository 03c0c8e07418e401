"""What the run folder's files say, and that they are whole."""

import csv
import io
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.report.files import write_whole
from loadgen.report.summary import csv_text, write_level, write_summary
from loadgen.stats.answers import answers, verdict
from loadgen.stats.level import level_object
from tests.level_records import closed_loop, health, plan, request

SLO = {"ttft_p95": 60.0, "error_rate": 0.01}


def level(number: int, users: int, *, first_ms: float = 50, failed: bool = False, **fields: Any) -> dict[str, Any]:
    records = closed_loop(users, 30, first_ms=first_ms)
    if failed:
        records = [request(i, status="http_503", finished_ms=i + 1, reason="busy") for i in range(900)]
    return level_object(plan(level=number, concurrency=users, **fields), records, [health(level=number)], slo=SLO)


def samples(path: Path) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("quantile") or sample.labels.get("status") or ""): sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }


def test_summary_is_strict_json_of_levels_answers_and_verdict(tmp_path: Path) -> None:
    levels = [level(0, 1), level(1, 2, first_ms=90)]
    write_summary(tmp_path, levels, answers(levels), verdict(levels), scenario="chat", model="m")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    summary = json.loads((tmp_path / "summary.json").read_text(), parse_constant=refuse)
    assert summary["levels"] == levels
    assert summary["verdict"] == {
        "valid_levels": 2,
        "invalid_levels": 0,
        "rests_on_invalid": None,
        "exit_code": 0,
    }
    assert summary["answers"]["highest_within_slo"]["concurrency"] == 1
    assert summary["schema_version"] == 1


def test_level_file_is_the_level_object(tmp_path: Path) -> None:
    one = level(3, 1)
    assert write_level(tmp_path, one) == tmp_path / "levels" / "3.json"
    assert json.loads((tmp_path / "levels" / "3.json").read_text()) == one


def test_csv_has_one_row_a_level_and_empty_cells_for_what_was_not_measured() -> None:
    levels = [level(0, 1, server={"max_num_seqs": 8}), level(1, 1, failed=True)]
    text = csv_text(levels)
    assert text.count("\r\n") == 3
    first, second = csv.DictReader(io.StringIO(text))
    assert float(first["p95_ttft_ms"]) == levels[0]["p95_ttft_ms"]
    assert (first["server.max_num_seqs"], second["server.max_num_seqs"]) == ("8", "")
    assert (first["valid"], second["valid"]) == ("true", "false")
    assert (second["p95_ttft_ms"], second["requests.http_503"], second["requests.ok"]) == ("", "900", "0")
    assert second["reasons"] == "no_request_succeeded"
    assert float(first["p50_ttft_ms.low"]) <= float(first["p50_ttft_ms"]) <= float(first["p50_ttft_ms.high"])
    assert (first["phases.first_wave.ok"], second["phases.first_wave.ok"]) == ("1", "0")
    assert (first["slo.ttft_p95.met"], second["slo.ttft_p95.met"]) == ("true", "")
    assert not any(cell.startswith(("{", "[")) for row in (first, second) for cell in row.values())


def test_csv_without_levels_is_not_an_error() -> None:
    assert csv_text([]) == "\r\n"


def test_textfile_has_exact_quantiles_and_no_sample_for_what_was_not_measured(tmp_path: Path) -> None:
    # T21: the client library's default buckets would give 10.
    slow = [request(100 * i, [100 * i + 14_000]) for i in range(100)]
    levels = [level_object(plan(0, 10_000, server={"max_num_seqs": 8}), slow, [])]
    write_summary(tmp_path, levels, answers(levels), verdict(levels), scenario="slow", model=None)
    found = samples(tmp_path / "metrics.prom")
    assert found["loadgen_level_ttft_seconds", "0.5"] == 14.0
    assert found["loadgen_level_ttft_seconds", "0.95"] == 14.0
    assert found["loadgen_level_ttft_seconds_sum", ""] == pytest.approx(1400.0)
    assert found["loadgen_level_ttft_seconds_count", ""] == 100
    assert not [name for name, _ in found if name.startswith("loadgen_level_tpot")]
    text = (tmp_path / "metrics.prom").read_text()
    assert '{concurrency="1",level="0",max_num_seqs="8",model="",quantile="0.95",scenario="slow"} 14.0' in text


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_textfile(tmp_path: Path) -> None:
    levels = [level(0, 1), level(1, 2, failed=True)]
    write_summary(tmp_path, levels, answers(levels), verdict(levels), scenario='a "quoted" name', model="m")
    text = (tmp_path / "metrics.prom").read_bytes()
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_file_that_cannot_be_written_leaves_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_whole(path, b"old")
    with pytest.raises(TypeError):
        write_whole(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_every_request_failed_is_exit_code_1_and_no_valid_level_is_3() -> None:
    assert verdict([level(0, 1, failed=True)])["exit_code"] == 1
    assert verdict([])["exit_code"] == 1
    assert verdict([level(0, 1, interrupted=True)])["exit_code"] == 3
    assert verdict([level(0, 1, failed=True), level(1, 1)])["exit_code"] == 0
