"""A search on a real server, setting by setting, each followed by the same rate as arrivals; a plan of it beforehand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.busy_machine import sound

# A fleet that is measured.
pytestmark = pytest.mark.alone

LOADGEN = [sys.executable, "-m", "loadgen"]
OPTIONS = [
    *("--sweep", "max_num_seqs=2,4", "--concurrency", "auto", "--search-min", "2", "--search-max", "4", "--confirm"),
    *("--slo", "ttft_p95<5s", "--warmup", "500ms", "--duration", "2s", "--isl", "32", "--osl", "8", "--seed", "3"),
    *("--metrics-port", "off", "--workers", "1", "--drain-timeout", "5s"),
]


def test_users_and_arrivals_take_turns_on_one_fleet(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    ended = subprocess.run([*LOADGEN, "run", *OPTIONS, "-o", str(folder)], capture_output=True, text=True, timeout=200)
    assert ended.returncode in (0, 3), ended.stderr
    summary = json.loads((folder / "summary.json").read_text())
    levels = summary["levels"]
    first = [level for level in levels if level["server"] == {"max_num_seqs": 2}]
    assert [level["server"]["max_num_seqs"] for level in levels] == sorted(
        level["server"]["max_num_seqs"] for level in levels
    )
    for level in levels:
        assert level["step"] is None and level["requests"]["ok"] > 0, level["reasons"]
        opened = level["concurrency"] is None
        assert (level["open_loop"] is not None) is opened
        if not opened and sound(level):
            assert level["peak_concurrency"] <= level["concurrency"], "arrivals of the level before went on"
    if all(level["valid"] for level in first):
        assert [level["concurrency"] for level in first] == [2, 4, None]
        assert first[2]["request_rate"] == pytest.approx(first[1]["served_request_rate"], rel=0.01)
        assert summary["answers"]["search"][0]["end"] == "limit_not_reached"
    assert summary["verdict"]["planned_levels"] == len(levels)


def test_a_dry_run_tells_levels_time_and_servers_and_starts_nothing(tmp_path: Path) -> None:
    told = subprocess.run(
        [*LOADGEN, "run", *OPTIONS, "-o", str(tmp_path / "out"), "--dry-run"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told.splitlines() == [
        "scenario unnamed, seed 3",
        "server: loadgen serve sim --max-num-seqs 2",
        "  level 1: concurrency 2",
        "  then as the search wants: 2 to 4, to 5%, at most 20 levels",
        "  then the capacity that was found, once more as Poisson arrivals",
        "server: loadgen serve sim --max-num-seqs 4",
        "  level 2: concurrency 2",
        "  then as the search wants: 2 to 4, to 5%, at most 20 levels",
        "  then the capacity that was found, once more as Poisson arrivals",
        "at most 105s for 42 levels: warm-up and window, without drains and starts of the server",
    ]
    assert not (tmp_path / "out").exists()


def test_a_dry_run_of_vllm_shows_the_command_of_each_setting_where_vllm_is_not_installed(tmp_path: Path) -> None:
    options = ["--server", "vllm", "--set", "server.model=org/model", "--sweep", "max_num_seqs=64,128", "--seed", "3"]
    options += ["--set", f"server.python={sys.executable}", "--concurrency", "8,16", "--order", "aba"]
    told = subprocess.run([*LOADGEN, "run", *options, "--dry-run"], capture_output=True, text=True, check=True).stdout
    lines = told.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("server:")] == ["64", "128"]
    assert "org/model" in lines[1]
    assert [line.strip() for line in lines[2:5]] == [
        f"level {n}: concurrency {users}" for n, users in ((1, 8), (2, 16), (3, 8))
    ]
