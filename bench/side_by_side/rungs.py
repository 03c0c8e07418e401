"""The rungs of the benchmark: how many streams of which speed, begun how; nothing about any tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TTFT_MS = 50.0
INPUT_TOKENS = 32
OUTPUT_TOKENS = 100
COLD_GENERATIONS = 4
"""Requests of each stream on a cold rung."""

PEERS = ("vllm", "guidellm", "aiperf", "inference-perf")
REFERENCES = ("aiohttp", "c")
ALL = ("ours", *REFERENCES, *PEERS)


@dataclass(frozen=True, slots=True)
class Rung:
    """One load: `streams` requests in flight at all times, each answered with `tokens_per_s`."""

    streams: int
    tokens_per_s: int
    start: Literal["steady", "cold"] = "steady"
    burn: bool = False
    """Whether our worker's loop is blocked on purpose (see `burning`)."""
    tools: tuple[str, ...] = ALL
    window_s: float = 6.0
    """Steady: length of the window that is compared."""

    @property
    def name(self) -> str:
        suffix = "-burn" if self.burn else "-cold" if self.start == "cold" else ""
        return f"{self.streams}x{self.tokens_per_s}{suffix}"

    @property
    def itl_ms(self) -> float:
        """True gap between two tokens."""
        return 1000.0 / self.tokens_per_s

    @property
    def request_s(self) -> float:
        """True duration of one request."""
        return (TTFT_MS + (OUTPUT_TOKENS - 1) * self.itl_ms) / 1000.0

    @property
    def ramp_s(self) -> float:
        """Time over which the first requests are spread: about one request, so that the streams stay out of step."""
        return 0.0 if self.start == "cold" else max(2.0, round(self.request_s))

    @property
    def skip_s(self) -> float:
        """Load before the window: the ramp, one generation of requests, and a second of grace."""
        return 0.0 if self.start == "cold" else self.ramp_s + self.request_s + 1.0

    @property
    def load_s(self) -> float:
        """How long a tool that counts time is asked to send."""
        if self.start == "cold":
            return COLD_GENERATIONS * self.request_s
        return self.skip_s + self.window_s + 0.5

    @property
    def requests(self) -> int:
        """How many requests a tool that counts requests is asked to send, for the same time of load."""
        if self.start == "cold":
            return COLD_GENERATIONS * self.streams
        return round(self.streams * (self.load_s + self.request_s) / self.request_s)


RUNGS = (
    Rung(64, 100),
    Rung(256, 100),
    Rung(512, 100),
    Rung(2000, 20, window_s=8.0),
    Rung(256, 100, start="cold"),
    Rung(512, 100, start="cold"),
    Rung(1000, 100, tools=("ours", *REFERENCES)),
    Rung(256, 100, burn=True, tools=("ours",)),
)
