"""Starts the real simulator as a process on a free port and stops it again; for tests of any folder."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

COMMAND = (sys.executable, "-m", "loadgen", "serve", "sim", "--port", "0")
STOP_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    content_type: str
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The JSON of every event before `[DONE]`; an AssertionError unless `[DONE]` comes last."""
        datas = [line.removeprefix(b"data: ") for line in self.body.split(b"\n\n") if line]
        assert datas[-1] == b"[DONE]"
        return [json.loads(data) for data in datas[:-1]]


@dataclass(frozen=True, slots=True)
class SimulatorProcess:
    """A running simulator."""

    process: "subprocess.Popen[str]"
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, content: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request on its own connection; `content` is sent as JSON, or as it is when it is bytes."""
        body = content if content is None or isinstance(content, bytes) else json.dumps(content).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, response.headers.get("Content-Type", ""), response.read())

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)


@contextlib.contextmanager
def running_simulator(*options: str, env: Mapping[str, str] | None = None) -> Iterator[SimulatorProcess]:
    """A simulator that answers; stopped, or killed, at the end."""
    process = subprocess.Popen(
        [*COMMAND, *options], stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        listening = re.fullmatch(r"simulator listening on http://127\.0\.0\.1:(\d+)\n", line)
        assert listening, f"the simulator did not start; it said {line!r}"
        yield SimulatorProcess(process, int(listening[1]))
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()
