"""What a tool is to do, and what it said of its requests, in one form for all tools."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class ToolError(RuntimeError):
    """The tool's run gave no result; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class Task:
    """What every tool is told, and where it may write."""

    base_url: str
    model: str
    tokenizer: Path
    """Folder of a Hugging Face tokenizer, for tools that cannot do without."""
    folder: Path
    """Empty; the tool's configuration and results go here."""
    free_port: int
    wall_minus_monotonic_ns: int
    """For tools that note the wall clock."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Of each request that the tool counts as successful, in the tool's own figures."""

    start_ns: Ints
    """When the request began by the tool's clock, as an instant of the machine's monotonic clock."""
    ttft_ms: Floats
    gaps_ms: list[Floats] | None = None
    """Gaps between tokens; None where the tool keeps only their mean."""
    mean_gap_ms: Floats | None = None
    """Mean gap of each request, where the tool keeps no more."""
    role_gaps: bool = False
    """Whether the first gap of each request is that from the event with the role to the first token."""
    failed: int = 0
    """Requests that the tool counts as failed."""
    reported: dict[str, list[float]] = field(default_factory=dict)
    """{"ttft_ms" or "itl_ms": [P50, P95, P99]} where the tool itself reports the window's percentiles."""
    window_ns: tuple[int, int] | None = None
    """The tool's own measuring window, where it has one."""
    remark: str = ""
    """What the tool itself says against its figures."""
