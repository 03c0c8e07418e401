"""A server that we start as a program of its own: its process group, its log, its readiness, its end. Knows no API."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_POLL_S = 0.05
_TERM_S = 5.0
_LOG_TAIL_LINES = 15


class NotReadyError(Exception):
    """The server did not start; the text ends with the last lines of its log."""


class ServerProcess:
    """A running server in a process group of its own, all of its output in a log file."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Raises NotReadyError when the program is not there."""
        self.log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
            except OSError as error:
                raise NotReadyError(f"{command[0]} cannot be started: {error.strerror}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def await_line(self, start: str, timeout_s: float, pause: Callable[[float], object] = time.sleep) -> str:
        """Waits for a line of the log that starts with `start` and gives the rest of it.

        Raises NotReadyError when the server ends before it, or does not say it in time; it is stopped then.
        """
        deadline = time.monotonic() + timeout_s
        try:
            return self._await_line(start, deadline, timeout_s, pause)
        except BaseException:
            self.stop()
            raise

    def _await_line(self, start: str, deadline: float, timeout_s: float, pause: Callable[[float], object]) -> str:
        while True:
            ended = not self.alive()  # looked at first: the log is complete then
            for line in self._output().splitlines():
                if line.startswith(start):
                    return line.removeprefix(start).strip()
            if ended:
                raise NotReadyError(f"the server ended with exit code {self._process.returncode}\n{self._tail()}")
            if time.monotonic() > deadline:
                raise NotReadyError(f"the server was not ready within {timeout_s:g} s\n{self._tail()}")
            pause(_POLL_S)

    def stop(self) -> None:
        """Ends the whole group: SIGTERM, up to five seconds of patience, SIGKILL. Returns when it is gone."""
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(_TERM_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        # The whole group, and even when its leader is dead already: its children may live.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _output(self) -> str:
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode("utf-8", "replace")

    def _tail(self) -> str:
        return "\n".join(self._output().splitlines()[-_LOG_TAIL_LINES:])
