"""`loadgen` in the test's own process, which has everything imported: for commands that end before they start a program."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from typer.testing import CliRunner

from loadgen.cli import app


def loadgen_here(*words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Exit code and both outputs of a command that, as a program, costs two seconds of importing."""
    ended = CliRunner().invoke(app, list(words), env=env)
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return subprocess.CompletedProcess(words, ended.exit_code, ended.stdout, ended.stderr)
