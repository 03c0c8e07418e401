"""The peers' environments: one virtual environment a tool under the project's cache, made when it is first needed.

Takes nothing but LOADGEN_CACHE and XDG_CACHE_HOME, gives paths of programs, never touches the project's environment.
vLLM's is that of the live tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.side_by_side.measured import ToolError
from tests.live.environment import BuildError, cache_dir, ensure_environment, log_tail

REQUIREMENTS = {
    "guidellm": "guidellm==0.8.1",
    "aiperf": "aiperf==0.13.0",
    "inference-perf": "inference-perf==0.7.0",
}
"""Newest of each when this was written."""
PYTHONS = {"inference-perf": ("3.12", "3.13")}
"""Of tools that do not install on every Python that the project runs on."""
_STAMP = "complete.json"
_TIMEOUT_S = 1800


def folder(tool: str) -> Path:
    """Where a tool's environment is, or will be."""
    return cache_dir() / ("vllm-env" if tool == "vllm" else f"bench-{tool}")


def program(tool: str, name: str) -> Path:
    """A program of a tool's environment."""
    return folder(tool) / "bin" / name


def ensure(tool: str, say: Callable[[str], None]) -> None:
    """Builds the tool's environment unless it is there. Raises ToolError."""
    if tool == "vllm":
        try:
            ensure_environment(say)
        except BuildError as error:
            raise ToolError(f"its environment could not be built: {str(error).splitlines()[0]}") from None
    elif tool in REQUIREMENTS:
        _build(tool, say)


def _build(tool: str, say: Callable[[str], None]) -> None:
    path, wanted = folder(tool), {"requirement": REQUIREMENTS[tool]}
    stamp = path / _STAMP
    if stamp.exists() and json.loads(stamp.read_text()) == wanted and (path / "bin" / "python").exists():
        return
    log = cache_dir() / f"build-bench-{tool}.log"
    say(f"installing {REQUIREMENTS[tool]} in {path}: once, a minute or two; log: {log}")
    python = _python(PYTHONS.get(tool, ()))
    shutil.rmtree(path, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        for command in (
            [python, "-m", "venv", str(path)],
            [str(path / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
            + ["--progress-bar", "off", REQUIREMENTS[tool]],
        ):
            try:
                ended = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=_TIMEOUT_S
                )
            except subprocess.TimeoutExpired:
                raise ToolError(f"installing it took more than {_TIMEOUT_S} s") from None
            if ended.returncode:
                raise ToolError(f"it could not be installed: {log_tail(log).splitlines()[-1].strip()}")
    stamp.write_text(json.dumps(wanted) + "\n")


def _python(versions: tuple[str, ...]) -> str:
    """A Python that runs, of one of these versions; ours when any will do."""
    if not versions or f"{sys.version_info.major}.{sys.version_info.minor}" in versions:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in versions:
        found = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
        for python in filter(None, found):
            if subprocess.run([python, "-c", "import venv"], capture_output=True).returncode == 0:
                return python
    raise ToolError(f"it needs Python {' or '.join(versions)}, and there is none here")


def version(tool: str, package: str) -> str:
    """Version of a package as the tool's own environment says."""
    asked = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    python = program(tool, "python")
    found = subprocess.run([str(python), "-c", asked, package], capture_output=True, text=True)
    return found.stdout.strip() or "unknown"
