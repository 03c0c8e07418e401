"""Notices that a target which somebody else runs is gone: takes the workers' counts as time passes; sends no request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from gevent import socket

from loadgen.errors import TargetLostError
from loadgen.record import CANCELLED, CENSORED, CONNECT, TIMEOUT_CONNECT, TRANSPORT

GONE_S = 5.0
"""For so long nothing but failures to connect must come back, and then a connection of our own be refused."""
_NO_ANSWER = frozenset({CONNECT, TRANSPORT, TIMEOUT_CONNECT, CANCELLED, CENSORED})
_LOOK_S = 0.5


class TargetGoneError(TargetLostError):
    """A target that is not ours takes no connections any more."""


class TargetWatch:
    """Looks at what comes back from one target."""

    def __init__(
        self,
        base_url: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        refuses: Callable[[str], str | None] | None = None,
    ) -> None:
        """`refuses` tries to connect: gives why it cannot, None when it can."""
        self._base_url = base_url
        self._clock = clock
        self._refuses = refuses or why_no_connection
        self._looked_s = -_LOOK_S
        self.begin()

    def begin(self) -> None:
        """The target answers now."""
        self._answers = -1
        self._refused = 0
        self._since_s = self._clock()

    def look(self, requests: Iterable[Mapping[str, int]]) -> None:
        """`requests`: of each worker how many ended with each status, since the run began. Raises TargetGoneError."""
        now_s = self._clock()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        counts = list(requests)
        answers = sum(count for one in counts for status, count in one.items() if status not in _NO_ANSWER)
        refused = sum(one.get(CONNECT, 0) for one in counts)
        if answers != self._answers or refused == self._refused:
            self._answers, self._refused, self._since_s = answers, refused, now_s
            return
        if now_s - self._since_s < GONE_S:
            return
        reason = self._refuses(self._base_url)
        if reason is None:
            self._refused, self._since_s = refused, now_s
            return
        raise TargetGoneError(
            f"The server at {self._base_url} takes no connections any more ({reason}): for {GONE_S:g} s no request was answered.",
            hint="see why it ended; `loadgen run --resume RUN` goes on once it is there again",
        )


def why_no_connection(base_url: str) -> str | None:
    """Tries to connect, without holding up other greenlets: why it cannot be done; None when it can."""
    url = urlsplit(base_url)
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        socket.create_connection((url.hostname, port), timeout=1.0).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return None


def counts_of(live: Iterable[Mapping[str, Any]]) -> list[Mapping[str, int]]:
    """The counts of requests in what workers last told."""
    return [one.get("requests", {}) for one in live]
