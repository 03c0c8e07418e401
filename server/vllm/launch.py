"""Starts a vLLM and proves that the one that answers is it; stops it and proves that nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from server.effective import getter, mismatches, read_effective, unconfirmed
from server.process import NotReadyError, ServerProcess
from server.vllm.command import CommandError, Start, command_words, filled
from server.vllm.failures import explain
from server.vllm.gpu_memory import GpuMemory
from server.vllm.port import free_port, holder, is_free, is_this_host
from server.warden import guarded

_POLL_S = 0.25
# vLLM ends in two or three seconds once it is ready; before that it may not heed SIGTERM at all.
_PATIENCE_S = 15.0
# The warden's own: its patience, a command on stop, and SIGKILL.
_WARDEN_S = _PATIENCE_S + 45.0
_PORT_S = 10.0
_NOT_FLAGS = ("host", "model", "port", "served_model_name")


class StartError(Exception):
    """The server did not start, or is not the one that was asked for. `kind` is a word for programs."""

    def __init__(self, kind: str, message: str, hint: str, log_tail: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.hint = hint
        self.log_tail = log_tail


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a vLLM is started, but for the settings that are swept."""

    command: str | None = None
    """A template in place of vLLM's own command."""
    on_stop: str | None = None
    """A template of what ends it where signals do not reach it."""
    python: str | None = None
    """Of the environment that has vLLM."""
    env: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    """Where it answers, with {port}; None is this host."""
    served_model_name: str | None = None
    """Its name where the settings give none."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of our own questions, for a server that wants a key."""


class VllmServer:
    """A vLLM that answers and is ours."""

    def __init__(
        self, process: ServerProcess, base_url: str, nonce: str, host: str, port: int, gpus: GpuMemory
    ) -> None:
        self.process = process
        self.base_url = base_url
        self.nonce = nonce
        """The second name that it serves its model by, which no other server has."""
        self.port = port
        self.effective: dict[str, Any] = {}
        self.unconfirmed: list[str] = []
        """Settings that were asked for and of which it says nothing."""
        self.startup_s = 0.0
        self._host = host
        self._gpus = gpus

    def alive(self) -> bool:
        return self.process.alive()

    def why_dead(self) -> StartError:
        """What its log says of its end; for a server that was ready once."""
        cause = explain(self.process.output(), self.process.exit_code)
        return StartError(cause.kind, cause.text, cause.hint, self.process.tail())

    def stop(self, pause: Callable[[float], object] = time.sleep) -> list[str]:
        """Ends every process of it. What is held all the same, its port or GPU memory, is said, a sentence each."""
        self.process.stop(pause)
        deadline = time.monotonic() + _PORT_S
        while _is_local(self.base_url) and not is_free(self._host, self.port):
            if time.monotonic() > deadline:
                return [f"Port {self.port} is still taken{_by(self.port)} after the server was stopped."]
            pause(_POLL_S)
        return self._gpus.await_free(pause)


def start_vllm(
    recipe: Recipe,
    settings: Mapping[str, Any],
    *,
    log: Path,
    port: int,
    timeout_s: float,
    pause: Callable[[float], object],
) -> VllmServer:
    """A vLLM with `settings` that answers, is ours, and runs with what was asked.

    `port`: 0 for a free one; `settings["port"]` goes before it. `pause` sleeps, and raises when the run is to end: the
    server is stopped then. Raises StartError.
    """
    host = str(settings.get("host") or "127.0.0.1")
    port = _checked_port(host, int(settings.get("port") or port), local=recipe.url is None or _is_local(recipe.url))
    nonce = f"loadgen-{secrets.token_hex(6)}"
    start = _start(settings, recipe, host, port, nonce)
    base_url = _url(recipe, host, port)
    try:
        words = command_words(start, template=recipe.command, python=recipe.python)
        on_stop = filled(recipe.on_stop, start, key="server.stop_command") if recipe.on_stop else []
    except CommandError as error:
        raise StartError("command", str(error), error.hint) from None
    if shutil.which(words[0], path=recipe.env.get("PATH")) is None:
        raise StartError("command", f"{words[0]} cannot be started: there is no such program.", "check server.command")
    _note_command(log, words, recipe.env)
    gpus = GpuMemory.now()
    began = time.monotonic()
    try:
        process = ServerProcess(
            guarded(words, patience_s=_PATIENCE_S, on_stop=on_stop),
            log,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **recipe.env},
            patience_s=_WARDEN_S,
            tied=True,
        )
    except NotReadyError as error:
        raise StartError("command", f"{error}.", "check server.command") from None
    server = VllmServer(process, base_url, nonce, host, port, gpus)
    try:
        _await_ready(server, recipe, timeout_s, pause)
        server.startup_s = time.monotonic() - began
        _check(server, recipe, settings)
    except BaseException:
        process.stop()
        raise
    return server


def _start(settings: Mapping[str, Any], recipe: Recipe, host: str, port: int, nonce: str) -> Start:
    flags = {key: value for key, value in settings.items() if key not in _NOT_FLAGS}
    model = settings.get("model")
    named = settings.get("served_model_name") or recipe.served_model_name or model
    if model is None and "{model}" in (recipe.command or "{model}"):
        model = recipe.served_model_name
    names = [str(one) for one in named] if isinstance(named, list | tuple) else [str(named)] if named else []
    return Start(flags, None if model is None else str(model), (*names, nonce), host, port)


def _checked_port(host: str, port: int, *, local: bool) -> int:
    """The port, free; `port` 0 has one chosen. Of another host nothing is known before its server answers."""
    if port == 0:
        return free_port(host if local else "127.0.0.1")
    if local and not is_free(host, port):
        raise StartError(
            "port_taken",
            f"Port {port} is taken{_by(port)}: {_who_answers(port)}, and would be measured in the place of ours.",
            "end it, or leave server.port out to have a free one chosen",
        )
    return port


def _is_local(url: str) -> bool:
    return is_this_host(urlsplit(url.replace("{port}", "0")).hostname or "")


def _by(port: int) -> str:
    held = holder(port)
    return "" if held is None else f" by process {held[0]} ({held[1][:120]})"


def _who_answers(port: int) -> str:
    served = read_effective(getter(f"http://127.0.0.1:{port}"))["served_models"]
    return f"a server that serves {', '.join(map(repr, served))} answers there" if served else "something listens there"


def _url(recipe: Recipe, host: str, port: int) -> str:
    if recipe.url is not None:
        return recipe.url.replace("{port}", str(port)).rstrip("/")
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def _note_command(log: Path, words: list[str], env: Mapping[str, str]) -> None:
    """The command as the log's first line, for people to run by hand."""
    with log.open("a", encoding="utf-8") as file:
        print(
            " ".join(["$", *(f"{key}={shlex.quote(value)}" for key, value in env.items()), shlex.join(words)]),
            file=file,
        )


def _await_ready(server: VllmServer, recipe: Recipe, timeout_s: float, pause: Callable[[float], object]) -> None:
    get = getter(server.base_url, headers=recipe.headers)
    deadline = time.monotonic() + timeout_s
    while True:
        dead = not server.alive()  # looked at first: the log is complete then
        if not dead:
            with contextlib.suppress(OSError, ValueError):
                get("/health")
                return
        if dead:
            code = server.process.exit_code
            cause = explain(server.process.output(), code)
            raise StartError(
                cause.kind,
                f"vLLM ended before it was ready, with exit code {code}. {cause.text}",
                cause.hint,
                server.process.tail(),
            )
        if time.monotonic() > deadline:
            raise StartError(
                "not_ready",
                f"vLLM was not ready within {timeout_s:g} s; its last line is: {_last_line(server)}",
                "give it longer with target.ready_timeout: a first start downloads the model, and CUDA graphs and "
                "compilation take minutes; enforce_eager: true is ready sooner and serves slower",
                server.process.tail(),
            )
        pause(_POLL_S)


def _last_line(server: VllmServer) -> str:
    lines = [line for line in server.process.output().splitlines() if line.strip() and not line.startswith("$ ")]
    return lines[-1][:200] if lines else "none"


def _check(server: VllmServer, recipe: Recipe, settings: Mapping[str, Any]) -> None:
    """That it is ours, and that it is what was asked for."""
    effective = read_effective(
        getter(server.base_url, headers=recipe.headers),
        log=server.process.output(),
        local=_is_local(server.base_url),
    )
    if not effective["served_models"]:
        raise StartError(
            "wrong_server",
            f"{server.base_url} answers /health and lists no model at /v1/models.",
            "a server that wants an API key needs it in the variable that target.api_key_env names",
            server.process.tail(),
        )
    if server.nonce not in effective["served_models"]:
        raise StartError(
            "wrong_server",
            f"{server.base_url} is not the server that was started: it serves "
            f"{', '.join(map(repr, effective['served_models']))}, and ours would serve {server.nonce!r} too.",
            "end the other server, or choose another port; a command of your own must pass {args} or "
            "{served_model_name} on to vLLM",
            server.process.tail(),
        )
    effective["served_models"].remove(server.nonce)
    asked = {key: value for key, value in settings.items() if key not in ("host", "port", "served_model_name")}
    if wrong := mismatches(asked, effective):
        raise StartError(
            "mismatch",
            f"vLLM does not run with what was asked: {'; '.join(wrong)}.",
            "what was asked cannot be measured so; ask for what vLLM gives, or see in server.log why it changed it",
        )
    server.effective = effective
    server.unconfirmed = unconfirmed(asked, effective)
