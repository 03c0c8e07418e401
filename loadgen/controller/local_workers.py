"""The workers that a run starts on its own host: their processes, from the start to a sure end."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import gevent

from loadgen.host import die_with_parent_option

_POLL_S = 0.02
_END_S = 5.0


class LocalWorkers:
    """Processes of `loadgen worker`; they die with this one. Runs in the hub, and nothing here blocks it."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, count: int, port: int, log: Any) -> None:
        """Starts so many, which connect to the controller at `port`; their output goes to `log`."""
        command = [sys.executable, "-m", "loadgen", "worker", *die_with_parent_option()]
        command += ["--master-host", "127.0.0.1", "--master-port", str(port)]
        for _ in range(count):
            # A session of its own: Ctrl-C at the terminal reaches the controller alone, which ends the run in order.
            self.processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            )

    def ended(self) -> list[subprocess.Popen[bytes]]:
        """Those that have."""
        return [process for process in self.processes if process.poll() is not None]

    def terminate(self) -> None:
        """Asks all of them to end."""
        for process in self.processes:
            process.terminate()

    def end(self) -> None:
        """Waits for them, and kills those that take too long."""
        deadline = time.monotonic() + _END_S
        for process in self.processes:
            while process.poll() is None and time.monotonic() < deadline:
                gevent.sleep(_POLL_S)
            if process.poll() is None:
                process.kill()
                process.wait()
