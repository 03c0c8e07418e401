"""Error of arrival stamps while the client's loop is busy: prints one JSON object, and the same as sentences on stderr.

A sender writes its own monotonic instant into every event just before it sends it, so each stamp can be compared with
the truth. The client's loop is blocked for 15 ms of every 20 ms. Three ways to stamp the same traffic, one after
another: the kernel's receive time (`WireLoop`), the time of the read (the same client on plain uvloop), and the time at
which a plain aiohttp task is handed the bytes. Then the first two over TLS.

Usage: `python bench/stamps.py [SECONDS] [STREAMS]` (default 8 and 8).
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import numpy as np
import trustme
import uvloop

from loadgen.route import Route
from loadgen.wire import sse
from loadgen.wire.client import Client
from loadgen.wire.exchange import Exchange
from loadgen.wire.payload import is_done
from loadgen.wire.wire_loop import WireLoop

BUSY_S, PERIOD_S = 0.015, 0.020
GAPS_S = (0.050, 0.005)
"""Longer and shorter than the time for which the loop is blocked."""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"

Stamped = list[tuple[bytes, int]]
"""The bytes of each read and when they arrived, as the client has it."""


async def stream_events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """One answer: an event every so often, each with the instant just before its send; the gap comes as the model."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    gap_s = json.loads(await reader.readexactly(length))["gap_s"]
    writer.write(HEAD)
    loop = asyncio.get_running_loop()
    due = loop.time() + gap_s * np.random.default_rng().random()  # streams out of step
    end = due + seconds
    while due < end:
        await asyncio.sleep(due - loop.time())
        event = {"choices": [{"index": 0, "delta": {"content": str(time.monotonic_ns())}}]}
        writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        due += gap_s
    writer.write(b"data: [DONE]\n\n")
    writer.close()


async def serve(seconds: float) -> None:
    """The sender, in a process of its own; prints its ports, plain and TLS, and runs until it is killed."""
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(secure)
    servers = [
        await asyncio.start_server(
            lambda r, w: stream_events(r, w, seconds), "127.0.0.1", 0, limit=1 << 20, ssl=context
        )
        for context in (None, secure)
    ]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await servers[0].serve_forever()


async def keep_busy() -> None:
    """Blocks the loop for `BUSY_S` of every `PERIOD_S`."""
    while True:
        until = time.monotonic() + BUSY_S
        while time.monotonic() < until:
            pass
        await asyncio.sleep(PERIOD_S - BUSY_S)


async def our_client(url: str, gap_s: float, streams: int) -> list[Stamped]:
    """The workers' own client; its stamps are the kernel's on a `WireLoop`, of the read on any other loop."""
    client = Client(url, "chat", route=Route(insecure=True))
    body = json.dumps({"gap_s": gap_s}).encode()

    async def one(number: int) -> Stamped:
        exchange = Exchange(
            level=0, index=number, user=number, worker=0, endpoint="chat", dispatched_ns=time.monotonic_ns()
        )
        await client.send(body, exchange, str(number))
        return list(zip(exchange.chunks(), exchange.chunk_ns, strict=True))

    try:
        return await asyncio.gather(*(one(number) for number in range(streams)))
    finally:
        await client.close()


async def plain_aiohttp(url: str, gap_s: float, streams: int) -> list[Stamped]:
    """What most tools do: iterate over the body and take the time when the task is handed the bytes."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one() -> Stamped:
            async with session.post(url, json={"gap_s": gap_s}) as response:
                return [(chunk, time.monotonic_ns()) async for chunk in response.content.iter_any()]

        return await asyncio.gather(*(one() for _ in range(streams)))


WAYS: dict[str, tuple[Callable[..., Any], Callable[[], asyncio.AbstractEventLoop], str]] = {
    "kernel": (our_client, WireLoop, "http"),
    "read": (our_client, uvloop.new_event_loop, "http"),
    "plain_aiohttp": (plain_aiohttp, uvloop.new_event_loop, "http"),
    "kernel_tls": (our_client, WireLoop, "https"),
    "read_tls": (our_client, uvloop.new_event_loop, "https"),
}


def errors_ns(stamped: Stamped) -> tuple[list[int], list[bool]]:
    """(stamp − truth, whether the event shares its stamp with a neighbour) for every event of one answer."""
    events, _ = sse.parse(b"".join(chunk for chunk, _ in stamped))
    chunk_ends = np.cumsum([len(chunk) for chunk, _ in stamped])
    arrivals, truths = [], []
    for data, end, _ in events:
        if not is_done(data):
            arrivals.append(stamped[int(np.searchsorted(chunk_ends, end))][1])
            truths.append(int(json.loads(data)["choices"][0]["delta"]["content"]))
    gaps = np.diff(arrivals) == 0
    shared = np.concatenate([gaps, [False]]) | np.concatenate([[False], gaps])
    return [arrival - truth for arrival, truth in zip(arrivals, truths, strict=True)], shared.tolist()


def measure(way: str, ports: dict[str, int], gap_s: float, streams: int) -> dict[str, Any]:
    """Percentiles of the error in milliseconds, of all events and of those with a stamp of their own."""
    ask, loop_factory, scheme = WAYS[way]

    async def run() -> list[Stamped]:
        busy = asyncio.ensure_future(keep_busy())
        try:
            answers: list[Stamped] = await ask(f"{scheme}://127.0.0.1:{ports[scheme]}", gap_s, streams)
            return answers
        finally:
            busy.cancel()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        answers = runner.run(run())
    pairs = [errors_ns(stamped) for stamped in answers]
    error_ms = np.concatenate([errors for errors, _ in pairs]) / 1e6
    shared = np.concatenate([flags for _, flags in pairs])
    own = error_ms[~shared]
    return {
        "stamps": way,
        "gap_ms": gap_s * 1e3,
        "events": int(error_ms.size),
        "p50_ms": _percentile(error_ms, 50),
        "p99_ms": _percentile(error_ms, 99),
        "max_ms": _percentile(error_ms, 100),
        "coalesced_share": round(float(shared.mean()), 3),
        "p99_ms_not_coalesced": _percentile(own, 99) if own.size else None,
    }


def _percentile(values: np.ndarray[Any, Any], percent: int) -> float:
    return round(float(np.percentile(values, percent, method="inverted_cdf")), 3)


def main(argv: list[str]) -> int:
    seconds = float(argv[0]) if argv else 8.0
    streams = int(argv[1]) if len(argv) > 1 else 8
    command = [sys.executable, __file__, "--serve", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
        assert sender.stdout is not None
        ports = dict(zip(("http", "https"), map(int, sender.stdout.readline().split()), strict=True))
        try:
            figures = [measure(way, ports, gap_s, streams) for gap_s in GAPS_S for way in WAYS]
        finally:
            sender.kill()
    print(json.dumps({"busy_ms": BUSY_S * 1e3, "period_ms": PERIOD_S * 1e3, "streams": streams, "figures": figures}))
    for one in figures:
        print(
            f"an event every {one['gap_ms']:g} ms, {one['stamps']} stamps: error P50 {one['p50_ms']:.3f} ms, "
            f"P99 {one['p99_ms']:.3f} ms, {one['coalesced_share']:.0%} of events coalesced",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve(float(sys.argv[2])))
    else:
        sys.exit(main(sys.argv[1:]))
