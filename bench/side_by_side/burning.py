"""`loadgen run` with a worker whose event loop is blocked for 15 ms, again and again, with 5 ms between.

Only for the benchmark: the worker is the ordinary one, and a task that burns is put on its loop from outside. Takes
the options of `loadgen run`; `--workers 0` must be among them. Never part of the product.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

BURN_S, PAUSE_S = 0.015, 0.005
WORKER = "--burn-worker"


async def burn() -> None:
    """Blocks the loop, for ever."""
    while True:
        until = time.monotonic() + BURN_S
        while time.monotonic() < until:
            pass
        await asyncio.sleep(PAUSE_S)


def worker(port: str) -> None:
    """An ordinary worker, burning."""
    os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"
    import locust  # noqa: F401  (before aiohttp: it warns otherwise)

    from loadgen.worker.loop_thread import LoopThread
    from loadgen.worker.process import connect

    begin = LoopThread.__init__
    kept = []

    def begin_burning(self: LoopThread) -> None:
        begin(self)
        self.on_loop(lambda: kept.append(self.loop.create_task(burn())))

    LoopThread.__init__ = begin_burning  # type: ignore[method-assign]
    sys.exit(connect("127.0.0.1", int(port)).run())


def main(argv: list[str]) -> int:
    """Starts the worker and the controller; ends when the controller has."""
    if argv[0] == WORKER:
        worker(argv[1])
    port = free_port()
    burning = subprocess.Popen([sys.executable, "-m", "bench.side_by_side.burning", WORKER, str(port)])
    try:
        options = ["--expect-workers", "1", "--master-bind-host", "127.0.0.1", "--master-bind-port", str(port)]
        return subprocess.run([sys.executable, "-m", "loadgen", "run", *argv, *options]).returncode
    finally:
        burning.send_signal(signal.SIGTERM)
        burning.wait()


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
