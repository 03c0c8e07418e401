"""Runs plain Locust as people do, patched by gevent, with our user classes in a locustfile; for tests of any folder."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "LOCUST_SKIP_MONKEY_PATCH"}
COMMAND = (sys.executable, "-m", "locust")


def locust(*arguments: str, cwd: Path | None = None, timeout_s: float = 90) -> "subprocess.CompletedProcess[str]":
    """To its end."""
    return subprocess.run(
        [*COMMAND, *arguments], env=ENVIRONMENT, cwd=cwd, capture_output=True, text=True, timeout=timeout_s
    )


@contextlib.contextmanager
def running_locust(*arguments: str, cwd: Path, log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """In a session of its own, so that its whole process group can be interrupted; killed at the end if it still runs."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=ENVIRONMENT,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
