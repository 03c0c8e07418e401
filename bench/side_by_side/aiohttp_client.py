"""A closed loop of streaming requests over plain aiohttp, as most tools write it: one task a stream, lines, JSON, a list.

Usage: `python aiohttp_client.py URL STREAMS RAMP_S LOAD_S BODY_FILE OUT_FILE`. Writes one JSON object: `start_ns`, `token_ns`
(one list a request) and `failed`. Stamps are `time.perf_counter_ns` when the task is handed the line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import aiohttp


async def ask(session: aiohttp.ClientSession, url: str, body: bytes) -> tuple[int, list[int]]:
    start_ns, stamps = time.perf_counter_ns(), []
    async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
        response.raise_for_status()
        async for line in response.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            choices = json.loads(line[6:])["choices"]
            if choices and choices[0]["delta"].get("content"):
                stamps.append(time.perf_counter_ns())
    return start_ns, stamps


async def load(url: str, streams: int, ramp_s: float, load_s: float, body: bytes) -> dict[str, object]:
    done: list[tuple[int, list[int]]] = []
    failed = 0
    end = time.monotonic() + load_s

    async def stream(number: int) -> None:
        nonlocal failed
        await asyncio.sleep(ramp_s * number / streams)
        while time.monotonic() < end:
            try:
                done.append(await ask(session, url, body))
            except aiohttp.ClientError:
                failed += 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(stream(number) for number in range(streams)))
    return {"start_ns": [start for start, _ in done], "token_ns": [stamps for _, stamps in done], "failed": failed}


if __name__ == "__main__":
    base_url, streams, ramp_s, load_s, body, out = sys.argv[1:]
    url = f"{base_url}/v1/chat/completions"
    found = asyncio.run(load(url, int(streams), float(ramp_s), float(load_s), Path(body).read_bytes()))
    Path(out).write_text(json.dumps(found))
