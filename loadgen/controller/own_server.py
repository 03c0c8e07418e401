"""Starts the server of a scenario that asks for one of ours, with the settings of a level."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadgen.errors import LoadgenError
from loadgen.host import die_with_parent_option
from server.process import NotReadyError, ServerProcess

_READY = "simulator listening on "


def start_simulator(
    settings: dict[str, Any], *, log: Path, port: int, timeout_s: float, pause: Callable[[float], object]
) -> tuple[ServerProcess, str]:
    """The simulator with `settings`, ready, and its base URL. `port` 0 takes a free one; `pause` sleeps.

    Raises LoadgenError with the end of its log when it does not start.
    """
    command = [sys.executable, "-m", "loadgen", "serve", "sim", *die_with_parent_option(), "--port", str(port)]
    for key, value in settings.items():
        command += [f"--{key.replace('_', '-')}", str(value)]
    try:
        process = ServerProcess(command, log)
        return process, process.await_line(_READY, timeout_s, pause)
    except NotReadyError as error:
        raise LoadgenError(f"The simulator did not start: {error}") from None
