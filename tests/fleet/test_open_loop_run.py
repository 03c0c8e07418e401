"""Open loops through the whole of `loadgen run`, against the simulator's own log and a server that plays scripts."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.arrivals.schedule import Schedule
from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from loadgen.spool import read_records
from server.simulator.tokenizer import folder as tokenizer_folder
from tests.busy_machine import OF_A_BUSY_MACHINE
from tests.command_here import loadgen_here
from tests.scripted_server import Answer, ScriptedServer, Write
from tests.simulator_process import running_simulator
from tests.sse_events import DONE, FIN, ROLE, C, U

INPUT_TOKENS = 40
QUICK = ["--metrics-port", "off", "--input-tokens", str(INPUT_TOKENS)]
FAST_SERVER = ["--prefill-time-per-token-ms", "0.01"]


def answer(tokens: int, first_ms: float, gap_ms: float) -> Answer:
    """`NORMAL` of the cases, with the prompt tokens that the run asks for."""
    script: list[Write] = [(10, ROLE)]
    script += [(first_ms + k * gap_ms, C("x")) for k in range(tokens)]
    end = FIN("length") + U(INPUT_TOKENS, tokens) + DONE
    return Answer([*script, (first_ms + (tokens - 1) * gap_ms, end)])


def run(url: str, out: Path, *options: str) -> list[dict[str, Any]]:
    """The level objects of a run, valid or not."""
    ended = subprocess.run(
        [sys.executable, "-m", "loadgen", "run", "--base-url", url, "-o", str(out), *QUICK, *options],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode in (0, 3), ended.stderr
    return list(json.loads((out / "summary.json").read_text())["levels"])


def assert_sound(level: dict[str, Any]) -> None:
    """No rule condemns the level but for what a busy machine does."""
    assert {reason["rule"] for reason in level["reasons"]} <= OF_A_BUSY_MACHINE, level["reasons"]


def records_of(out: Path) -> list[Any]:
    return [r for path in (out / "records").glob("*.spool") for r in read_records(path)]


@pytest.mark.alone  # its figures are instants
def test_t17_a_cap_of_one_queues_and_every_figure_says_what_it_cost(tmp_path: Path) -> None:
    with ScriptedServer(lambda k, _: answer(9, 100, 50)) as server:
        (level,) = run(
            *[server.url, tmp_path / "out", "--tokenizer", str(tokenizer_folder()), "--workers", "1"],
            *["--output-tokens", "9", "--no-ignore-eos", "--arrival-pattern", "constant", "--max-in-flight", "1"],
            *["--stages", "800ms:10,10s:0", "--duration", "800ms"],
        )
    assert server.peak_in_flight == 1
    assert level["requests"] == {"ok": 8}
    seen = level["open_loop"]
    assert seen["mean_dispatch_delay_ms"] == pytest.approx(1400, abs=60)
    assert seen["max_dispatch_delay_ms"] == pytest.approx(2800, abs=120)
    assert seen["mean_cap_wait_ms"] == pytest.approx(seen["mean_dispatch_delay_ms"], abs=10)
    assert level["p50_e2el_ms"] == pytest.approx(500, abs=15)
    assert level["mean_e2el_from_schedule_ms"] == pytest.approx(1900, abs=60)
    assert level["max_e2el_from_schedule_ms"] == pytest.approx(3300, abs=120)
    assert level["p50_e2el_from_schedule_ms"] == pytest.approx(1700, abs=60)
    # The wait was asked for: it does not condemn the client, whose own delay stands apart.
    assert level["client"]["send_lag_max_ms"] < 50
    assert level["offered_request_rate"] == pytest.approx(10)
    assert level["sent_request_rate"] == pytest.approx(2, abs=0.6)
    assert "rate_not_reached" in {reason["rule"] for reason in level["reasons"]}


@pytest.fixture(scope="module")
def poisson_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """The same Poisson load from one worker and from three: the level, the run's records, the server's own log.

    Its tests are of instants, so they run alone.
    """
    runs = {}
    for workers in (1, 3):
        folder = tmp_path_factory.mktemp(f"w{workers}")
        with running_simulator("--truth", str(folder / "truth.jsonl"), *FAST_SERVER) as simulator:
            levels = run(
                *[simulator.url, folder / "out", "--request-rate", "40", "--workers", str(workers), "--seed", "11"],
                *["--output-tokens", "4", "--warmup", "1s", "--duration", "6s"],
            )
        truth = [json.loads(line) for line in (folder / "truth.jsonl").read_text().splitlines()]
        (entry,) = RunFolder(folder / "out").plans()
        runs[workers] = {
            "level": levels[0],
            "plan": entry.plan,
            "records": records_of(folder / "out"),
            "truth": {
                t["client_request_id"]: t["received_ns"] for t in truth if t["client_request_id"] != "loadgen-probe"
            },
        }
    return runs


@pytest.mark.alone
@pytest.mark.parametrize("workers", [1, 3])
def test_the_server_sees_the_very_schedule_that_the_seed_makes(
    poisson_runs: dict[int, dict[str, Any]], workers: int
) -> None:
    of = poisson_runs[workers]
    plan, received_ns = of["plan"], np.sort(np.array(list(of["truth"].values())))
    schedule = Schedule.from_dict(plan.arrivals)
    offsets = schedule.arrivals().offsets()
    expected_ns = np.array([plan.arrivals_start_ns + round(next(offsets) * 1e9) for _ in received_ns])
    late_ms = (received_ns - expected_ns) / 1e6
    assert len(received_ns) > 240
    # Never early; late by what the loop's timers and the network take.
    assert late_ms.min() >= 0 and np.median(late_ms) < 20, np.percentile(late_ms, [50, 95, 100])
    level = of["level"]
    assert_sound(level)
    inside = (received_ns >= plan.window_start_ns) & (received_ns < plan.window_end_ns)
    assert level["offered_request_rate"] * 6 == schedule.count_between(
        (plan.window_start_ns - plan.arrivals_start_ns) / 1e9, (plan.window_end_ns - plan.arrivals_start_ns) / 1e9
    )
    assert level["sent_request_rate"] == pytest.approx(inside.sum() / 6, rel=0.02)
    assert level["sent_request_rate"] == pytest.approx(level["offered_request_rate"], rel=0.02)


@pytest.mark.alone
def test_one_and_three_workers_send_the_same_arrivals(poisson_runs: dict[int, dict[str, Any]]) -> None:
    planned = {}
    for workers, of in poisson_runs.items():
        start_ns = of["plan"].arrivals_start_ns
        planned[workers] = {record.index: record.scheduled_ns - start_ns for record in of["records"]}
        assert {record.worker for record in of["records"]} == set(range(workers))
    both = planned[1].keys() & planned[3].keys()
    assert len(both) > 240
    assert {k: planned[1][k] for k in both} == {k: planned[3][k] for k in both}


@pytest.mark.alone
@pytest.mark.parametrize("workers", [1, 3])
def test_gaps_at_the_server_are_those_of_a_poisson_process(
    poisson_runs: dict[int, dict[str, Any]], workers: int
) -> None:
    gaps = np.diff(np.sort(np.array(list(poisson_runs[workers]["truth"].values())))) / 1e9
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.15)
    n = gaps.size
    expected = 1 - np.exp(-np.sort(gaps) / gaps.mean())
    distance = max(np.max(np.arange(1, n + 1) / n - expected), np.max(expected - np.arange(n) / n))
    assert distance < 1.63 / math.sqrt(n) + 0.02  # the 1 % point, and what the loop's timers of a millisecond do


@pytest.mark.alone
def test_no_two_workers_are_in_step_at_the_server(poisson_runs: dict[int, dict[str, Any]]) -> None:
    of = poisson_runs[3]
    sent = {w: np.sort([r.sent_ns for r in of["records"] if r.worker == w and r.sent_ns is not None]) for w in range(3)}
    for one, other in ((0, 1), (0, 2), (1, 2)):
        apart_ms = np.abs(sent[one][:, None] - sent[other][None, :]).min(axis=1) / 1e6
        # By chance some are within two milliseconds of another's; in step nearly all would be.
        assert np.mean(apart_ms < 2) < 0.3


def test_a_sweep_of_rates_gives_every_file_and_starts_each_level_afresh(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with running_simulator(*FAST_SERVER) as simulator:
        levels = run(
            *[simulator.url, out, "--request-rate", "10,20", "--burstiness", "2", "--workers", "2"],
            *["--output-tokens", "4", "--warmup", "500ms", "--duration", "3s", "--slo", "ttft_p95<500ms"],
        )
    assert [level["request_rate"] for level in levels] == [10, 20]
    assert [level["concurrency"] for level in levels] == [None, None]
    for level in levels:
        assert_sound(level)
        assert level["open_loop"]["pattern"] == "gamma" and level["open_loop"]["burstiness"] == 2
        assert level["sent_request_rate"] == pytest.approx(level["offered_request_rate"], rel=0.05)
        assert level["p95_ttft_from_schedule_ms"] >= level["p95_ttft_ms"] > 0
        assert level["slo"]["ttft_p95"]["value"] == level["p95_ttft_from_schedule_ms"]
    first, second = RunReader(RunFolder(out)).all()
    assert first.plan.request_rate == 10 and second.plan.request_rate == 20
    # Nothing of the first level is under way in the second, and no number is there twice.
    assert {record.level for record in second.records} == {1}
    prom = (out / "metrics.prom").read_text()
    assert re.search(r'loadgen_level_ttft_from_schedule_seconds\{.*quantile="0.95",.*request_rate="20"', prom)
    assert "concurrency=" not in prom.replace("achieved_concurrency", "")
    table = (out / "summary.csv").read_text()
    assert "open_loop.offered" in table and "offered_request_rate" in table
    assert "asked req/s" in (out / "report.html").read_text()
    summary = (out / "summary.json").read_bytes()
    subprocess.run([sys.executable, "-m", "loadgen", "report", str(out)], check=True, capture_output=True, timeout=60)
    assert (out / "summary.json").read_bytes() == summary, "the records alone give the same"


def test_dropped_arrivals_are_counted_and_reach_nobody(tmp_path: Path) -> None:
    with ScriptedServer(lambda k, _: answer(5, 100, 50)) as server:
        (level,) = run(
            *[server.url, tmp_path / "out", "--tokenizer", str(tokenizer_folder()), "--workers", "2"],
            *["--output-tokens", "5", "--no-ignore-eos", "--request-rate", "40", "--arrival-pattern", "constant"],
            *["--max-in-flight", "5", "--overflow", "drop", "--warmup", "1s", "--duration", "3s"],
        )
    seen = level["open_loop"]
    assert server.peak_in_flight == 5
    assert seen["offered"] == pytest.approx(120, abs=1)
    assert seen["dropped"] + sum(level["requests"].values()) == seen["offered"]
    assert 40 < seen["dropped"] < 100 and seen["waited"] == 0
    # What was sent was sent on time: nothing of it is in a latency.
    assert level["max_ttft_from_schedule_ms"] < 200
    assert "rate_not_reached" in {reason["rule"] for reason in level["reasons"]}


def test_more_than_the_server_can_do_is_called_saturated(tmp_path: Path) -> None:
    with running_simulator("--max-num-seqs", "2") as simulator:
        (level,) = run(
            *[simulator.url, tmp_path / "out", "--request-rate", "12", "--arrival-pattern", "constant"],
            *["--workers", "1", "--output-tokens", "32", "--warmup", "1s", "--duration", "5s", "--drain-timeout", "1s"],
        )
    assert level["open_loop"]["saturated"]
    assert_sound(level)
    assert level["open_loop"]["under_way_at_end"] > level["open_loop"]["under_way_at_start"] + 10
    assert level["completed_request_rate"] < 0.8 * level["offered_request_rate"]
    assert level["requests"]["censored"] > 0
    assert "saturated" in {warning["rule"] for warning in level["warnings"]}


def test_a_burst_arrives_at_once(tmp_path: Path) -> None:
    with ScriptedServer(lambda k, _: answer(2, 200, 10)) as server:
        (level,) = run(
            *[server.url, tmp_path / "out", "--tokenizer", str(tokenizer_folder()), "--workers", "2"],
            *["--output-tokens", "2", "--no-ignore-eos", "--request-rate", "2", "--arrival-pattern", "constant"],
            *["--burst-size", "20", "--burst-period", "1s", "--warmup", "500ms", "--duration", "3s"],
        )
    assert server.peak_in_flight >= 20
    read_ms = np.sort([request.read_ns / 1e6 for request in server.requests])
    together = np.searchsorted(read_ms, read_ms + 100) - np.arange(read_ms.size)
    assert together.max() >= 20, "a burst comes within a tenth of a second"
    assert level["open_loop"]["offered"] == pytest.approx(3 * 22, abs=2)


def test_think_time_keeps_users_apart_and_the_level_valid(tmp_path: Path) -> None:
    with running_simulator(*FAST_SERVER) as simulator:
        (level,) = run(
            *[simulator.url, tmp_path / "out", "--concurrency", "8", "--think-time", "exponential:500ms"],
            *["--output-tokens", "4", "--workers", "2", "--warmup", "1s", "--duration", "5s", "--seed", "7"],
        )
    assert_sound(level)
    assert level["think_time_s"] == 0.5
    # The interactive response time law: X = N / (R + Z).
    assert level["completed_request_rate"] == pytest.approx(8 / (0.5 + level["mean_e2el_ms"] / 1000), rel=0.25)
    assert level["achieved_concurrency"] < 3


def test_an_interrupted_open_loop_ends_in_order_and_loses_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    truth = tmp_path / "truth.jsonl"
    with running_simulator("--truth", str(truth)) as simulator:
        command = [sys.executable, "-m", "loadgen", "run", "--base-url", simulator.url, "-o", str(out), *QUICK]
        command += ["--request-rate", "10", "--workers", "2", "--output-tokens", "40", "--warmup", "500ms"]
        process = subprocess.Popen(
            [*command, "--duration", "60s"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 30
        while not (out / "records/journal.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    sent = [json.loads(line)["client_request_id"] for line in truth.read_text().splitlines()]
    sent.remove("loadgen-probe")
    nonce = sent[0].partition("-")[0]
    known = {f"{nonce}-{r.level}-{r.index}" for r in records_of(out)}
    assert set(sent) <= known and len(sent) > 15
    (level,) = json.loads((out / "summary.json").read_text())["levels"]
    assert level["interrupted"] and not level["valid"]


def test_fewer_places_than_workers_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with running_simulator() as simulator:
        ended = loadgen_here(
            *["run", "--base-url", simulator.url, "-o", str(tmp_path / "out"), *QUICK],
            *["--request-rate", "1", "--workers", "2", "--max-in-flight", "1"],
        )
    assert ended.returncode == 2
    assert "load.max_in_flight is 1, fewer than the 2 workers" in ended.stderr
