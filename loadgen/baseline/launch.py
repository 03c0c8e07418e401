"""Runs one of the scripts in the target's Python, in a process group of its own: gives what it told; leaves no process."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.baseline.inside.told import MARK
from loadgen.errors import LoadgenError, UsageError
from server.process import NotReadyError, ServerProcess
from server.vllm.failures import explain

_INSIDE = Path(__file__).with_name("inside")
_POLL_S = 0.1
_LOOK_S = 30.0
_SETTING = re.compile(r"server\.(\w+)")
_OPTIONS = {"model": "MODEL", "env": "the environment"}
"""Settings of a scenario's `server` section that are no options here."""
_LOOK = "import importlib.util, sys; print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))"


@dataclass(slots=True)
class Told:
    """What a script told of itself."""

    loaded: dict[str, Any]
    """Versions, effective settings, seconds of loading."""
    passes: list[dict[str, Any]] = field(default_factory=list)
    """prefill_s, total_s and output_tokens of each, in order, the warm-up among them."""


def check_python(python: str, libraries: Sequence[str]) -> None:
    """Raises UsageError unless this is a Python that has the libraries; imports none of them, since that takes long."""
    if shutil.which(python) is None:
        raise UsageError(
            f"--python is {python}, and there is no such program.",
            hint="give the path of the environment's python, such as /opt/vllm/bin/python",
        )
    try:
        looked = subprocess.run(
            [python, "-c", _LOOK, *libraries], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LOOK_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"--python is {python}, and it does not run: {type(error).__name__}.", hint="give a Python 3.10 or later"
        ) from None
    if looked.returncode != 0:
        said = (looked.stderr.strip().splitlines() or ["no word"])[-1]
        raise UsageError(f"--python is {python}, and it is no Python: {said[:200]}", hint="give a Python 3.10 or later")
    if lacking := looked.stdout.split():
        raise UsageError(
            f"{python} has no {' and no '.join(lacking)}.",
            hint=f"install it there ({python} -m pip install {' '.join(lacking)}), or give --python of an environment "
            "that has it",
        )


def run_script(
    script: str,
    asked: Mapping[str, Any],
    *,
    python: str,
    log: Path,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    watch: Callable[[str, dict[str, Any]], object] = lambda event, told: None,
    pause: Callable[[float], object] = time.sleep,
) -> Told:
    """`script`: its name in the folder `inside`. `watch` gets each line as it comes: its event, and what it says.

    Raises LoadgenError when it fails, dies, says nothing or takes longer than `timeout_s`; its processes are gone then too.
    """
    command = [python, "-u", str(_INSIDE / f"{script}.py"), json.dumps(dict(asked))]
    variables = None if env is None else {**os.environ, **env}
    deadline = time.monotonic() + timeout_s
    try:
        process = ServerProcess(command, log, env=variables, tied=True)
    except NotReadyError as error:
        raise UsageError(f"{error}.", hint="check --python") from None
    seen = 0
    lines: list[dict[str, Any]] = []
    try:
        while True:
            ended = not process.alive()  # looked at first: the log is complete then
            lines = _lines(process.output())
            for line in lines[seen:]:
                watch(line["event"], line)
            seen = len(lines)
            if ended or (lines and lines[-1]["event"] in ("done", "error")):
                break
            if time.monotonic() > deadline:
                raise LoadgenError(
                    f"{process.tail()}\n\nThe measurement was not over within {timeout_s:g} s.",
                    hint="allow more with --timeout, or ask for fewer tokens or passes",
                )
            pause(_POLL_S)
    finally:
        process.stop()
    return _told(lines, process)


def _lines(output: str) -> list[dict[str, Any]]:
    """The script's own lines; the last one of a log may not be whole yet."""
    whole = output[: output.rfind("\n") + 1]
    return [json.loads(line.removeprefix(MARK)) for line in whole.splitlines() if line.startswith(MARK)]


def _told(lines: Sequence[dict[str, Any]], process: ServerProcess) -> Told:
    by_event = {line["event"]: line for line in lines}
    if "error" in by_event or "done" not in by_event:
        raise _failed(by_event.get("error"), process)
    return Told(by_event["loaded"], [line for line in lines if line["event"] == "pass"])


def _failed(error: Mapping[str, Any] | None, process: ServerProcess) -> LoadgenError:
    """What is known of it: the causes that vLLM's users meet are told by the log, the others by the exception."""
    known = explain(process.output(), process.exit_code)
    if known.kind != "unknown":
        text, hint = known.text, _SETTING.sub(lambda found: _OPTIONS.get(found[1], _option(found[1])), known.hint)
    else:
        # That the engine did not start is what follows from something else, which stands in the log.
        by_itself = error is not None and "ngine core" not in error["message"]
        said = f"{error['type']}: {error['message']}" if error is not None and by_itself else known.text
        text, hint = f"The measurement failed: {said.strip()[:500]}", "--log FILE keeps all that it wrote"
    return LoadgenError(f"{process.tail()}\n\n{text}", hint=hint)


def _option(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"
