"""Stands between us and a server that is several processes: ends all of them when asked to, or when we die.

`python -m server.warden [--patience SECONDS] [--on-stop COMMAND] -- COMMAND…` runs the command in its own process group
and ends with its exit code. It stops the command at SIGTERM, at SIGINT, and when its standard input ends, which happens
when whoever started it is gone, by SIGKILL too. Nothing of the command is left then: vLLM's engine outlives an API server
that is killed, and keeps the port's GPU memory (vllm-project/vllm#55510). It knows no API and writes only to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from server.parent import tie_to_parent

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05
_KILL_S = 10.0
_ON_STOP_S = 30.0
_NOT_STARTED = 127


def guarded(command: Sequence[str], *, patience_s: float, on_stop: Sequence[str] = ()) -> list[str]:
    """The command line that runs `command` under a warden.

    `patience_s`: from SIGTERM until SIGKILL. `on_stop`: a command that is run before the SIGTERM, for a server that
    signals do not reach (a container, another host).
    """
    # -P: a folder named `server` where the run was started is not ours.
    words = [sys.executable, "-P", "-m", "server.warden", "--patience", f"{patience_s:g}"]
    if on_stop:
        words += ["--on-stop", shlex.join(on_stop)]
    return [*words, "--", *command]


class _Warden:
    """The command under guard, and what is known of its processes."""

    def __init__(self, command: Sequence[str], patience_s: float, on_stop: Sequence[str]) -> None:
        self._patience_s = patience_s
        self._on_stop = on_stop
        self._stopping = False
        self._code: int | None = None
        """How the command itself ended."""
        # A signal handler only leaves a byte here, so that none of them is lost between a look and a wait.
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        _adopt_orphans()
        here = os.getpid()

        def die_too() -> None:
            with contextlib.suppress(OSError):
                tie_to_parent(here)

        # Kept: a Popen that is dropped buries its process itself, and takes the exit code with it.
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_too)

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def run(self) -> int:
        """Until the command has ended, by itself or by us, and nothing of it is left; its exit code."""
        while self._code is None and not self._stopping:
            ready, _, _ = select.select([sys.stdin.fileno(), self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
            if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 4096):
                self._stopping = True
            self._reap()
        if self._on_stop and self._stopping:
            self._run_on_stop()
        self._end_all()
        return self._code if self._code is not None else -signal.SIGKILL

    def _run_on_stop(self) -> None:
        try:
            subprocess.run(self._on_stop, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=_ON_STOP_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"warden: {shlex.join(self._on_stop)} failed: {error}", file=sys.stderr, flush=True)

    def _end_all(self) -> None:
        """SIGTERM to the group, patience, SIGKILL to whatever is left, also outside of the group."""
        if not self._left():
            return
        self._stopping = True  # our own SIGTERM comes to us too
        os.killpg(0, signal.SIGTERM)
        if self._gone_within(self._patience_s):
            return
        deadline = time.monotonic() + _KILL_S
        while (left := self._left()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_S)

    def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._left():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def _left(self) -> list[int]:
        """The command's processes that live."""
        self._reap()
        return list(_descendants(os.getpid()))

    def _reap(self) -> None:
        """Buries the dead: the command, and the orphans of its processes that have come to us."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._process.pid:
                    self._code = os.waitstatus_to_exitcode(found[1])


def _adopt_orphans() -> None:
    """Has the processes whose parent dies become our children, whatever group they are in (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _descendants(ancestor: int) -> Iterator[int]:
    """Living processes below a process, from /proc; none where there is no such thing."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in parentheses may hold anything; what follows the last one is plain.
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.parent.name))
    below = list(children.get(ancestor, ()))
    while below:
        pid = below.pop()
        yield pid
        below += children.get(pid, ())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; gives its exit code, 128 + N where signal N ended it."""
    parser = argparse.ArgumentParser(prog="python -m server.warden")
    parser.add_argument("--patience", type=float, default=10.0)
    parser.add_argument("--on-stop", type=shlex.split, default=[])
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    try:
        warden = _Warden(given.command, given.patience, given.on_stop)
    except OSError as error:
        print(f"warden: {given.command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return _NOT_STARTED
    code = warden.run()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
