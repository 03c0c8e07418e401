"""The audit with real packets: a late loop, a whole run, and what is refused before the first byte."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.audit_trail import AuditTrail
from loadgen.record import RequestRecord
from loadgen.stats.audit import audit_figures, packet_stamps_ns
from loadgen.stats.segments import NOT_FOUND, Connections
from loadgen.wire.audited import AnswerLog
from loadgen.wire.client import Client
from loadgen.wire.decode import decode
from loadgen.wire.exchange import Exchange
from loadgen.wire.packet_ring import PacketRing, may_capture
from loadgen.wire.wire_loop import WireLoop
from tests.scripted_server import Request, ScriptedServer, Write
from tests.sse_events import DONE, FIN, ROLE, C, U

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = pytest.mark.alone
needs_capture = pytest.mark.skipif(not may_capture(), reason="needs CAP_NET_RAW on Linux")

TOKENS, GAP_MS = 60, 7
QUICK = ["--warmup=0.5s", "--duration=2s", "--input-tokens=64", "--output-tokens=16", "--metrics-port=off"]


def answer(_: int, request: Request) -> list[Write]:
    tokens = [(20 + GAP_MS * k, C(f"word{k} ")) for k in range(TOKENS)]
    end = 20 + GAP_MS * TOKENS
    return [(10, ROLE), *tokens, (end, FIN("length")), (end + 5, U(5, TOKENS) + DONE)]


async def block_loop(busy_s: float, free_s: float) -> None:
    while True:
        time.sleep(busy_s)  # unlike computing, it leaves the thread of the server alone
        await asyncio.sleep(free_s)


def audited_requests(server: ScriptedServer, *, streams: int, busy_s: float) -> tuple[list[RequestRecord], AuditTrail]:
    """Two requests one after another on each stream, while the loop is blocked for `busy_s` of every 45 ms."""
    addresses = ["127.0.0.1"]
    log = AnswerLog(addresses)
    records: list[RequestRecord] = []

    async def stream(client: Client, number: int) -> None:
        await asyncio.sleep(number * 0.003)
        for k in range(2):
            index = 2 * number + k
            exchange = Exchange(
                level=0, index=index, user=number, worker=0, endpoint="chat", dispatched_ns=time.monotonic_ns()
            )
            await client.send(b"{}", exchange, str(index))
            ends: list[int] = []
            records.append(decode(exchange, ends=ends))
            log.finish(exchange, ends)

    async def main() -> None:
        client = Client(server.url, "chat", answers=log)
        blocking = asyncio.get_running_loop().create_task(block_loop(busy_s, 0.045 - busy_s)) if busy_s else None
        await asyncio.gather(*(stream(client, number) for number in range(streams)))
        if blocking is not None:
            blocking.cancel()
        await client.close()

    ring = PacketRing(server.port, addresses)
    with asyncio.Runner(loop_factory=WireLoop) as runner:
        runner.run(main())
    segments = ring.read()
    assert ring.drops == 0
    ring.close()
    assert log.open == {}
    return records, AuditTrail(segments, {(one.level, one.index): one for one in log.take()})


@needs_capture
def test_a_late_loop_coalesces_events_that_their_packets_still_tell_apart(each_way_of_reading: str) -> None:
    with ScriptedServer(answer) as server:
        records, trail = audited_requests(server, streams=6, busy_s=0.030)
        written = {int(request.headers["x-request-id"]): request.writes_ns for request in server.requests}
    assert {record.status for record in records} == {"ok"}
    audit = audit_figures(records, trail)
    assert audit["matched"] == audit["events"] == 12 * TOKENS
    if each_way_of_reading == "epoll":
        assert audit["coalesced"]["n"] > 0.3 * audit["events"]
        assert audit["coalesced"]["p99_ms"] > GAP_MS
    else:  # read by the kernel while the loop was late
        assert audit["coalesced"]["n"] < 0.05 * audit["events"]
    assert audit["single"]["n"] > 0
    assert audit["single"]["p99_ms"] < 1

    connections = Connections(trail.segments)
    for record in records:
        stamps = packet_stamps_ns(record, trail.answers[record.level, record.index], connections)
        sent = np.array(written[record.index][1 : 1 + TOKENS])
        # The packet of an event comes after its own write, and as good as always before the next one.
        assert (stamps >= sent).all()
        assert np.median(stamps - sent) < 1_000_000
        assert (np.diff(stamps) > 0).all()
        assert (record.arrivals_ns >= stamps - 1_000_000).all()


@needs_capture
def test_without_delay_every_stamp_is_its_packets_over_reused_connections_too() -> None:
    with ScriptedServer(answer) as server:
        records, trail = audited_requests(server, streams=4, busy_s=0)
        connections = server.connections
    assert connections == 4 and len(trail.answers) == 8
    audit = audit_figures(records, trail)
    assert (audit["matched"], audit["unmatched"]) == (8 * TOKENS, 0)
    assert audit["single"]["p50_ms"] < 0.1
    assert audit["single"]["n"] > 0.8 * audit["events"]


@needs_capture
def test_packets_that_were_not_captured_leave_their_events_unmatched_and_no_others() -> None:
    with ScriptedServer(answer) as server:
        records, trail = audited_requests(server, streams=1, busy_s=0)
    segments = trail.segments
    tokens = np.flatnonzero(segments["length"])[5:15]
    holed = dataclasses.replace(trail, segments=np.delete(segments, tokens))
    whole = audit_figures(records, trail)
    audit = audit_figures(records, holed)
    assert 8 <= audit["unmatched"] <= 10
    assert audit["matched"] == whole["matched"] - audit["unmatched"]
    assert audit["single"]["p99_ms"] < 1
    first = next(record for record in records if record.index == 0)
    stamps = packet_stamps_ns(first, trail.answers[0, 0], Connections(holed.segments))
    assert np.count_nonzero(stamps == NOT_FOUND) == audit["unmatched"]


def loadgen(*arguments: str, prepare: Callable[[], object] | None = None) -> Any:
    command = [sys.executable, "-m", "loadgen", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, preexec_fn=prepare, env=dict(os.environ))


@needs_capture
def test_an_audited_run_says_how_its_stamps_agree_and_report_says_the_same_again(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    ended = loadgen("run", "--audit", "--concurrency", "2,6", "--workers", "2", "-o", str(folder), *QUICK)
    assert ended.returncode == 0, ended.stderr
    words = " ".join(ended.stdout.split())
    assert "audit at concurrency 2: " in words and "audit at concurrency 6: " in words
    assert "audit at concurrency" in (folder / "report.html").read_text()
    assert "audit.single.p99_ms" in (folder / "summary.csv").read_text()
    summary = (folder / "summary.json").read_bytes()
    for level in json.loads(summary)["levels"]:
        audit = level["audit"]
        assert audit["events"] == 16 * level["requests"]["ok"]
        assert (audit["matched"], audit["unmatched"], audit["user_space"]) == (audit["events"], 0, 0)
        assert (audit["ring_drops"], audit["beyond_limit"], audit["refused_stamps"]) == (0, 0, 0)
        assert audit["single"]["n"] > 0.5 * audit["events"]
        assert audit["single"]["p99_ms"] < 1
        assert json.loads((folder / f"levels/{level['level']}.json").read_text()) == level
    assert loadgen("report", str(folder)).returncode == 0
    assert (folder / "summary.json").read_bytes() == summary


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can take a capability away")
def test_without_the_capability_an_audit_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    def drop_net_raw() -> None:
        libc = ctypes.CDLL(None)
        assert libc.prctl(24, 13, 0, 0, 0) == 0  # PR_CAPBSET_DROP, CAP_NET_RAW: gone with the next exec

    with ScriptedServer(answer) as server:
        ended = loadgen(
            *["run", "--audit", "--base-url", server.url, "-o", str(tmp_path / "out"), *QUICK], prepare=drop_net_raw
        )
        assert server.connections == 0
    assert ended.returncode == 2
    assert "CAP_NET_RAW" in ended.stderr
    assert "setcap" in ended.stderr and "--cap-add NET_RAW" in ended.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_an_audit_over_tls_is_refused_with_exit_code_2(tmp_path: Path) -> None:
    ended = loadgen("run", "--audit", "--base-url", "https://127.0.0.1:1", "-o", str(tmp_path / "out"))
    assert ended.returncode == 2
    assert "TLS" in ended.stderr
    assert not (tmp_path / "out").exists()
