"""What goes wrong with a request before its answer begins: takes the faults, refuses, waits or resets. Needs aiohttp."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from weakref import WeakSet

from aiohttp import web

from server.simulator.ask import ApiError
from server.simulator.faults import Fault, read_faults, that_hit
from server.simulator.faulty import reset

HEADER = "X-Simulator-Fault"
"""A request's own faults, in place of the server's."""

_REFUSALS = {
    "429": (429, "RateLimitError", "Too many requests."),
    "500": (500, "InternalServerError", "Internal server error"),
    "503": (503, "ServiceUnavailableError", "The server is overloaded or not ready yet."),
}


class RequestFaults:
    """The faults of a server, which can be changed while it runs."""

    def __init__(self, text: str, seed: int) -> None:
        """ValueError for a text that names no faults."""
        self._faults = read_faults(text)
        self._seed = seed
        self._requests = itertools.count()
        self._connections = itertools.count()
        self._accepted: WeakSet[object] = WeakSet()

    def change(self, text: str) -> None:
        """Other faults from the next request on. ValueError leaves those that there are."""
        self._faults = read_faults(text)

    def of_server(self) -> list[Fault]:
        """Those that befall the server some seconds after its start."""
        return [fault for fault in self._faults if fault.timed]

    def of_request(self, request: web.Request, in_body: str) -> Mapping[str, Fault]:
        """Those that hit a request: its own, from the header or the body, else the server's. ApiError for wrong ones."""
        number = next(self._requests)
        text = request.headers.get(HEADER, in_body)
        try:
            faults = read_faults(text) if text else self._faults
        except ValueError as error:
            raise ApiError(str(error), param="simulator_fault") from None
        return that_hit(faults, number, self._seed)

    async def accept(self, request: web.Request) -> None:
        """Read the first request of a connection late."""
        connection = request.transport
        if not any(fault.kind == "slow_accept" for fault in self._faults) or connection in self._accepted:
            return
        if connection is not None:
            self._accepted.add(connection)
        slow = that_hit(self._faults, next(self._connections), self._seed).get("slow_accept")
        if slow is not None:
            await asyncio.sleep(slow.values["seconds"])


def refuse(faults: Mapping[str, Fault]) -> None:
    """Raise the ApiError that one of the faults asks for."""
    for kind, (status, name, message) in _REFUSALS.items():
        if kind in faults:
            retry = {"Retry-After": f"{faults[kind].values['retry_after']:g}"} if status == 429 else {}
            raise ApiError(message, status=status, kind=name, headers=retry)


async def befall_whole(request: web.Request, faults: Mapping[str, Fault]) -> None:
    """What a stream's faults mean for an answer that is not streamed: it is late, or the connection ends before it."""
    if "stall" in faults:
        await asyncio.sleep(faults["stall"].values["seconds"])
    broken = next((kind for kind in ("reset", "cut", "truncate") if kind in faults), None)
    if broken is None or request.transport is None:
        return
    if broken == "reset":
        reset(request.transport)
    else:
        request.transport.close()
    raise ConnectionResetError("the connection was ended on demand")
