"""docs/benchmarks.md is made from bench/results.json; medians, ratios, and rows without a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.side_by_side import page
from bench.side_by_side.results import Results, rounded
from bench.side_by_side.rungs import ALL, RUNGS

ROOT = Path(__file__).parents[2]
HOST = {"cpu": "a cpu", "cores": 2, "memory_gb": 8, "kernel": "6", "python": "3.11"}


def figures(**more: Any) -> dict[str, Any]:
    return {
        "failed": 0,
        "load_share": 0.99,
        "ttft_ms": [51.0, 52.0, 53.0],
        "ttft_true_ms": [50.0, 50.0, 50.0],
        "itl_ms": [10.0, 10.0, 10.0],
        "itl_true_ms": [10.0, 10.0, 10.0],
        "itl_kind": "between tokens",
        "cpu_us_per_token": 10.0,
        "cpu_us_per_token_whole": 12.0,
        "peak_pss_mb": 100.0,
        "first_request_s": 1.5,
        "remark": "",
        "server_late_p99_ms": 0.1,
    } | more


def run(tool: str, rung: str = "64x100", session: int = 0, **more: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"tool": tool, "version": "1.2.3", "rung": rung, "session": session}
    return entry | (more if "failure" in more else {"figures": figures(**more)})


def results(path: Path, *runs: dict[str, Any]) -> Results:
    sessions = [{"date": "2026-01-01", "host": HOST}, {"date": "2026-02-02", "host": HOST}]
    return Results(path, sessions, list(runs))


def rows(text: str, name: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith(f"| {name}")
    ]


def test_the_page_in_docs_is_the_one_made_from_the_results() -> None:
    made = page.write(Results.read(ROOT / "bench" / "results.json"))
    assert (ROOT / "docs" / "benchmarks.md").read_text() == made, (
        "docs/benchmarks.md is out of date: python -m bench.side_by_side --page-only"
    )


def test_figures_are_medians_and_say_how_many_runs_they_rest_on(tmp_path: Path) -> None:
    three = [run("vllm", cpu_us_per_token=cpu) for cpu in (20.0, 40.0, 1000.0)]
    text = page.write(results(tmp_path, run("ours"), *three))
    accuracy, cost, *_ = rows(text, "vLLM bench")
    assert accuracy[1:4] == ["51.00 / 52.00 / 53.00", "50.00 / 50.00 / 50.00", "+2.00 / +4.00 / +6.00"]
    assert accuracy[-1] == cost[-1] == "3"
    assert cost[1:3] == ["40.0", "0.25"]


def test_a_tool_that_gave_no_result_is_a_row_with_the_reason(tmp_path: Path) -> None:
    accuracy, cost, *_ = rows(
        page.write(results(tmp_path, run("aiperf", failure="exit code 1; it said: |no|"))), "aiperf"
    )[:2]
    assert accuracy[1].startswith("no result: exit code 1")
    assert cost[-1] == "0 of 1"


def test_a_tool_that_was_not_run_says_so(tmp_path: Path) -> None:
    assert rows(page.write(results(tmp_path)), "guidellm")[0][1] == "not run yet"


def test_a_failed_run_beside_good_ones_is_told_and_not_averaged(tmp_path: Path) -> None:
    text = page.write(results(tmp_path, run("c"), run("c", failure="it had not ended after 90 s")))
    assert rows(text, "C, epoll")[0][-1] == "1 of 2"
    assert "C, epoll gave no result in 1 of 2 runs: it had not ended after 90 s." in text


def test_a_level_that_we_call_invalid_ourselves_is_told(tmp_path: Path) -> None:
    text = page.write(results(tmp_path, run("ours", remark="client_late")))
    assert "llm-loadgen calls 1 of its 1 runs invalid: client_late." in text


def test_a_server_that_was_late_itself_is_told(tmp_path: Path) -> None:
    text = page.write(results(tmp_path, run("c"), run("c", server_late_p99_ms=12.3)))
    assert "C, epoll: in 1 of 2 runs the server itself was late, by 12 ms at P99" in text


def test_what_was_not_measured_is_a_dash(tmp_path: Path) -> None:
    cost = rows(page.write(results(tmp_path, run("c", cpu_us_per_token=None))), "C, epoll")[1]
    assert cost[1:3] == ["–", "–"]


def test_only_the_newest_session_of_a_rung_counts_so_that_ratios_are_of_one_session(tmp_path: Path) -> None:
    before = [run("ours", cpu_us_per_token=1.0), run("c", cpu_us_per_token=99.0)]
    text = page.write(results(tmp_path, *before, run("c", session=1, cpu_us_per_token=5.0)))
    assert rows(text, "llm-loadgen")[0][1] == "not run yet"
    assert rows(text, "C, epoll")[1][1] == "5.0"
    assert "2026-02-02" in text
    assert "2026-01-01" not in text


def test_results_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    before = results(tmp_path / "results.json", run("c"), run("ours", failure="no"))
    before.write()
    after = Results.read(tmp_path / "results.json")
    assert (after.sessions, after.runs) == (before.sessions, before.runs)
    assert after.count("c", "64x100", 0) == 1


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"schema_version": 99}')
    with pytest.raises(ValueError, match="schema_version is 99"):
        Results.read(tmp_path / "results.json")


def test_a_session_goes_on_unless_a_new_one_is_asked_for(tmp_path: Path) -> None:
    empty = Results(tmp_path / "results.json", [], [])
    assert [empty.begin_session(new=new) for new in (False, False, True)] == [0, 0, 1]


def test_every_rung_has_its_tools_and_all_names_differ() -> None:
    assert len({rung.name for rung in RUNGS}) == len(RUNGS)
    assert all(set(rung.tools) <= set(ALL) for rung in RUNGS)


def test_everything_takes_well_under_an_hour() -> None:
    assert page.minutes() < 50


def test_numbers_are_rounded_inside_lists_and_objects() -> None:
    assert rounded({"a": [1.23456, None, 3], "b": "x"}, 2) == {"a": [1.23, None, 3], "b": "x"}
