"""Conversations through the whole of `loadgen run`, against the simulator, which counts the tokens of every prompt itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from loadgen.record import OK, RequestRecord
from loadgen.spool import read_records
from tests.simulator_process import SimulatorProcess, running_simulator

SCENARIO = """
seed: 7
workload:
  turns: 3
  shared_prefix_tokens: 24
  input_tokens: {distribution: uniform, min: 80, max: 120}
  turn_input_tokens: {distribution: uniform, min: 16, max: 40}
  output_tokens: {distribution: uniform, min: 2, max: 8}
  turn_think_time: 30ms
"""


def run(folder: Path, simulator: SimulatorProcess, *options: str) -> tuple[dict[str, Any], str, list[RequestRecord]]:
    """(summary, what was printed, records); levels with few samples, which are invalid, are looked at too."""
    (folder / "talk.yaml").write_text(SCENARIO)
    ended = subprocess.run(
        [sys.executable, "-m", "loadgen", "run", "talk.yaml", "-o", "out", "--metrics-port", "off"]
        + ["--base-url", simulator.url, *options],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
    )
    assert ended.returncode in (0, 3), ended.stderr
    records = [one for path in sorted((folder / "out/records").glob("*.spool")) for one in read_records(path)]
    return json.loads((folder / "out/summary.json").read_text()), ended.stdout, records


def conversations(records: list[RequestRecord]) -> dict[tuple[int, int], list[RequestRecord]]:
    """By level and session, in order of turns."""
    found = defaultdict(list)
    for record in records:
        assert record.session is not None and record.turn is not None
        found[record.level, record.session].append(record)
    return {key: sorted(turns, key=lambda one: one.turn or 0) for key, turns in found.items()}


def hits(simulator: SimulatorProcess) -> tuple[float, float]:
    """(tokens found in the prefix cache, tokens looked for) so far."""
    text = simulator.ask("GET", "/metrics").body.decode()
    values = [re.search(rf"^vllm:prefix_cache_{name}_total\{{.*\}} (\S+)$", text, re.M) for name in ("hits", "queries")]
    assert values[0] is not None and values[1] is not None
    return float(values[0][1]), float(values[1][1])


def test_users_of_two_workers_hold_conversations_that_the_server_counts_as_planned(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    with running_simulator("--truth", str(truth), "--enable-prefix-caching") as simulator:
        summary, printed, records = run(
            tmp_path,
            simulator,
            *("--concurrency", "4,8", "--workers", "2", "--warmup", "1.5s", "--duration", "2s"),
        )
        found, looked_for = hits(simulator)
    done = [record for record in records if record.status == OK]
    assert len(done) > 100 and {record.status for record in records} <= {OK, "cancelled"}
    assert {record.worker for record in done} == {0, 1}
    told = {entry["client_request_id"]: entry for entry in map(json.loads, truth.read_text().splitlines())}
    nonce = next(name for name in told if "probe" not in name).partition("-")[0]
    for record in done:
        assert told[f"{nonce}-{record.level}-{record.index}"]["prompt_tokens"] == record.input_tokens

    for turns in conversations(records).values():
        assert [one.turn for one in turns] == list(range(1, len(turns) + 1)), "a turn is missing"
        assert len({(one.worker, one.user) for one in turns}) == 1
        first = turns[0]
        if first.status == OK:
            assert first.input_tokens == first.input_tokens_requested and first.prefix_tokens == 24
        for before, now in pairwise(turns):
            assert now.dispatched_ns - before.finished_ns >= 29_000_000, "the user thought"
            assert now.prefix_tokens == (before.input_tokens or 0) + (before.output_tokens or 0)
            if now.status == OK:
                assert now.input_tokens == now.prefix_tokens + (now.turn_input_tokens or 0)

    # A user's first conversation of a level is cut short, to another length for other users.
    firsts: dict[tuple[int, int, int], int] = {}
    for (level, _), turns in sorted(conversations(records).items(), key=lambda one: one[1][0].dispatched_ns):
        firsts.setdefault((level, turns[0].worker, turns[0].user), len(turns))
    assert set(firsts.values()) == {1, 2, 3}

    for level in summary["levels"]:
        turns = level["turns"]
        assert [one["name"] for one in turns["by_turn"]] == ["1", "2", "3", "later"]
        assert sum(one["requests"]["ok"] for one in turns["by_turn"][:3]) == level["requests"]["ok"]
        assert turns["carried_answers"] > 20 and turns["carried_answers_recounted"] == 0
        assert turns["broken_conversations"] == 0 and turns["mean_turns"] == 3
        assert 0.2 < turns["first_turn_share"] < 0.5
        assert level["input_tokens_mismatched"] == 0 and level["think_time_s"] == pytest.approx(0.02)
    # The cache has whole blocks of 16 tokens, and the first prompt with the shared beginning is new to it.
    intended = summary["levels"][-1]["intended_prefix_share"]
    assert 0.4 < intended < 0.8 and 0.7 * intended < found / looked_for < 1.05 * intended
    assert "by turn" in printed and "were in the turn before" in printed
    assert "turns.later.p95_ttft_ms" in (tmp_path / "out/summary.csv").read_text().splitlines()[0]
    assert "<h2>Turns</h2>" in (tmp_path / "out/report.html").read_text()

    again = subprocess.run([sys.executable, "-m", "loadgen", "report", str(tmp_path / "out")], capture_output=True)
    assert again.returncode in (0, 3)
    assert json.loads((tmp_path / "out/summary.json").read_text())["levels"] == summary["levels"]


def test_conversations_that_arrive_by_a_schedule_have_later_turns_when_their_users_have_thought(tmp_path: Path) -> None:
    with running_simulator() as simulator:
        summary, _, records = run(
            tmp_path,
            simulator,
            *("--request-rate", "24", "--workers", "1", "--warmup", "1s", "--duration", "3s"),
            *("--carried-answers", "synthetic", "--endpoint", "completions"),
        )
    (level,) = summary["levels"]
    done = [record for record in records if record.status == OK]
    assert len(done) > 60
    assert [one for one in done if one.input_tokens != one.input_tokens_requested] == []
    for turns in conversations(records).values():
        for before, now in pairwise(turns):
            assert now.scheduled_ns == before.finished_ns + 30_000_000 and now.waited_ns == 0
            assert now.dispatched_ns >= now.scheduled_ns
    lengths = Counter(len(turns) for turns in conversations(done).values())
    assert lengths[3] > 0.8 * sum(lengths.values())
    # 24 requests/s of three turns each: eight conversations a second.
    assert level["request_rate"] == 24 and level["offered_request_rate"] == pytest.approx(24, rel=0.35)
    assert level["sent_request_rate"] == pytest.approx(level["offered_request_rate"], rel=0.1)
    assert level["open_loop"]["saturated"] is False
    assert level["turns"]["carried_answers"] == 0 and level["turns"]["by_turn"][0]["n_ttft_from_schedule"] > 10
