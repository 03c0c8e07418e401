"""The benchmark's reader of our own run folder: figures from the level object, requests from the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.side_by_side.measured import Task, ToolError
from bench.side_by_side.rungs import Rung
from bench.side_by_side.tools import ours
from loadgen.record import LevelPlan, RequestRecord
from loadgen.run_folder import RunFolder
from loadgen.spool import SpoolWriter, encode_records

MS = 1_000_000
LEVEL = {
    "n_ttft": 1,
    "p50_ttft_ms": 50.1,
    "p95_ttft_ms": 50.2,
    "p99_ttft_ms": 50.3,
    "n_itl": 2,
    "p50_itl_ms": 10.1,
    "p95_itl_ms": 10.2,
    "p99_itl_ms": 10.3,
    "reasons": [],
}


def request(index: int, sent_ms: int, *, status: str = "ok") -> RequestRecord:
    sent = sent_ms * MS
    arrivals = np.array([sent + 50 * MS, sent + 60 * MS, sent + 70 * MS])
    return RequestRecord(
        level=0,
        index=index,
        user=0,
        worker=0,
        status=status,
        dispatched_ns=sent,
        finished_ns=int(arrivals[-1]),
        sent_ns=sent,
        first_token_ns=int(arrivals[0]),
        last_token_ns=int(arrivals[-1]),
        arrivals_ns=arrivals,
        coalesced=np.zeros(3, np.bool_),
    )


def run_of(folder: Path, *requests: RequestRecord, **level: Any) -> Task:
    run = RunFolder.create(folder / "run", scenario_yaml="", nonce="n")
    run.note_level(LevelPlan(0, 1, window_start_ns=100 * MS, window_end_ns=200 * MS, drained_ns=300 * MS), {0: 0})
    writer = SpoolWriter(run.spool(0))
    writer.append(encode_records(list(requests)))
    writer.close()
    (run.levels / "0.json").write_text(json.dumps(LEVEL | level))
    return Task("http://127.0.0.1:8000", "metronome", Path(), folder, 9000, 0)


def test_only_requests_sent_in_the_window_count_and_the_level_object_has_the_figures(tmp_path: Path) -> None:
    task = run_of(tmp_path, request(0, 99), request(1, 150), request(2, 201), request(3, 160, status="truncated"))
    measured = ours.read(Rung(64, 100), task)
    assert measured.start_ns.tolist() == [150 * MS]
    assert measured.ttft_ms.tolist() == [50]
    assert measured.reported == {"ttft_ms": [50.1, 50.2, 50.3], "itl_ms": [10.1, 10.2, 10.3]}
    assert measured.window_ns == (100 * MS, 200 * MS)
    assert measured.failed == 1


def test_a_level_that_calls_itself_invalid_says_so(tmp_path: Path) -> None:
    task = run_of(tmp_path, request(1, 150), reasons=[{"rule": "client_late"}, {"rule": "client_cpu"}])
    assert ours.read(Rung(64, 100), task).remark == "client_late, client_cpu"


def test_a_run_without_an_ok_request_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no request of the window ended ok"):
        ours.read(Rung(64, 100), run_of(tmp_path, request(1, 150, status="truncated")))
