"""The benchmark's readers of each tool's result, on small samples that real runs of the tools have left."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from bench.side_by_side.measured import Measured, Task, ToolError
from bench.side_by_side.rungs import OUTPUT_TOKENS, RUNGS, Rung
from bench.side_by_side.tools import aiperf, c_client, guidellm, inference_perf, ours, plain_aiohttp, vllm_bench

SAMPLES = Path(__file__).parents[1] / "samples" / "bench"
RUNG = Rung(64, 100)
WALL_MINUS_MONOTONIC_NS = 1_795_972_740_000_000_000


def task(folder: Path) -> Task:
    return Task("http://127.0.0.1:8000", "metronome", Path("tokenizer"), folder, 9000, WALL_MINUS_MONOTONIC_NS)


def check(measured: Measured, requests: int) -> None:
    """What holds of every tool's requests here: true TTFT 50 ms, 99 gaps of 10 ms on average, instants of one day."""
    assert len(measured.start_ns) == len(measured.ttft_ms) == requests
    assert np.all((measured.ttft_ms > 49) & (measured.ttft_ms < 500))
    assert np.all((measured.start_ns > 0) & (measured.start_ns < 86_400 * 10**9))
    assert measured.failed == 0
    if measured.gaps_ms is not None:
        assert {len(gaps) for gaps in measured.gaps_ms} == {OUTPUT_TOKENS if measured.role_gaps else OUTPUT_TOKENS - 1}
        assert [gaps.sum() for gaps in measured.gaps_ms] == pytest.approx([990] * requests, abs=150)
    else:
        assert measured.mean_gap_ms == pytest.approx([10] * requests, abs=1.5)


def test_vllm_bench_is_read_with_the_gap_after_the_role() -> None:
    measured = vllm_bench.read(RUNG, task(SAMPLES / "vllm"))
    check(measured, 3)
    assert measured.role_gaps


def test_guidellm_is_read_with_one_mean_gap_a_request() -> None:
    measured = guidellm.read(RUNG, task(SAMPLES / "guidellm"))
    check(measured, 3)
    assert measured.gaps_ms is None


def test_aiperf_is_read_without_its_warm_up() -> None:
    check(aiperf.read(RUNG, task(SAMPLES / "aiperf")), 2)


def test_inference_perf_is_read() -> None:
    check(inference_perf.read(RUNG, task(SAMPLES / "inference-perf")), 2)


def test_plain_aiohttp_is_read() -> None:
    check(plain_aiohttp.read(RUNG, task(SAMPLES / "aiohttp")), 2)


def test_the_c_clients_log_is_read_without_role_usage_and_end() -> None:
    check(c_client.read(RUNG, task(SAMPLES / "c")), 2)


def test_a_request_that_was_cut_short_is_failed_and_not_measured(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "c", tmp_path, dirs_exist_ok=True)
    words = np.fromfile(tmp_path / "stamps.bin", np.uint64)
    cut = np.concatenate([words, [words[0], np.uint64(2), words[2], words[3]]]).astype(np.uint64)
    cut.tofile(tmp_path / "stamps.bin")
    measured = c_client.read(RUNG, task(tmp_path))
    assert (len(measured.start_ns), measured.failed) == (2, 1)


def test_a_result_without_a_complete_answer_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "profile_export.jsonl").write_text("")
    with pytest.raises(ToolError, match="no complete answer"):
        aiperf.read(RUNG, task(tmp_path))


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_every_tool_is_asked_for_the_rungs_load(rung: Rung, tmp_path: Path) -> None:
    for module in (ours, plain_aiohttp, vllm_bench, guidellm, aiperf, inference_perf):
        asked = " ".join(module.command(rung, task(tmp_path)))
        written = "".join(path.read_text() for path in tmp_path.iterdir())
        assert str(rung.streams) in asked + written
        assert str(OUTPUT_TOKENS) in asked + written
        for path in tmp_path.iterdir():
            path.unlink()


def test_a_cold_rung_has_neither_ramp_nor_warm_up(tmp_path: Path) -> None:
    cold = Rung(256, 100, start="cold")
    assert cold.ramp_s == cold.skip_s == 0
    assert cold.requests == 4 * 256
    assert "--num-warmups" not in vllm_bench.command(cold, task(tmp_path))
    assert "--warmup-request-count" not in aiperf.command(cold, task(tmp_path))
