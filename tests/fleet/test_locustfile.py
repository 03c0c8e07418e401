"""Our user classes in people's own locustfiles, under plain, patched Locust: the run folder is that of a scenario's run."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadgen.outputs import write_outputs
from loadgen.record import CANCELLED, CENSORED, OK, RequestRecord
from loadgen.run_folder import RunFolder
from loadgen.spool import read_records
from tests.busy_machine import sound
from tests.locust_process import locust, running_locust
from tests.simulator_process import running_simulator

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
FAST_SERVER = ["--prefill-time-per-token-ms", "0.01"]
OFF = ["--loadgen-metrics-port", "off"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def levels_of(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / "summary.json").read_text(), parse_constant=pytest.fail)["levels"])


def records_of(folder: Path) -> list[RequestRecord]:
    return [record for path in (folder / "records").glob("*.spool") for record in read_records(path)]


def read(url: str, data: dict[str, str] | None = None) -> str:
    """What a URL answers; waits until somebody does."""
    deadline = time.monotonic() + 30
    while True:
        try:
            body = None if data is None else urllib.parse.urlencode(data).encode()
            with urllib.request.urlopen(url, body, timeout=10) as answer:
                return str(answer.read().decode())
        except (OSError, urllib.error.URLError):
            assert time.monotonic() < deadline, f"nobody answers at {url}"
            time.sleep(0.1)


def until(holds: Any, what: str) -> Any:
    deadline = time.monotonic() + 60
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def assert_records_are_the_servers_own(folder: Path, truth: Path) -> None:
    """Every request that the server saw is in a record, once; and as many tokens as it sent."""
    true = {entry["client_request_id"]: entry for entry in map(json.loads, truth.read_text().splitlines())}
    true = {name: entry for name, entry in true.items() if not name.startswith("loadgen-probe")}
    records = records_of(folder)
    nonce = RunFolder(folder).nonce()
    assert {f"{nonce}-{record.level}-{record.index}" for record in records} == set(true)
    assert len(records) == len(true)
    for record in records:
        entry = true[f"{nonce}-{record.level}-{record.index}"]
        assert record.status in (OK, CANCELLED, CENSORED)
        if record.status == OK:
            assert record.output_tokens == len(entry["token_ns"]) == record.output_tokens_requested
            assert record.input_tokens == entry["prompt_tokens"]
            assert record.input_tokens_requested in (record.input_tokens, None)  # None: of a text of its own


def test_a_master_and_two_workers_make_what_a_scenario_makes(tmp_path: Path) -> None:
    folder, truth = tmp_path / "out", tmp_path / "truth.jsonl"
    bind, metrics = str(free_port()), free_port()
    example = str(SCENARIOS / "locustfile_open_loop.py")
    with running_simulator("--truth", str(truth), *FAST_SERVER) as simulator:
        worker = ["-f", example, "--worker", "--master-port", bind]
        master = [
            *["-f", example, "--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", bind],
            *[
                "--expect-workers",
                "2",
                "--headless",
                "-u",
                "16",
                "-r",
                "16",
                "-t",
                "9s",
                "--json",
                "--host",
                simulator.url,
            ],
            *["--loadgen-output-dir", str(folder), "--loadgen-metrics-port", str(metrics)],
            *["--loadgen-slo", "ttft_p95<5s,error_rate<1%", "--loadgen-seed", "5"],
        ]
        with (
            running_locust(*worker, cwd=tmp_path, log=tmp_path / "worker-0.log") as one,
            running_locust(*worker, cwd=tmp_path, log=tmp_path / "worker-1.log") as other,
            running_locust(*master, cwd=tmp_path, log=tmp_path / "master.log") as process,
        ):
            live = until(
                lambda: (
                    (text := read(f"http://127.0.0.1:{metrics}/metrics"))
                    and re.search(r'^loadgen_requests_total\{status="ok"\} [1-9]', text, re.M)
                    and text
                ),
                "no request was counted in /metrics",
            )
            assert process.wait(60) in (0, 3), (tmp_path / "master.log").read_text()
            assert one.wait(30) == other.wait(30) == 0
    assert re.search(r'^loadgen_run_info\{model="sim",scenario="locustfile_open_loop"', live, re.M)
    (level,) = levels_of(folder)
    assert sound(level), level["reasons"]
    assert level["concurrency"] is None and level["request_rate"] == 8.0
    assert 4 < level["offered_request_rate"] < 13  # 8, and four of its standard deviations over seven seconds
    assert level["workers"] == 2 and level["lost_workers"] == level["missing_records"] == 0
    assert [one["name"] for one in level["classes"]] == ["long_answer", "short_answer"]
    assert sum(one["requests"]["ok"] for one in level["classes"]) == level["requests"]["ok"]
    assert level["slo"]["ttft_p95"]["met"] is True
    for name in ("provenance.json", "summary.csv", "metrics.prom", "report.html", "levels/0.json"):
        assert (folder / name).stat().st_size > 0, name
    records = records_of(folder)
    assert {record.worker for record in records} == {0, 1}
    assert_records_are_the_servers_own(folder, truth)
    # Locust's own statistics are told of every request that was not cancelled by the stop.
    told = json.loads(re.search(r"^\[\n.*?^\]", (tmp_path / "master.log").read_text(), re.M | re.S)[0])  # type: ignore[index]
    assert {row["name"]: row["num_requests"] for row in told} == {
        name: sum(r.status != CANCELLED and r.output_tokens_requested == tokens for r in records)
        for name, tokens in (("short_answer", 16), ("long_answer", 128))
    }
    # Judged again from the folder alone it is the same, and what tasks decide is not said to be a scenario's.
    said = io.StringIO()
    write_outputs(RunFolder.open(folder), Console(file=said, width=1000))
    assert levels_of(folder) == [level]
    assert "input as the tasks ask · output as the tasks ask · load open loop, users Arrivals" in said.getvalue()


TWO_STEPS = """
from locust import LoadTestShape, constant, tag, task
from loadgen import LLMUser


class Steps(LoadTestShape):
    def tick(self):
        return (2, 10) if self.get_run_time() < 8 else (5, 10)


class Quick(LLMUser):
    wait_time = constant(0.1)

    @tag("wanted")
    @task
    async def wanted(self):
        record = await self.stream([{"role": "user", "content": "hi"}], output_tokens=8, name="hello")
        assert record.status == "ok" and record.kernel_stamps

    @tag("unwanted")
    @task
    async def unwanted(self):
        raise AssertionError("it was excluded")
"""


def test_forked_workers_ended_by_ctrl_c_leave_whole_levels_one_for_each_step_of_a_shape(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(TWO_STEPS)
    folder, truth, log = tmp_path / "out", tmp_path / "truth.jsonl", tmp_path / "log"
    port = str(free_port())
    with running_simulator("--truth", str(truth), *FAST_SERVER) as simulator:
        arguments = [
            *["-f", "steps.py", "--processes", "2", "--master-bind-port", port, "--master-port", port, "--headless"],
            *["--host", simulator.url, "--exclude-tags", "unwanted", "--loadgen-output-dir", str(folder), *OFF],
            *["--loadgen-set", "timeouts.total=20s"],
        ]
        with running_locust(*arguments, cwd=tmp_path, log=log) as process:
            until((folder / "levels/0.json").exists, "the first step was no level")
            seen = len(records_of(folder))
            # Five users send less than 33 a second, and a step is a level from five seconds on.
            until(lambda: len(records_of(folder)) >= seen + 200, "no requests in the second step")
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: master and workers get it at once
            assert process.wait(60) in (0, 3), log.read_text()
    assert "it was excluded" not in log.read_text() and "Traceback" not in log.read_text()
    first, second = levels_of(folder)
    assert [(level["level"], level["concurrency"]) for level in (first, second)] == [(0, 2), (1, 5)]
    assert first["window_s"] > 5
    for level in (first, second):
        assert sound(level), level["reasons"]
        assert level["requests"] == {"ok": level["requests"]["ok"]}, "a request of the window was cut off"
        assert level["interrupted"] is False and level["lost_workers"] == level["missing_records"] == 0
        assert level["users_seen"] >= level["concurrency"]
        # What tasks do between their requests nobody but they know, so the load is what was measured.
        assert level["think_time_s"] is None
        assert 0.3 * level["concurrency"] < level["achieved_concurrency"] < level["concurrency"]
    assert first["ended_after_change"] is not None and second["ended_after_change"] is None
    assert second["output_throughput"] > 1.5 * first["output_throughput"]
    assert json.loads((folder / "provenance.json").read_text())["locustfile"]["names"] == ["hello"]
    asked = (folder / "scenario.yaml").read_text()
    assert "concurrency: [2, 5]" in asked and "total: 20s" in asked
    assert_records_are_the_servers_own(folder, truth)


def test_the_web_ui_starts_one_test_after_another_each_with_a_folder_of_its_own(tmp_path: Path) -> None:
    port = free_port()
    with running_simulator(*FAST_SERVER) as simulator:
        arguments = [
            *["-f", str(SCENARIOS / "locustfile_chat.py"), "--host", simulator.url, "--web-host", "127.0.0.1"],
            *["--web-port", str(port), "--autostart", "-u", "6", "-r", "6", "-t", "8s", *OFF],
        ]
        with running_locust(*arguments, cwd=tmp_path, log=tmp_path / "log") as process:
            page = f"http://127.0.0.1:{port}"

            def stats() -> dict[str, Any]:
                return dict(json.loads(read(f"{page}/stats/requests")))

            assert "ask" in {one["name"] for one in until(lambda: stats()["stats"][:-1], "no request")}
            runs = tmp_path / "runs/locustfile_chat"
            until(lambda: len(list(runs.glob("*/report.html"))) == 1, "the first test wrote no report")
            assert stats()["state"] == "stopped"
            assert json.loads(read(f"{page}/swarm", {"user_count": "3", "spawn_rate": "3", "loadgen_warmup": "1s"}))[
                "success"
            ]
            until(lambda: stats()["user_count"] == 3, "no users")
            time.sleep(4)
            read(f"{page}/stop", {})
            until(lambda: len(list(runs.glob("*/report.html"))) == 2, "the second test wrote no report")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) is not None
    assert "Traceback" not in (tmp_path / "log").read_text()
    first, second = sorted(runs.iterdir())
    assert [levels_of(run)[0]["concurrency"] for run in (first, second)] == [6, 3]
    assert "warmup: 1s" in (second / "scenario.yaml").read_text()
    # No request of one test stands in the other's folder.
    assert {record.level for run in (first, second) for record in records_of(run)} == {0}


def test_a_target_that_does_not_answer_ends_it_with_a_reason_before_any_user_comes(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    options = ["--headless", "-u", "1", "-t", "5s", *OFF, "--host", nobody, "--loadgen-set", "target.ready_timeout=1s"]
    ended = locust("-f", str(SCENARIOS / "locustfile_chat.py"), *options, cwd=tmp_path)
    assert ended.returncode == 1
    assert f"error: The server at {nobody} did not answer within 1 s" in ended.stderr
    assert "Traceback" not in ended.stderr and not (tmp_path / "runs").exists()
