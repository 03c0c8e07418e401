"""Runs the simulator as a process: takes settings and an address, serves until a signal; prints one line when ready."""

from __future__ import annotations

import asyncio
import errno
import gc
import signal
from pathlib import Path

import uvloop
from aiohttp import web

from server.simulator.http import Simulator
from server.simulator.prompt import PromptTokens
from server.simulator.settings import SimulatorSettings
from server.simulator.truth import TruthLog

_BACKLOG = 4096
_FLUSH_EVERY_S = 1.0
_DRAIN_S = 0.2
_KEEPALIVE_S = 75.0


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
) -> None:
    """Serve on `host:port` (port 0: a free one) until SIGTERM or SIGINT; StartError when it cannot.

    Prints `simulator listening on http://HOST:PORT` once it answers.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, host, port, tokenizer, truth, api_key))


async def _serve(
    settings: SimulatorSettings, host: str, port: int, tokenizer: Path, truth: Path | None, api_key: str | None
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    tokens = _opened_tokenizer(tokenizer)
    log = _opened_truth(truth)
    simulator = Simulator(settings, tokens, truth=log, api_key=api_key)
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
        print(f"simulator listening on {_url(host, runner.addresses[0][1])}", flush=True)
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), _FLUSH_EVERY_S)
            except TimeoutError:
                if log is not None:
                    log.flush()
    finally:
        simulator.close()
        await runner.cleanup()
        if log is not None:
            log.close()


def _opened_tokenizer(folder: Path) -> PromptTokens:
    try:
        return PromptTokens(folder)
    except (OSError, ValueError) as error:
        raise StartError(
            f"The tokenizer cannot be loaded: {error}.", hint="Give --tokenizer a folder saved by AutoTokenizer."
        ) from error


def _opened_truth(path: Path | None) -> TruthLog | None:
    if path is None:
        return None
    try:
        return TruthLog(path)
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
