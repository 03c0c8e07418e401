"""The simulator streams fast enough to load the tool, not itself: tokens for each second of its own processor time."""

import os
import re
import selectors
import socket
import sys
import time
from pathlib import Path

import pytest

from tests.simulator_process import SimulatorProcess, running_simulator

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="processor time is read from /proc"),
]

STREAMS = 256
OPTIONS = ("--max-num-seqs", str(STREAMS), "--max-num-batched-tokens", "8192", "--step-overhead-ms", "4")
FREE = ("--decode-base-ms", "0", "--decode-time-per-seq-ms", "0", "--prefill-time-per-token-ms", "0.0001")


def processor_s(simulator: SimulatorProcess) -> float:
    fields = Path(f"/proc/{simulator.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tokens(simulator: SimulatorProcess) -> float:
    page = simulator.ask("GET", "/metrics").body.decode()
    found = re.search(r"^vllm:generation_tokens_total\S* (\S+)$", page, re.M)
    assert found
    return float(found[1])


def test_a_core_streams_more_than_fifty_thousand_tokens_a_second() -> None:
    body = b'{"prompt":[7,7,7,7],"max_tokens":4000,"ignore_eos":true,"stream":true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with running_simulator(*OPTIONS, *FREE) as simulator, selectors.DefaultSelector() as selector:
        sockets = [socket.create_connection(("127.0.0.1", simulator.port)) for _ in range(STREAMS)]
        try:
            for one in sockets:
                one.sendall(head % len(body) + body)
                one.setblocking(False)
                selector.register(one, selectors.EVENT_READ)

            def read_for(seconds: float) -> None:
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    for key, _ in selector.select(0.1):
                        assert key.fileobj.recv(1 << 16)  # type: ignore[union-attr]

            read_for(0.5)
            began_s, began = processor_s(simulator), tokens(simulator)
            read_for(2.0)
            spent_s, streamed = processor_s(simulator) - began_s, tokens(simulator) - began
        finally:
            for one in sockets:
                one.close()
    assert streamed > 5_000
    assert streamed / spent_s > 50_000, "measured 80,000 to 114,000"
