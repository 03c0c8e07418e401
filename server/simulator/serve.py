"""Runs the simulator as a process: takes settings and an address, serves until a signal; prints one line when ready.

Standard output has that line, standard error a log in vLLM's form. A restart on demand is a new program in the same
process: all connections and counters are gone, port and process id stay.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import uvloop
from aiohttp import web

from server.simulator import start_log
from server.simulator.http import Simulator
from server.simulator.prompt import PromptTokens
from server.simulator.settings import SimulatorSettings
from server.simulator.truth import TruthLog

_BACKLOG = 4096
_FLUSH_EVERY_S = 1.0
_DRAIN_S = 0.2
_KEEPALIVE_S = 75.0
_RESTARTED = "SIMULATOR_RESTARTED"
"""In the environment of a restarted simulator: what was to happen some seconds after its start has happened."""


class StartError(Exception):
    """The simulator cannot start: why, and in `hint` what helps."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def run(
    settings: SimulatorSettings,
    *,
    host: str,
    port: int,
    tokenizer: Path,
    truth: Path | None = None,
    api_key: str | None = None,
    restart_command: Sequence[str] = (),
) -> None:
    """Serve on `host:port` (port 0: a free one) until SIGTERM or SIGINT; StartError when it cannot.

    Prints `simulator listening on http://HOST:PORT` once it answers. `restart_command`: what starts it again on demand,
    to which `--port` is added; without one a restart is a crash. A crash is exit code 1.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, host, port, tokenizer, truth, api_key, restart_command))


async def _serve(
    settings: SimulatorSettings,
    host: str,
    port: int,
    tokenizer: Path,
    truth: Path | None,
    api_key: str | None,
    restart_command: Sequence[str],
) -> None:
    began_ns = time.monotonic_ns()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    _log(start_log.beginning(settings, host, port))
    tokens = _opened_tokenizer(tokenizer)
    restarted = _RESTARTED in os.environ
    log = _opened_truth(truth, go_on=restarted)
    if await _waited(stop, settings.startup_delay_s):
        return

    def end(kind: str) -> None:
        if log is not None:
            log.flush()
        print(f"simulator: {kind} on demand", file=sys.stderr, flush=True)
        if kind == "crash" or not restart_command:
            os._exit(1)
        bound = str(runner.addresses[0][1])
        words = [*restart_command, "--port", bound]
        os.execve(words[0], words, {**os.environ, _RESTARTED: "1"})

    simulator = Simulator(settings, tokens, truth=log, api_key=api_key, on_end=end, timed_faults=not restarted)
    runner = web.AppRunner(
        simulator.application(),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=_DRAIN_S,
        keepalive_timeout=_KEEPALIVE_S,
    )
    await runner.setup()
    try:
        await _listen(runner, host, port)
        # What is alive now stays alive: later collections need not look at it, so they stay short.
        gc.collect()
        gc.freeze()
        url = _url(host, runner.addresses[0][1])
        _log(start_log.end(settings, took_s=(time.monotonic_ns() - began_ns) / 1e9, url=url))
        print(f"simulator listening on {url}", flush=True)
        while not await _waited(stop, _FLUSH_EVERY_S):
            if log is not None:
                log.flush()
    finally:
        simulator.close()
        await runner.cleanup()
        if log is not None:
            log.close()


async def _waited(stop: asyncio.Event, seconds: float) -> bool:
    """Waits so long, or until it is to stop: whether it is."""
    if seconds:
        try:
            await asyncio.wait_for(stop.wait(), seconds)
        except TimeoutError:
            return False
    return stop.is_set()


def _log(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def _opened_tokenizer(folder: Path) -> PromptTokens:
    try:
        return PromptTokens(folder)
    except (OSError, ValueError) as error:
        raise StartError(
            f"The tokenizer cannot be loaded: {error}.", hint="Give --tokenizer a folder saved by AutoTokenizer."
        ) from error


def _opened_truth(path: Path | None, *, go_on: bool) -> TruthLog | None:
    if path is None:
        return None
    try:
        return TruthLog(path, go_on=go_on)
    except OSError as error:
        raise StartError(
            f"The truth log {path} cannot be written: {error.strerror}.",
            hint="Give --truth a file in a folder that exists.",
        ) from error


async def _listen(runner: web.AppRunner, host: str, port: int) -> None:
    try:
        await web.TCPSite(runner, host, port, backlog=_BACKLOG).start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"Port {port} on {host} is in use.", hint="Choose another with --port, or --port 0 for a free one."
            ) from error
        raise StartError(
            f"Nothing can listen on {host}:{port}: {error.strerror or error}.", hint="Check --host and --port."
        ) from error


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
