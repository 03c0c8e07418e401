"""A server that we start as a program of its own: its process group, its log, its readiness, its end. Knows no API."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_POLL_S = 0.05
_TERM_S = 5.0
_LOG_TAIL_LINES = 15


class NotReadyError(Exception):
    """The server did not start; the text ends with the last lines of its log."""


class ServerProcess:
    """A running server in a process group of its own, all of its output in a log file."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        patience_s: float = _TERM_S,
        tied: bool = False,
    ) -> None:
        """`env`: its whole environment, None for ours. `patience_s`: from SIGTERM until SIGKILL. `tied`: its standard
        input ends when we do, however we do, for a program that heeds that.

        Raises NotReadyError when the program is not there.
        """
        self.log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        self._patience_s = patience_s
        with log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE if tied else subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env=env,
                )
            except OSError as error:
                raise NotReadyError(f"{command[0]} cannot be started: {error.strerror}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; negative for a signal, None while it lives."""
        return self._process.poll()

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
            for line in self.output().splitlines():
                if line.startswith(start):
                    return line.removeprefix(start).strip()
            if ended:
                raise NotReadyError(f"the server ended with exit code {self._process.returncode}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise NotReadyError(f"the server was not ready within {timeout_s:g} s\n{self.tail()}")
            pause(_POLL_S)

    def stop(self, pause: Callable[[float], object] = time.sleep) -> None:
        """Ends the whole group: SIGTERM, patience, SIGKILL. Returns when its leader is gone and buried.

        One that is tied to us hears of SIGTERM through its leader, which knows what has to come before it.
        """
        if self._process.stdin is None:
            self._signal(signal.SIGTERM)
        else:
            self._process.terminate()
        deadline = time.monotonic() + self._patience_s
        interruption: BaseException | None = None
        while self.alive() and time.monotonic() < deadline:
            try:
                pause(_POLL_S)
            except BaseException as error:  # told once all is gone: half of a stop leaves a server behind
                interruption, pause = error, time.sleep
        # Also when the leader has ended: its children may live.
        self._signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if interruption is not None:
            raise interruption

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def output(self) -> str:
        """What it has written to its log since it was started."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode("utf-8", "replace")

    def tail(self) -> str:
        """The last lines of that."""
        return "\n".join(self.output().splitlines()[-_LOG_TAIL_LINES:])
