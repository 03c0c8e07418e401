"""Turns settings into the command line that starts vLLM; pure but for a look at what is installed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODULE = "vllm.entrypoints.openai.api_server"
PLACEHOLDERS = ("args", "host", "model", "port", "served_model_name")

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_LOOK_S = 30.0
# No import of vLLM itself: that takes ten seconds. `vllm serve` asks for the version of a distribution called vllm, and
# fails where the same code was installed under another name.
_LOOK = """
import importlib.metadata, importlib.util
print(importlib.util.find_spec("vllm") is not None)
try:
    print(importlib.metadata.version("vllm"))
except importlib.metadata.PackageNotFoundError:
    print("")
"""


class CommandError(Exception):
    """No command line can be made: `str(error)` says why, `hint` what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Start:
    """What one vLLM is started with."""

    flags: Mapping[str, Any]
    """By key of the scenario; without model, host, port and served_model_name."""
    model: str | None
    """What it loads; None where the template says so."""
    served_names: tuple[str, ...]
    """The names that it answers to, the one for people first."""
    host: str
    port: int


def flag_words(flags: Mapping[str, Any]) -> list[str]:
    """`max_num_seqs: 8` as `--max-num-seqs 8`.

    True is `--flag`, False `--no-flag`, None nothing at all, a mapping JSON, a list several words after one flag.
    """
    words: list[str] = []
    for key, value in flags.items():
        name = key.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, Mapping):
            words += [f"--{name}", json.dumps(value)]
        elif isinstance(value, list | tuple):
            words += [f"--{name}", *map(str, value)]
        else:
            words += [f"--{name}", str(value)]
    return words


def command_words(start: Start, *, template: str | None, python: str | None) -> list[str]:
    """The words of the command line. `template`: how people start it, in place of vLLM's own command.

    `python`: of the environment that has vLLM; None looks for `vllm` on the PATH. Raises CommandError.
    """
    if template is not None:
        return filled(template, start)
    if start.model is None:
        raise CommandError("No model is named for vLLM to load.", "set server.model to a folder or a name on the hub")
    vllm = _own_command(python)
    if vllm[-1] == "serve":
        return [*vllm, start.model, *_words_for(start, {"model"})]
    return [*vllm, *_words_for(start, set())]


def filled(template: str, start: Start, *, key: str = "server.command") -> list[str]:
    """A template as words, its placeholders filled in. `key`: what it is called in messages.

    `{args}` stands for every flag that the template does not spell itself, and comes last in a `server.command` that has
    no place for it. A word that is nothing but a placeholder becomes several words; inside of a longer word, such as the
    command that ssh hands to a shell, they are quoted. Raises CommandError for a template that cannot be read.
    """
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise CommandError(f"{key} cannot be read: {error}.", "close its quotes") from None
    used = set(_PLACEHOLDER.findall(template))
    if unknown := used - set(PLACEHOLDERS):
        raise CommandError(
            f"{key} has {', '.join(f'{{{name}}}' for name in sorted(unknown))}, which stands for nothing.",
            f"the placeholders are {', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}",
        )
    if not words:
        raise CommandError(f"{key} is empty.", "write for example: vllm serve {model} {args}")
    if "model" in used and start.model is None:
        raise CommandError(f"{key} has {{model}}, and no model is named.", "set server.model")
    values: dict[str, list[str]] = {
        "host": [start.host],
        "port": [str(start.port)],
        "model": [start.model or ""],
        "served_model_name": list(start.served_names),
        "args": _words_for(start, used),
    }
    if "args" not in used and key == "server.command":
        words.append("{args}")
    return [one for word in words for one in _filled_word(word, values)]


def _filled_word(word: str, values: Mapping[str, Sequence[str]]) -> list[str]:
    whole = _PLACEHOLDER.fullmatch(word)
    if whole is not None:
        return list(values[whole[1]])
    return [_PLACEHOLDER.sub(lambda match: shlex.join(values[match[1]]), word)]


def _words_for(start: Start, elsewhere: set[str]) -> list[str]:
    """Every flag but those that are said elsewhere in the command."""
    ours: dict[str, Any] = {
        "model": start.model,
        "served_model_name": list(start.served_names),
        "host": start.host,
        "port": start.port,
    }
    return flag_words({key: value for key, value in ours.items() if key not in elsewhere} | dict(start.flags))


def _own_command(python: str | None) -> list[str]:
    """`vllm serve`, or the module that it runs where that command is absent or broken."""
    if python is not None:
        if shutil.which(python) is None:
            raise CommandError(
                f"server.python is {python}, and there is no such program.",
                "give the path of the environment's python, such as /opt/vllm/bin/python",
            )
        beside = Path(python).with_name("vllm")
        return _checked(python, str(beside) if beside.is_file() else None)
    command = shutil.which("vllm")
    return _checked(_interpreter(command) if command else sys.executable, command)


def _checked(python: str | None, command: str | None) -> list[str]:
    if python is None:  # not a Python script: whoever put it there knows what it does
        assert command is not None
        return [command, "serve"]
    try:
        looked = subprocess.run(
            [python, "-I", "-c", _LOOK], capture_output=True, text=True, timeout=_LOOK_S, stdin=subprocess.DEVNULL
        ).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        looked = []
    there, version = (looked + ["False", ""])[:2] if looked else ("False", "")
    if there == "True":
        return [command, "serve"] if command is not None and version else [python, "-m", MODULE]
    if command is not None and not looked:
        return [command, "serve"]
    raise CommandError(
        f"vLLM is not installed for {python}.",
        "set server.python to the python of the environment that has vLLM, or server.command to how you start it",
    )


def _interpreter(script: str) -> str | None:
    """The Python that a script is for, from its first line; None where it is no Python script."""
    try:
        with Path(script).open("rb") as file:
            first = file.readline(512).decode("utf-8", "replace")
    except OSError:
        return None
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    if words and "python" in Path(words[0]).name and shutil.which(words[0]):
        return words[0]
    return None
