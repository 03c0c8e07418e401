"""The C client: `bench/c_client.c`, the physical limit; it does only what any client must."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from bench.side_by_side.environments import folder
from bench.side_by_side.measured import Measured, Task, ToolError
from bench.side_by_side.rungs import OUTPUT_TOKENS, Rung
from bench.side_by_side.tools.plain_aiohttp import write_body

TITLE = "C, epoll"
DEFINITION = "TTFT from before `send` to after the `recv` that completed the first token's event; ITL by event"
HOW = "`bench/c_client.c`: finds event ends and stamps them, parses nothing"

SOURCE = Path(__file__).parents[2] / "c_client.c"
_EVENTS = OUTPUT_TOKENS + 3
"""The tokens, the role before them, the usage and `[DONE]` after them."""


def build() -> Path:
    """The compiled client, newer than its source. Raises ToolError."""
    program = folder("c") / "c_client"
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        try:
            built = subprocess.run(
                ["cc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(SOURCE)], capture_output=True, text=True
            )
        except OSError as error:
            raise ToolError(f"no C compiler: {error}") from None
        if built.returncode:
            raise ToolError(f"it does not compile: {built.stderr.strip().splitlines()[-1]}")
    return program


def command(rung: Rung, task: Task) -> list[str]:
    """The command line."""
    port = urlsplit(task.base_url).port
    times = [str(round(rung.ramp_s * 1000)), str(round(rung.load_s * 1000))]
    files = [str(write_body(task)), str(task.folder / "stamps.bin")]
    return [str(build()), str(port), str(rung.streams), *times, str(_EVENTS), *files]


def read(rung: Rung, task: Task) -> Measured:
    """Records of (start, count, instants of events); the role's event and the two after the last token are left out."""
    words = np.fromfile(task.folder / "stamps.bin", np.uint64).astype(np.int64)
    starts, tokens, short, at = [], [], 0, 0
    while at < len(words):
        start_ns, count = int(words[at]), int(words[at + 1])
        if count == _EVENTS:
            starts.append(start_ns)
            tokens.append(words[at + 3 : at + 3 + OUTPUT_TOKENS])
        else:
            short += 1
        at += 2 + count
    if not starts:
        raise ToolError(f"no answer had {_EVENTS} events")
    start_ns_all, token_ns = np.array(starts, np.int64), np.array(tokens, np.int64)
    return Measured(
        start_ns=start_ns_all,
        ttft_ms=(token_ns[:, 0] - start_ns_all) / 1e6,
        gaps_ms=list(np.diff(token_ns, axis=1) / 1e6),
        failed=short,
    )
