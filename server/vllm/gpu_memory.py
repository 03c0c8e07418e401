"""How much memory the GPUs have in use, by NVML; nothing at all, without a word, where there is no NVIDIA GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

_SLACK_BYTES = 512 << 20
"""Other programs' use may grow by so much without being taken for what the server has left."""
_FREE_S = 30.0
_POLL_S = 0.5

Read = Callable[[], list[int]]
"""Bytes in use on each GPU."""


def read_used(nvml: Any = None) -> list[int]:
    """Bytes in use on each GPU of the host; empty where NVML or its library is not there."""
    if nvml is None:
        try:
            import pynvml
        except ImportError:
            return []
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return [int(nvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles]
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


class GpuMemory:
    """What the GPUs had in use before a server was started."""

    def __init__(self, before: Sequence[int], read: Read = read_used) -> None:
        self._before = before
        self._read = read

    @classmethod
    def now(cls) -> GpuMemory:
        return cls(read_used())

    def await_free(self, pause: Callable[[float], object], timeout_s: float = _FREE_S) -> list[str]:
        """Waits until no more is in use than before; a sentence for each GPU where that does not come."""
        deadline = time.monotonic() + timeout_s
        while held := self._held():
            if time.monotonic() > deadline:
                return [
                    f"GPU {index} still has {more / (1 << 30):.1f} GiB more in use than before the server was started: "
                    "nvidia-smi shows who holds it."
                    for index, more in held.items()
                ]
            pause(_POLL_S)
        return []

    def _held(self) -> dict[int, int]:
        if not self._before:
            return {}
        pairs = enumerate(zip(self._before, self._read(), strict=False))
        return {index: now - before for index, (before, now) in pairs if now - before > _SLACK_BYTES}
