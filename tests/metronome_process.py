"""Starts the real metronome as a process on a free port, talks to it over plain sockets, and reads its log."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.metronome.truth import Truth, load_truth

COMMAND = (sys.executable, "-m", "server.metronome", "--port", "0")
_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class MetronomeProcess:
    """A running metronome."""

    process: "subprocess.Popen[str]"
    port: int
    log: Path

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), _TIMEOUT_S)

    def end(self) -> Truth:
        """SIGTERM, a clean end, and what the log says then."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(_TIMEOUT_S) == 0
        return load_truth(self.log)


@contextlib.contextmanager
def running_metronome(log: Path, *options: str) -> Iterator[MetronomeProcess]:
    """A metronome that answers; killed at the end if it still runs."""
    process = subprocess.Popen([*COMMAND, "--truth", str(log), *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        listening = re.fullmatch(r"metronome listening on http://127\.0\.0\.1:(\d+)\n", line)
        assert listening, f"the metronome did not start; it said {line!r}"
        yield MetronomeProcess(process, int(listening[1]), log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def post(path: str, content: Mapping[str, Any], *headers: str) -> bytes:
    """The bytes of a request."""
    body = json.dumps(content).encode()
    head = [f"POST {path} HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def chat(max_tokens: int = 4, **fields: Any) -> dict[str, Any]:
    """A body that asks for a stream."""
    return {"messages": [{"role": "user", "content": "one two"}], "max_tokens": max_tokens, "stream": True, **fields}


def read_stream(sock: socket.socket) -> tuple[bytes, list[tuple[int, bytes]]]:
    """(head, events) of a streamed answer, each event with the instant at which it had been read."""
    data, at, events = b"", 0, []
    while not (data.endswith(b"\r\n0\r\n\r\n") or data == b"0\r\n\r\n"):
        received = sock.recv(65536)
        now_ns = time.monotonic_ns()
        assert received, f"the connection was closed after {data[-200:]!r}"
        data += received
        if at == 0:
            head_end = data.find(b"\r\n\r\n")
            if head_end < 0:
                continue
            at = head_end + 4
        while (line_end := data.find(b"\r\n", at)) >= 0:
            size = int(data[at:line_end], 16)
            after = line_end + 2 + size + 2
            if size == 0 or len(data) < after:
                break
            events.append((now_ns, data[line_end + 2 : after - 2]))
            at = after
    return data[: data.find(b"\r\n\r\n")], events


def contents(events: list[tuple[int, bytes]]) -> list[Any]:
    """The JSON of every event before `[DONE]`, which must be the last."""
    datas = [event.removeprefix(b"data: ").removesuffix(b"\n\n") for _, event in events]
    assert datas[-1] == b"[DONE]"
    return [json.loads(data) for data in datas[:-1]]
