"""`AsyncUser` in somebody's own locustfile, under plain Locust: patched by gevent, headless, with several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator_process import running_simulator

LOCUSTFILE = """
import time
from locust import constant, task
from loadgen.wire.client import Client
from loadgen.wire.decode import decode
from loadgen.wire.exchange import Exchange
from loadgen.wire.request import BodyTemplate
from loadgen.worker.async_user import AsyncUser

template = BodyTemplate(model="sim", endpoint="chat", ignore_eos=True, continuous_usage=True)


class Chat(AsyncUser):
    wait_time = constant(0)

    async def on_start(self):
        self.client = Client(self.host, "chat")

    async def on_stop(self):
        await self.client.close()

    @task
    async def ask(self):
        exchange = Exchange(
            level=0, index=0, user=0, worker=0, endpoint="chat", dispatched_ns=time.monotonic_ns()
        )
        await self.client.send(template.body("the quick brown fox", 10), exchange, "r")
        request = decode(exchange)
        assert request.kernel_stamps
        self.emit(
            request_type="SSE",
            name="ask",
            response_time=(request.last_token_ns - request.sent_ns) / 1e6,
            response_length=request.output_tokens,
            exception=None if request.status == "ok" else RuntimeError(request.status),
            context={},
        )
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_async_users_run_and_overlap_under_plain_patched_locust(tmp_path: Path, processes: int) -> None:
    locustfile = tmp_path / "locustfile.py"
    locustfile.write_text(LOCUSTFILE)
    environment = {key: value for key, value in os.environ.items() if key != "LOCUST_SKIP_MONKEY_PATCH"}
    with running_simulator() as simulator:
        command = [
            sys.executable,
            "-m",
            "locust",
            "-f",
            str(locustfile),
            "--headless",
            "-u",
            "8",
            "-r",
            "8",
            "-t",
            "4s",
        ]
        command += ["--host", simulator.url, "--json", "--stop-timeout", "5"]
        if processes > 1:
            command += ["--processes", str(processes)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        metrics = simulator.ask("GET", "/metrics").body.decode()
    # Workers print an empty list each; the master comes last.
    (row,) = json.loads(("\n" + ended.stdout)[("\n" + ended.stdout).rindex("\n[\n") :])
    served = sum(
        float(line.rpartition(" ")[2]) for line in metrics.splitlines() if line.startswith("vllm:request_success_total")
    )
    assert row["num_failures"] == 0
    # Each of eight users needs about 0.2 s a request: one after another they could not do 40.
    assert row["num_requests"] >= 40
    # A graceful stop lets every request end, so Locust was told of each that the server finished.
    assert row["num_requests"] == served
    assert "Traceback" not in ended.stderr
