"""`loadgen run` as its user types it: a real controller, real workers, a real server; every output looked at."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadgen.record import CANCELLED, CENSORED, OK, RequestRecord
from loadgen.spool import read_records
from server.simulator.tokenizer import folder
from tests.busy_machine import measured, sound
from tests.command_here import loadgen_here
from tests.scripted_server import Answer, Request, ScriptedServer, refusal
from tests.simulator_process import SimulatorProcess, running_simulator
from tests.sse_events import DONE, FIN, C, U

SECRET = "sk-very-secret-7f3a"
QUICK = [
    "--warmup",
    "0.5s",
    "--duration",
    "2s",
    "--input-tokens",
    "64",
    "--output-tokens",
    "16",
    "--metrics-port",
    "off",
]


def loadgen(*arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> Any:
    """Runs the command and gives its exit code and both outputs."""
    return subprocess.run(
        [sys.executable, "-m", "loadgen", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **(env or {})},
    )


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@dataclass(frozen=True)
class Sweep:
    """What is left of a run whose server logged the truth."""

    folder: Path
    ended: subprocess.CompletedProcess[str]
    truth: str
    metrics: str

    def records(self) -> list[RequestRecord]:
        return [r for path in (self.folder / "records").glob("*.spool") for r in read_records(path)]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """One user, then seven, over three workers."""
    made = tmp_path_factory.mktemp("sweep")
    folder, truth = made / "out", made / "truth.jsonl"
    with running_simulator("--truth", str(truth)) as simulator:
        ended = loadgen(
            *["run", "--base-url", simulator.url, "--concurrency", "1,7", "--workers", "3", "-o", str(folder)],
            *[*QUICK, "--slo", "ttft_p95<500ms,error_rate<1%"],
        )
        assert measured(ended), ended.stderr
        metrics = simulator.ask("GET", "/metrics").body.decode()
    return Sweep(folder, ended, truth.read_text(), metrics)


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorProcess]:
    """For runs that are refused before they send anything."""
    with running_simulator() as running:
        yield running


@pytest.fixture(scope="module")
def locked_simulator() -> Iterator[SimulatorProcess]:
    """It asks for SECRET."""
    with running_simulator(env={"SIM_API_KEY": SECRET}) as running:
        yield running


def test_a_sweep_over_three_workers_gives_every_file_and_agrees_with_the_servers_own_log(sweep: Sweep) -> None:
    folder, ended = sweep.folder, sweep.ended
    assert ended.stdout.splitlines()[-1] == f"run folder: {folder}"
    for name in (
        *["scenario.yaml", "provenance.json", "summary.json", "summary.csv", "metrics.prom", "report.html", "run.log"],
        *["levels/0.json", "levels/1.json", "records/journal.jsonl", "records/worker-0.spool"],
    ):
        assert (folder / name).stat().st_size > 0 or name == "run.log", name

    summary = json.loads((folder / "summary.json").read_text(), parse_constant=pytest.fail)
    levels = summary["levels"]
    assert [level["concurrency"] for level in levels] == [1, 7]
    for level in levels:
        assert level["achieved_concurrency"] == pytest.approx(level["concurrency"], rel=0.05)
        assert level["requests"]["ok"] == sum(level["requests"].values())
        assert 15 < level["p50_ttft_ms"] <= level["p95_ttft_ms"] < 500
        assert level["slo"]["ttft_p95"]["met"] is True
        assert json.loads((folder / f"levels/{level['level']}.json").read_text()) == level
    assert levels[1]["output_throughput"] > 1.5 * levels[0]["output_throughput"]
    with (folder / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["p95_ttft_ms"]) for row in rows] == [level["p95_ttft_ms"] for level in levels]

    records = sweep.records()
    assert {r.worker for r in records} == {0, 1, 2}
    true = {entry["client_request_id"]: entry for entry in map(json.loads, sweep.truth.splitlines())}
    del true["loadgen-probe"]
    nonce = next(iter(true)).partition("-")[0]
    assert len(records) == len(true), "a request that the server saw is missing, or is there twice"
    for request in records:
        entry = true[f"{nonce}-{request.level}-{request.index}"]
        assert request.status in (OK, CANCELLED, CENSORED)
        if request.status == OK:
            assert not entry["cancelled"]
        else:  # unless the server had sent all of it when its client cut it off
            assert entry["cancelled"] or len(entry["token_ns"]) == 16
        assert request.sent_ns is not None and request.sent_ns <= entry["received_ns"]
        if request.status == OK:
            assert request.output_tokens == len(entry["token_ns"]) == len(request.arrivals_ns) == 16
            assert request.input_tokens == entry["prompt_tokens"] == 64
            # Every token's arrival lies right after the instant at which the server sent it: one clock, one machine.
            late_ns = request.arrivals_ns - entry["token_ns"]
            assert late_ns.min() >= 0
    generated = float(re.search(r"^vllm:generation_tokens_total\{.*\} (.*)$", sweep.metrics, re.M)[1])  # type: ignore[index]
    counted = sum(len(entry["token_ns"]) for entry in true.values()) + 4  # and the probe's four
    assert generated == counted


def test_report_makes_the_same_summary_again_from_the_records(sweep: Sweep, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sweep.folder, tmp_path / "out"))
    made = {name: (folder / name).read_bytes() for name in ("summary.json", "summary.csv", "metrics.prom")}
    for name in made:
        (folder / name).unlink()
    again = loadgen("report", str(folder))
    assert again.returncode == sweep.ended.returncode
    assert {name: (folder / name).read_bytes() for name in made} == made


def test_seven_users_over_three_workers_are_three_and_two_and_two(sweep: Sweep) -> None:
    users = {(r.worker, r.user) for r in sweep.records() if r.level == 1}
    assert sorted(Counter(worker for worker, _ in users).values()) == [2, 2, 3]


def test_repeats_of_a_sweep_give_median_and_spread(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    ended = loadgen("run", "--concurrency", "4,5", "--num-runs", "2", "-o", str(folder), *QUICK, "--duration", "1s")
    assert measured(ended), ended.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert [(level["run"], level["concurrency"]) for level in summary["levels"]] == [(0, 4), (0, 5), (1, 4), (1, 5)]
    groups = summary["answers"]["repeats"]["groups"]
    assert [(group["concurrency"], group["runs"]) for group in groups] == [(4, 2), (5, 2)]
    for group in groups:
        of = [level for level in summary["levels"] if level["concurrency"] == group["concurrency"]]
        assert all(sound(level) for level in of), [level["reasons"] for level in of]
        values = group["figures"]["output_throughput"]["values"]
        assert values == [level["output_throughput"] for level in of if level["valid"]]
        assert not values or min(values) <= group["figures"]["output_throughput"]["median"] <= max(values)
        assert f"median of {len(values)} valid of 2 runs" in ended.stdout.replace("\n", " ")


def test_metrics_answer_while_a_run_goes_on_and_linger_after_it(tmp_path: Path) -> None:
    port = str(free_port())
    command = [sys.executable, "-m", "loadgen", "run", "--concurrency", "2,4", "-o", str(tmp_path / "out"), *QUICK[:-2]]
    command += ["--metrics-port", port, "--linger", "30s"]
    awaited = {
        "requests in flight": r"^loadgen_requests_in_flight [24]",
        "the finished level": r'^loadgen_level_ttft_seconds\{.*concurrency="4".*quantile="0.95"',
    }
    seen: set[str] = set()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 40
        while len(seen) < len(awaited) and time.monotonic() < deadline:
            time.sleep(0.2)
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                text = answer.read().decode()
                seen |= {name for name, pattern in awaited.items() if re.search(pattern, text, re.M)}
        assert seen == set(awaited)
        process.send_signal(signal.SIGTERM)  # ends the run, or its lingering, at once
        assert process.wait(20) in (0, 130)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_it_measured_and_says_so(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "out"
    command = [sys.executable, "-m", "loadgen", "run", "--concurrency", "2,3", "-o", str(folder)]
    command += ["--warmup", "0s", "--duration", "60s", "--input-tokens", "64", "--output-tokens", "16"]
    command += ["--metrics-port", "off"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    spool = folder / "records" / "worker-0.spool"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (spool.exists() and sum(1 for _ in read_records(spool)) > 5):
        time.sleep(0.1)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert stdout.splitlines()[-1] == f"run folder: {folder}"
    (level,) = json.loads((folder / "summary.json").read_text())["levels"]
    assert level["interrupted"] and not level["valid"]
    assert level["requests"]["ok"] > 0
    assert "cancelled" not in level["requests"], "requests of the window were not drained"
    assert {reason["rule"] for reason in level["reasons"]} == {"interrupted"} and not level["warnings"]
    assert "1 of 2 planned levels were measured" in stdout
    assert "stopping: nothing more is sent; requests under way may take up to 30 s to end" in stderr + stdout


def test_a_folder_that_takes_no_more_ends_the_run_with_what_to_do_and_keeps_the_records(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    command = [sys.executable, "-m", "loadgen", "run", "--concurrency", "2,3", "--warmup", "0s", "--duration", "2s"]
    command += ["--input-tokens", "64", "--output-tokens", "4", "--metrics-port", "off", "-o", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (folder / "records" / "worker-0.spool").exists():
            time.sleep(0.05)
        (folder / "levels" / "0.json").mkdir(parents=True)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1, stderr
    assert f"error: The results cannot be written into {folder}: Is a directory." in stderr
    assert f"hint: the records are kept: make room, then run `loadgen report {folder}`" in stderr
    assert "Traceback" not in stderr
    (folder / "levels" / "0.json").rmdir()
    again = loadgen_here("report", str(folder))
    assert "1 of 2 planned levels were measured" in again.stdout, again.stderr


REFUSED: dict[str, tuple[list[str], int, list[str]]] = {
    "empty sweep": (["--concurrency", ""], 2, ["--concurrency"]),
    "zero duration": (["--duration", "0s"], 2, ["--duration", "load.duration"]),
    "wrong model": (["--model", "sym"], 2, ["'sym'", "'sim'", "--model sim"]),
    "too long a prompt": (["--input-tokens", "9000"], 2, ["max_model_len", "8192"]),
    "too short a prompt": (["--input-tokens", "5"], 2, ["input_tokens"]),
    "no such tokenizer": (["--tokenizer", "/nonexistent/tokenizer"], 2, ["/nonexistent/tokenizer"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_request_is_refused_before_a_byte_of_load_and_leaves_nothing(
    simulator: SimulatorProcess, tmp_path: Path, case: str
) -> None:
    options, exit_code, words = REFUSED[case]
    folder = tmp_path / "out"
    ended = loadgen_here("run", "--base-url", simulator.url, "-o", str(folder), "--metrics-port", "off", *options)
    served = simulator.ask("GET", "/metrics").body.decode()
    assert ended.returncode == exit_code, ended.stderr
    assert ended.stderr.startswith("error: ") and "hint: " in ended.stderr
    assert "Traceback" not in ended.stderr
    for word in words:
        assert word in ended.stderr
    assert not folder.exists()
    assert not re.search(r"^vllm:request_success_total.* [1-9]", served, re.M)


def test_a_server_that_is_not_there_is_named_with_the_reason(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    ended = loadgen(
        *["run", "--base-url", url, "--ready-timeout", "1s", "-o", str(tmp_path / "out"), "--metrics-port", "off"]
    )
    assert ended.returncode == 1
    assert url in ended.stderr and "refused" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_a_server_that_does_not_stream_is_refused(tmp_path: Path) -> None:
    with running_simulator("--no-stream") as simulator:
        ended = loadgen_here("run", "--base-url", simulator.url, "-o", str(tmp_path / "out"), *QUICK)
    assert ended.returncode == 1
    assert "does not stream" in ended.stderr and "application/json" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_a_missing_key_is_refused_and_the_right_one_is_written_nowhere(
    locked_simulator: SimulatorProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    options = ["run", "--base-url", locked_simulator.url, "--concurrency", "2", "-o", str(folder), *QUICK]
    without = loadgen_here(*options, env={"OPENAI_API_KEY": ""})
    assert without.returncode == 2
    assert "401" in without.stderr and "OPENAI_API_KEY" in without.stderr
    assert not folder.exists()
    with_key = loadgen(*options, env={"OPENAI_API_KEY": SECRET})
    assert measured(with_key), with_key.stderr
    assert SECRET.encode() not in everything_in(folder)
    assert SECRET not in with_key.stdout + with_key.stderr


def test_a_key_with_a_line_end_is_refused_without_showing_it(
    locked_simulator: SimulatorProcess, tmp_path: Path
) -> None:
    ended = loadgen_here(
        *["run", "--base-url", locked_simulator.url, "-o", str(tmp_path / "out"), *QUICK],
        env={"OPENAI_API_KEY": f"{SECRET}\r"},
    )
    assert ended.returncode == 2
    assert "OPENAI_API_KEY" in ended.stderr and SECRET not in ended.stderr


def test_a_server_that_repeats_the_key_in_its_errors_does_not_bring_it_into_the_folder(tmp_path: Path) -> None:
    def answer(k: int, _: Request) -> Answer:
        good = [(5, C("a")), (10, C("b") + FIN("length") + U(40, 2) + DONE)]
        return Answer(good) if k == 0 or k % 2 else refusal(503, f"Bad key {SECRET}!")

    with ScriptedServer(answer) as server:
        ended = loadgen(
            *["run", "--base-url", server.url, "-o", str(tmp_path / "out"), "--concurrency", "2"],
            *["--tokenizer", str(folder()), "--warmup", "0.5s", "--duration", "1s"],
            *["--input-tokens", "40", "--output-tokens", "2", "--metrics-port", "off"],
            env={"OPENAI_API_KEY": SECRET},
        )
    (level,) = json.loads((tmp_path / "out" / "summary.json").read_text())["levels"]
    assert any("<key>" in error["reason"] for error in level["error_reasons"])
    assert SECRET.encode() not in everything_in(tmp_path / "out")
    assert SECRET not in ended.stdout + ended.stderr


def test_a_port_in_use_is_refused_with_the_option_that_changes_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        metrics = loadgen_here("run", "-o", str(tmp_path / "out"), *QUICK[:-1], port)
        workers = loadgen(
            *["run", "-o", str(tmp_path / "out"), *QUICK, "--expect-workers", "1", "--master-bind-port", port],
            *["--master-bind-host", "127.0.0.1"],
        )
    assert (metrics.returncode, workers.returncode) == (2, 2)
    assert port in metrics.stderr and "--metrics-port" in metrics.stderr
    assert port in workers.stderr and "--master-bind-port" in workers.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    ended = loadgen_here("run", "-o", str(tmp_path), *QUICK)
    assert ended.returncode == 2
    assert "not empty" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_run_in_which_everything_fails_ends_with_1(tmp_path: Path) -> None:
    def answer(k: int, _: Request) -> Answer:
        # The probe is served; whoever comes after it is refused.
        return Answer([(5, C("a")), (10, C("b") + FIN("length") + U(40, 2) + DONE)]) if k == 0 else refusal(503, "busy")

    with ScriptedServer(answer) as server:
        ended = loadgen(
            *["run", "--base-url", server.url, "-o", str(tmp_path / "out"), "--concurrency", "2"],
            *["--tokenizer", str(folder()), "--warmup", "0.5s", "--duration", "1s"],
            *["--input-tokens", "40", "--output-tokens", "2", "--metrics-port", "off"],
        )
    assert ended.returncode == 1, ended.stderr
    (level,) = json.loads((tmp_path / "out" / "summary.json").read_text())["levels"]
    assert level["requests"]["ok"] == 0 and level["requests"]["http_503"] > 0
    assert level["p50_ttft_ms"] is None
    # A loop that is refused at once waits before it asks again: two users would else send thousands.
    assert level["requests"]["http_503"] < 60
