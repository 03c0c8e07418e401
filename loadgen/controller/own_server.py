"""Starts the server of a scenario that asks for one of ours, with the settings of a level, and says why it did not start."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.api_key import read_api_key
from loadgen.errors import LoadgenError, TargetLostError
from loadgen.host import die_with_parent_option
from loadgen.scenario.model import Scenario
from server.effective import getter, read_effective
from server.process import NotReadyError, ServerProcess
from server.simulator.settings import SimulatorSettings
from server.vllm.command import flag_words
from server.vllm.failures import explain
from server.vllm.launch import Recipe, StartError, VllmServer, start_vllm

_READY = "simulator listening on "


class ServerStartError(LoadgenError):
    """A server of ours did not start with the settings of a level, or is not what was asked for.

    `kind` is a word for programs, `tail` the end of its log.
    """

    def __init__(self, message: str, *, kind: str, hint: str | None = None, tail: str = "") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.tail = tail
        self._log: Path | None = None

    def keep_log(self, folder: Path) -> None:
        """Moves the server's log out of a run's folder that is about to be removed, to beside it."""
        log = folder / "server.log"
        if log.exists() and self.tail:
            self._log = log.replace(folder.with_name(f"{folder.name}-server.log"))

    def report(self) -> str:
        end = f"The end of its log:\n{self.tail}\n" if self.tail else ""
        whole = f"The whole of it is kept in {self._log}.\n" if self._log is not None else ""
        return end + whole + super().report()


class ServerDiedError(TargetLostError):
    """A server of ours that was ready has ended by itself."""


@dataclass(slots=True)
class OwnServer:
    """A server of ours that answers."""

    base_url: str
    port: int
    process: ServerProcess
    effective: dict[str, Any] | None = None
    """What it runs with (`server.effective`)."""
    nonce: str | None = None
    """A name that no other server has: one that does not list it is not ours."""
    _stop: Callable[[Callable[[float], object]], list[str]] = field(default=lambda pause: [])
    _stopped: bool = False

    def alive(self) -> bool:
        return self.process.alive()

    def died(self, pause: Callable[[float], object] = time.sleep) -> ServerDiedError:
        """Why it ended; what is left of it is stopped."""
        code = self.process.exit_code
        log = self.process.output()
        self.stop(pause)
        if self.nonce is None:
            return ServerDiedError(
                f"The simulator ended with exit code {code} during the run.",
                hint="its output is server.log in the run folder",
            )
        cause = explain(log, code)
        return ServerDiedError(f"vLLM ended with exit code {code} during the run. {cause.text}", hint=cause.hint)

    def stop(self, pause: Callable[[float], object] = time.sleep) -> list[str]:
        """Ends every process of it; a sentence for each thing that is held all the same. A second call does nothing."""
        if self._stopped:
            return []
        self._stopped = True
        return self._stop(pause)


def start_server(
    scenario: Scenario,
    settings: Mapping[str, Any],
    *,
    log: Path,
    port: int,
    pause: Callable[[float], object],
    tell: Callable[[str], object],
) -> OwnServer:
    """The scenario's server with `settings`, ready. `port` 0 takes a free one; `pause` sleeps, and raises when the run is
    to end; `tell` gets a sentence when there is something to wait for or to know.

    Raises ServerStartError.
    """
    if scenario.target.server == "vllm":
        return _start_vllm(scenario, settings, log=log, port=port, pause=pause, tell=tell)
    process, base_url = start_simulator(
        settings, log=log, port=port, timeout_s=scenario.target.ready_timeout, pause=pause
    )

    def stop(pause: Callable[[float], object]) -> list[str]:
        process.stop(pause)
        return []

    effective = read_effective(getter(base_url), log=process.output())
    # It logs, as vLLM does, only what differs from its defaults; that the rest is as asked, its own settings prove.
    for key in ("max_num_seqs", "max_num_batched_tokens"):
        if effective[key] is None and key in settings:
            effective[key] = settings[key]
            effective["sources"][key] = "settings"
    return OwnServer(base_url, int(base_url.rpartition(":")[2]), process, effective, _stop=stop)


def start_simulator(
    settings: Mapping[str, Any], *, log: Path, port: int, timeout_s: float, pause: Callable[[float], object]
) -> tuple[ServerProcess, str]:
    """The simulator with `settings`, ready, and its base URL. `port` 0 takes a free one; `pause` sleeps.

    Raises ServerStartError with the end of its log when it does not start.
    """
    command = [sys.executable, "-P", "-m", "loadgen", "serve", "sim", *die_with_parent_option(), "--port", str(port)]
    fields = SimulatorSettings.model_fields
    command += flag_words({key: value for key, value in settings.items() if value != fields[key].default})
    try:
        process = ServerProcess(command, log)
        return process, process.await_line(_READY, timeout_s, pause)
    except NotReadyError as error:
        raise ServerStartError(f"The simulator did not start: {error}", kind="simulator") from None


def _start_vllm(
    scenario: Scenario,
    settings: Mapping[str, Any],
    *,
    log: Path,
    port: int,
    pause: Callable[[float], object],
    tell: Callable[[str], object],
) -> OwnServer:
    section, target = scenario.server, scenario.target
    key = read_api_key(target.api_key_env)
    recipe = Recipe(
        command=section.command,
        on_stop=section.stop_command,
        python=section.python,
        env=section.env,
        url=section.url,
        served_model_name=target.model,
        headers={"Authorization": f"Bearer {key}"} if key else {},
    )
    tell(f"starting vLLM{_words(settings)}; its log is {log}")
    try:
        server = start_vllm(recipe, settings, log=log, port=port, timeout_s=target.ready_timeout, pause=pause)
    except StartError as error:
        raise ServerStartError(str(error), kind=error.kind, hint=error.hint, tail=error.log_tail) from None
    tell(_started(server))
    return OwnServer(server.base_url, server.port, server.process, server.effective, server.nonce, _stop=server.stop)


def _words(settings: Mapping[str, Any]) -> str:
    words = flag_words({key: value for key, value in settings.items() if key != "model"})
    return f" with {' '.join(words)}" if words else ""


def _started(server: VllmServer) -> str:
    found = server.effective
    parts = [f"vLLM {found['version']} was ready after {server.startup_s:.0f} s"]
    if found["kv_cache_tokens"] is not None:
        parts.append(f"its KV cache holds {found['kv_cache_tokens']:,} tokens")
    if found["max_concurrency"] is not None and found["max_model_len"] is not None:
        parts.append(f"room for {found['max_concurrency']:g} sequences of {found['max_model_len']:,}")
    text = ", ".join(parts)
    if server.unconfirmed:
        text += f"; it says nothing of {', '.join(server.unconfirmed)}"
    return text
