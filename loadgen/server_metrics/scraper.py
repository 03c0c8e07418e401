"""Asks a server's /metrics once a second and at given instants, from a thread of its own, and writes what comes to a file.

Takes a URL, gives samples; judges nothing, and never holds up whoever started it. A server that has no such page is asked
once; the GPUs of this host, where the server is on it, are sampled at the same instants.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from loadgen.route import Route
from loadgen.server_metrics.file import SampleWriter
from loadgen.server_metrics.gpu import Gpus
from loadgen.server_metrics.parse import read_metrics
from loadgen.server_metrics.sample import ServerSample
from loadgen.wire.failures import words
from server.vllm.port import is_this_host

EVERY_NS = 1_000_000_000
# A regular scrape that might still be under way at an instant that was asked for is left out.
_CLEAR_NS = 300_000_000
_ANSWER_S = 5.0
_MOST_BYTES = 16 * 1024 * 1024
# In between only gauges and counters are kept: of a histogram the ends count, and a day of them would be large.
_HISTOGRAMS_EVERY_NS = 10_000_000_000
_POLL_S = 0.01
_NOT_THERE = frozenset({401, 403, 404, 405, 406, 410, 501})


class Scraper:
    """Scrapes from its making until `close`."""

    def __init__(
        self,
        url: str,
        path: Path,
        *,
        route: Route,
        api_key: str | None = None,
        watch_gpus: bool = True,
        every_ns: int = EVERY_NS,
    ) -> None:
        """`url` of the page; `path` of the file, which is appended to. The key goes along where it is given."""
        self._every_ns = every_ns
        self._request = urllib.request.Request(url, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
        self._opener = route.opener()
        self._writer = SampleWriter(path)
        self._watch_gpus = watch_gpus
        self._changed = threading.Condition()
        self._instants_ns: list[int] = []
        """A heap of those that were asked for and have not come."""
        self._closed = False
        self._seen_ns = 0
        self._ever_answered = False
        self._not_there: str | None = None
        """Why it is not worth asking again."""
        self._with_histograms_ns = 0
        self.latest: ServerSample | None = None
        """The last sample; None before the first."""
        self._thread = threading.Thread(target=self._run, name="server metrics", daemon=True)
        self._thread.start()

    def at(self, *instants_ns: int) -> None:
        """Scrapes at these instants of the monotonic clock too."""
        with self._changed:
            for instant_ns in instants_ns:
                heapq.heappush(self._instants_ns, instant_ns)
            self._changed.notify()

    def await_sample(self, since_ns: int, pause: Callable[[float], object], most_s: float = _ANSWER_S + 1) -> bool:
        """Waits until a scrape that was asked for at `since_ns` or later is in the file; False when none comes.

        `pause` sleeps so many seconds.
        """
        deadline = time.monotonic() + most_s
        while self._seen_ns < since_ns and self._thread.is_alive() and time.monotonic() < deadline:
            pause(_POLL_S)
        return self._seen_ns >= since_ns

    def close(self) -> None:
        """Ends the thread; a scrape that is under way is waited for, but not for long."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_ANSWER_S + 1)

    def _run(self) -> None:
        with contextlib.closing(self._writer), contextlib.ExitStack() as stack:
            gpus: Gpus | None = None
            if self._watch_gpus and is_this_host(urlsplit(self._request.full_url).hostname or ""):
                gpus = Gpus.open()
                if gpus is not None:
                    stack.callback(gpus.close)
            next_ns = time.monotonic_ns()
            while self._wait_until_due(next_ns):
                sample = self._sample(gpus)
                try:
                    self._writer.append(sample)
                except OSError:
                    return  # the disk is full, and the run's journal will say so
                self.latest = sample
                self._seen_ns = sample.asked_ns
                if gpus is None and self._not_there is not None:
                    return
                now_ns = time.monotonic_ns()
                while next_ns <= now_ns:  # instants that were missed are not made up for
                    next_ns += self._every_ns

    def _wait_until_due(self, next_ns: int) -> bool:
        """Waits for the next instant; False when it is to end."""
        with self._changed:
            while not self._closed:
                now_ns = time.monotonic_ns()
                asked_ns = self._instants_ns[0] if self._instants_ns else None
                if asked_ns is not None and asked_ns <= now_ns:
                    while self._instants_ns and self._instants_ns[0] <= now_ns:
                        heapq.heappop(self._instants_ns)
                    self._with_histograms_ns = 0
                    return True
                near = asked_ns is not None and asked_ns - max(now_ns, next_ns) < _CLEAR_NS
                if next_ns <= now_ns and not near:
                    return True
                due_ns = asked_ns if near and asked_ns is not None else next_ns
                self._changed.wait((due_ns - now_ns) / 1e9)
        return False

    def _sample(self, gpus: Gpus | None) -> ServerSample:
        sample = self._ask()
        return sample if gpus is None else dataclasses.replace(sample, gpus=gpus.read())

    def _ask(self) -> ServerSample:
        asked_ns = time.monotonic_ns()
        problem = self._not_there
        if problem is None:
            try:
                return self._scrape(asked_ns)
            except urllib.error.HTTPError as error:
                error.close()
                problem = f"the target's /metrics answered {error.code}"
                if error.code in _NOT_THERE or 300 <= error.code < 400:
                    problem = f"the target has no /metrics (it answered {error.code})"
                    self._give_up(problem)
            except ValueError as error:
                problem = f"the target's /metrics is of no use: {error}"
                self._give_up(problem)
            except (OSError, HTTPException) as error:
                problem = f"the target's /metrics did not answer ({words(getattr(error, 'reason', error))})"
        return ServerSample(asked_ns, time.monotonic_ns(), problem)

    def _give_up(self, problem: str) -> None:
        # Once it has answered, it has such a page: whatever comes then may pass.
        if not self._ever_answered:
            self._not_there = problem

    def _scrape(self, asked_ns: int) -> ServerSample:
        """Raises HTTPError, OSError or HTTPException without an answer, ValueError where it is no metrics we know."""
        with self._opener.open(self._request, timeout=_ANSWER_S) as answer:
            text = answer.read(_MOST_BYTES).decode(errors="replace")
        answered_ns = time.monotonic_ns()
        read = read_metrics(text)
        if not read["kind"]:
            raise ValueError("it has none of the metrics of vLLM, SGLang or llama.cpp")
        self._ever_answered = True
        sample = ServerSample(asked_ns, answered_ns, **read)
        if asked_ns - self._with_histograms_ns < _HISTOGRAMS_EVERY_NS:
            return dataclasses.replace(sample, histograms={})
        self._with_histograms_ns = asked_ns
        return sample
