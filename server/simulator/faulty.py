"""Carries out what goes wrong in a stream: takes its events in place of `Wire`, sends them late, broken or not at all.

Events go through a queue to a task of the stream, so that whoever hands them over never waits. What it sends is no longer
what the truth log says: that has the instants at which the engine gave the tokens.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Coroutine, Mapping
from typing import Any

import orjson

from server.simulator.faults import Fault
from server.simulator.wire import Wire

IN_STREAM = frozenset({"error", "stall", "truncate", "cut", "reset", "split", "glue", "buffer"})
"""Kinds that befall a stream that has begun."""

_ERROR = {"error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}}


class FaultyWire:
    """The body of one response in which `faults` happen."""

    def __init__(self, wire: Wire, faults: Mapping[str, Fault], transport: asyncio.Transport) -> None:
        self._wire = wire
        self._faults = faults
        self._transport = transport
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._kept = b""
        self._kept_events = 0

    def send(self, data: bytes) -> None:
        """Hand over the bytes of one event."""
        self._events.put_nowait(data)

    async def carry(self, generating: Coroutine[Any, Any, None]) -> bool:
        """Run what generates the events until they are sent, or until a fault ends the stream; it is cancelled then.

        False when the connection is gone, so that the response cannot be closed properly.
        """
        sender, source = asyncio.create_task(self._send_all()), asyncio.create_task(generating)
        try:
            await asyncio.wait((sender, source), return_when=asyncio.FIRST_COMPLETED)
            if source.done():
                source.result()
                self._events.put_nowait(None)
            return await sender
        finally:
            for task in (sender, source):
                task.cancel()
            await asyncio.gather(sender, source, return_exceptions=True)

    async def _send_all(self) -> bool:
        """Returns after the last event, or when a fault has ended the stream; False when the connection is gone."""
        stop = next(
            (self._faults[kind] for kind in ("error", "truncate", "cut", "reset") if kind in self._faults), None
        )
        stall = self._faults.get("stall")
        number = 0
        while (event := await self._events.get()) is not None:
            if stop is not None and number == stop.values["after"]:
                await self._flush()
                return self._break(stop.kind, event)
            if stall is not None and number == stall.values["after"]:
                await self._flush()
                await asyncio.sleep(stall.values["seconds"])
            number += 1
            await self._pass_on(event)
        await self._flush()
        return not self._transport.is_closing()

    async def _pass_on(self, event: bytes) -> None:
        glue, buffer = self._faults.get("glue"), self._faults.get("buffer")
        if glue is None and buffer is None:
            await self._put(event)
            return
        self._kept += event
        self._kept_events += 1
        if (glue is not None and self._kept_events >= glue.values["events"]) or (
            buffer is not None and len(self._kept) >= buffer.values["bytes"]
        ):
            await self._flush()

    async def _flush(self) -> None:
        kept, self._kept, self._kept_events = self._kept, b"", 0
        if kept:
            await self._put(kept)

    async def _put(self, data: bytes) -> None:
        split = self._faults.get("split")
        if split is None:
            self._wire.send(data)
            return
        size = int(split.values["bytes"])
        for start in range(0, len(data), size):
            self._wire.send(data[start : start + size])
            await asyncio.sleep(split.values["gap_ms"] / 1000)

    def _break(self, kind: str, event: bytes) -> bool:
        if kind == "error":
            for payload in (b"data: " + orjson.dumps(_ERROR) + b"\n\n", b"data: [DONE]\n\n"):
                self._wire.send(b"%x\r\n%b\r\n" % (len(payload), payload))
            return True
        if kind == "truncate":
            return True
        if kind == "cut":
            self._wire.send(event[: len(event) // 2])
            self._transport.close()
        else:
            reset(self._transport)
        return False


def reset(transport: asyncio.Transport) -> None:
    """End a connection so that the peer gets a reset."""
    of_transport = transport.get_extra_info("socket")
    with socket.socket(fileno=os.dup(of_transport.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
