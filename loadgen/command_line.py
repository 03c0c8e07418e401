"""Takes the words of a command line, gives it as it may be written down: quoted for a shell, every secret cut out."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from loadgen.headers import is_secret, parse_headers, secrets_of, without_secrets
from loadgen.route import PROXY_AUTH
from loadgen.scenario.target import Target

SECRET = "<secret>"
LONGEST = 4000
"""Characters that are kept of a command line."""

_HEADER = ("-H", "--header")
_HEADER_KEYS = re.compile(r"(target\.headers(?:\.[^=]*)?)=")
_SECRET_OPTION = re.compile(r"(--[\w-]*(?:key|token|secret|password|passwd|auth|credentials?))(=.*)?", re.DOTALL)
"""Options of a locustfile; of loadgen's own none ends so."""
_CREDENTIALS = re.compile(r"(://)[^/\s]*@")
_SECRET_TEXT = re.compile(r"\b(?:(?:sk|hf|pk|ghp)[-_][\w.=-]{8,}|eyJ[\w.=-]{16,})|(?<=\b(?i:bearer) )(?!\$\{)\S+")
_SHORTEST = 4


def command_line(words: Sequence[str], target: Target, environment: Mapping[str, str] | None = None) -> str:
    """`words` as `sys.argv` has them, on one line where they are. `target` says which headers, proxy and key are secret.

    A value of a header stays where it is none by the rules of `headers.is_secret`, or is a reference (`${NAME}`).
    """
    known = os.environ if environment is None else environment
    secrets = _secrets(target, known)
    # Bytes that are no text would keep the run's notes from being written.
    rest = [os.fsencode(word).decode("utf-8", "replace") for word in words[1:]]
    program = _program(words[0] if words else "")
    shown = [_CREDENTIALS.sub(rf"\1{SECRET}@", without_secrets(word, secrets)) for word in _without_values(rest)]
    text = " ".join([program, *(shlex.quote(_SECRET_TEXT.sub(SECRET, word)) for word in shown)])
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"


def _secrets(target: Target, environment: Mapping[str, str]) -> list[str]:
    credentials = [(target.proxy or "").removeprefix("http://").rpartition("@")[0], environment.get(PROXY_AUTH, "")]
    credentials += [one.partition(":")[2] for one in credentials]
    credentials += [unquote(one) for one in credentials]
    found = {*credentials, environment.get(target.api_key_env, ""), *secrets_of(target.headers, environment)}
    return sorted((one for one in found if len(one) >= _SHORTEST), key=len, reverse=True)


def _program(path: str) -> str:
    """Without its folder, which tells of a machine and not of a run."""
    name = Path(os.fsencode(path).decode("utf-8", "replace")).name
    return "python -m loadgen" if name == "__main__.py" else shlex.quote(name or "loadgen")


def _without_values(words: Sequence[str]) -> list[str]:
    """The words, without values of headers and of options that are secret."""
    shown: list[str] = []
    before = ""
    for word in words:
        if before in _HEADER:
            shown.append(_header(word))
        elif found := re.fullmatch(r"(--header=|-H(?=.))(.*)", word, re.DOTALL):
            shown.append(found[1] + _header(found[2]))
        elif found := _HEADER_KEYS.match(word.removeprefix("--set=")):
            shown.append(f"{'--set=' if word.startswith('--set=') else ''}{found[1]}={SECRET}")
        elif _SECRET_OPTION.fullmatch(before) and "=" not in before:
            shown.append(SECRET)
        elif (found := _SECRET_OPTION.fullmatch(word)) and found[2]:
            shown.append(f"{found[1]}={SECRET}")
        else:
            shown.append(word)
        before = word
    return shown


def _header(text: str) -> str:
    """One or more headers as an option has them."""
    try:
        given = parse_headers(text)
    except ValueError:
        return SECRET
    return "\n".join(f"{name}: {SECRET if is_secret(name, content) else content}" for name, content in given.items())
